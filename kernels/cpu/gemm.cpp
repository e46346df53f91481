#include "kernels/gemm.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/convert.h"

// From libgomp, which oneDNN runs on. Declared here: clang has no <omp.h> of its own on every
// machine.
extern "C" int omp_get_max_threads();
extern "C" void omp_set_num_threads(int threads);

namespace varve::kernels::cpu {
namespace {

constexpr size_t kPieces[] = {512, 256, 128, 64, 32};  // rows
constexpr size_t kSmallest = 32;
constexpr size_t kPrimitivesMax = 512;  // per thread; beyond that all are dropped and made again

using Memory = dnnl::memory;

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

// oneDNN splits work over OpenMP's threads for the calling thread, at creation and at execution.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (before_ != 1) omp_set_num_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

// A primitive for one shape with the memory objects that carry the pointers of a call.
struct Product {
  dnnl::matmul primitive;
  Memory a, w, c, scratch;
  std::unordered_map<int, Memory> arguments;
};

Memory::desc matrix(size_t rows, size_t cols, size_t row_stride, size_t col_stride, GemmType type) {
  const auto dim = [](size_t v) { return static_cast<Memory::dim>(v); };
  return {{dim(rows), dim(cols)},
          type == GemmType::kF32 ? Memory::data_type::f32 : Memory::data_type::bf16,
          Memory::dims{dim(row_stride), dim(col_stride)}};
}

// One at a time: rare, slow, and then what threads share inside oneDNN (its cache of generated
// code) is ordered by a lock that race detectors can see.
Product make_product(const GemmShape& s) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto a = matrix(s.m, s.k, s.lda, 1, s.type);
  const auto w =
      s.w_is_kn ? matrix(s.k, s.n, s.ldw, 1, s.type) : matrix(s.k, s.n, 1, s.ldw, s.type);
  const auto c = matrix(s.m, s.n, s.ldc, 1, GemmType::kF32);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (s.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, w, c), attributes, engine());
  Product p{dnnl::matmul(description),
            Memory(a, engine(), nullptr),
            Memory(w, engine(), nullptr),
            Memory(c, engine(), nullptr),
            Memory(description.scratchpad_desc(), engine()),
            {}};
  p.arguments = {{DNNL_ARG_SRC, p.a},
                 {DNNL_ARG_WEIGHTS, p.w},
                 {DNNL_ARG_DST, p.c},
                 {DNNL_ARG_SCRATCHPAD, p.scratch}};
  return p;
}

Product& product_for(const GemmShape& s) {
  using Key = std::array<size_t, 7>;
  const size_t flags =
      (s.type == GemmType::kBf16 ? 1u : 0u) | (s.w_is_kn ? 2u : 0u) | (s.accumulate ? 4u : 0u);
  thread_local std::map<Key, Product> products;
  const Key key = {s.m, s.n, s.k, s.lda, s.ldw, s.ldc, flags};
  const auto found = products.find(key);
  if (found != products.end()) return found->second;
  if (products.size() >= kPrimitivesMax) products.clear();
  return products.emplace(key, make_product(s)).first->second;
}

void execute(const GemmShape& s, const void* a, const void* w, float* c) {
  thread_local dnnl::stream stream(engine());
  Product& p = product_for(s);
  p.a.set_data_handle(const_cast<void*>(a));
  p.w.set_data_handle(const_cast<void*>(w));
  p.c.set_data_handle(c);
  p.primitive.execute(stream, p.arguments);
}

// Fewer rows than the smallest piece: through scratch, so that nothing beyond the caller's rows is
// read or written.
void execute_tail(GemmShape s, const uint8_t* a, const void* w, float* c) {
  const size_t size = s.type == GemmType::kF32 ? 4 : 2;
  thread_local std::vector<uint8_t> a_rows;
  thread_local std::vector<float> c_rows;
  a_rows.assign(kSmallest * s.k * size, 0);
  if (c_rows.size() < kSmallest * s.n) c_rows.resize(kSmallest * s.n);
  for (size_t i = 0; i < s.m; ++i) {
    std::memcpy(&a_rows[i * s.k * size], a + i * s.lda * size, s.k * size);
  }
  GemmShape padded = s;
  padded.m = kSmallest;
  padded.lda = s.k;
  padded.ldc = s.n;
  padded.accumulate = false;
  execute(padded, a_rows.data(), w, c_rows.data());
  for (size_t i = 0; i < s.m; ++i) {
    float* out = c + i * s.ldc;
    const float* in = &c_rows[i * s.n];
    for (size_t j = 0; j < s.n; ++j) out[j] = s.accumulate ? out[j] + in[j] : in[j];
  }
}

void execute_pieces(GemmShape s, const void* a, const void* w, float* c) {
  const size_t size = s.type == GemmType::kF32 ? 4 : 2;
  const auto* rows = static_cast<const uint8_t*>(a);
  size_t left = s.m;
  for (const size_t piece : kPieces) {
    for (s.m = piece; left >= piece; left -= piece) {
      execute(s, rows, w, c);
      rows += piece * s.lda * size;
      c += piece * s.ldc;
    }
  }
  s.m = left;
  if (left > 0) execute_tail(s, rows, w, c);
}

bool onednn_has_bf16() {
  static const unsigned isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  constexpr unsigned kNeeded = static_cast<unsigned>(dnnl::cpu_isa::avx512_core);
  return (isa & kNeeded) == kNeeded;
}

std::vector<float> widened(const void* matrix, size_t rows, size_t cols, size_t stride) {
  std::vector<float> out(rows * cols);
  const auto* in = static_cast<const uint16_t*>(matrix);
  for (size_t r = 0; r < rows; ++r) f32_from_bf16(in + r * stride, &out[r * cols], cols);
  return out;
}

void gemm_widened(GemmShape s, const void* a, const void* w, float* c) {
  const size_t w_rows = s.w_is_kn ? s.k : s.n, w_cols = s.w_is_kn ? s.n : s.k;
  const std::vector<float> wide_a = widened(a, s.m, s.k, s.lda);
  const std::vector<float> wide_w = widened(w, w_rows, w_cols, s.ldw);
  s.type = GemmType::kF32;
  s.lda = s.k;
  s.ldw = w_cols;
  execute_pieces(s, wide_a.data(), wide_w.data(), c);
}

// oneDNN does not take an empty sum.
void clear_unless_accumulating(const GemmShape& s, float* c) {
  if (s.accumulate) return;
  for (size_t i = 0; i < s.m; ++i) std::memset(c + i * s.ldc, 0, s.n * sizeof(float));
}

}  // namespace

bool gemm_prefers_bf16() {
  static const unsigned isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  constexpr unsigned kNeeded = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return (isa & kNeeded) == kNeeded;
}

void gemm(const GemmShape& s, const void* a, const void* w, float* c) {
  if (s.m == 0 || s.n == 0) return;
  if (s.k == 0) return clear_unless_accumulating(s, c);
  try {
    const OneThread one_thread;
    if (s.type == GemmType::kBf16 && !onednn_has_bf16()) return gemm_widened(s, a, w, c);
    execute_pieces(s, a, w, c);
  } catch (const dnnl::error& e) {
    throw std::runtime_error("gemm of " + std::to_string(s.m) + " x " + std::to_string(s.n) +
                             " x " + std::to_string(s.k) + ": oneDNN says: " + e.what());
  }
}

}  // namespace varve::kernels::cpu
