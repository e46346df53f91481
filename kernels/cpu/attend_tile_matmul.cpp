// attend_tile with oneDNN's bf16 matrix products, which run on AMX where the CPU has it. Large
// blocks and groups, so that the products outweigh their calls. An unpacked page is a block of
// oneDNN's weights already: keys [head_dim / 2][32][2], values [16][64][2] for 64 channels.
#include <cstdint>
#include <dnnl.hpp>
#include <map>

#include "kernels/cpu/attend_tile_bf16.h"
#include "kernels/cpu/attend_tile_steps.h"

// From libgomp, which oneDNN runs on; clang has no <omp.h> of its own on every machine.
extern "C" int omp_get_max_threads();
extern "C" void omp_set_num_threads(int threads);

namespace varve::kernels::cpu::tile {
namespace {

constexpr size_t kRows = 128;
constexpr size_t kSlots = 16;
constexpr size_t kKeys = kSlots * kBlockTokens;  // row stride of logits and probabilities
constexpr size_t kValueWidth = 64;

// Keeps oneDNN in the calling thread.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

// C [kRows][n] (+)= A [kRows][k] * B [k][n]
struct Shape {
  int64_t k, n, a_stride, c_stride;
  bool accumulate;
  auto operator<=>(const Shape&) const = default;
};

class Product {
 public:
  using memory = dnnl::memory;

  Product(const Shape& shape, const dnnl::engine& engine)
      : Product(describe(shape, engine), engine) {}

  void run(dnnl::stream& stream, const uint16_t* a, const uint8_t* b, float* c) {
    a_.set_data_handle(const_cast<uint16_t*>(a));
    b_.set_data_handle(const_cast<uint8_t*>(b));
    c_.set_data_handle(c);
    primitive_.execute(stream, {{DNNL_ARG_SRC, a_}, {DNNL_ARG_WEIGHTS, b_}, {DNNL_ARG_DST, c_}});
  }

 private:
  Product(const dnnl::matmul::primitive_desc& desc, const dnnl::engine& engine)
      : primitive_(desc),
        a_(desc.src_desc(), engine, nullptr),
        b_(desc.weights_desc(), engine, nullptr),
        c_(desc.dst_desc(), engine, nullptr) {}

  static dnnl::matmul::primitive_desc describe(const Shape& s, const dnnl::engine& engine) {
    const int64_t rows = kRows;
    const memory::desc a({rows, s.k}, memory::data_type::bf16, memory::dims{s.a_stride, 1});
    const memory::desc b({s.k, s.n}, memory::data_type::bf16,
                         s.accumulate ? memory::format_tag::BA16a64b2a    // values
                                      : memory::format_tag::BA16a32b2a);  // keys
    const memory::desc c({rows, s.n}, memory::data_type::f32, memory::dims{s.c_stride, 1});
    dnnl::primitive_attr attr;
    if (s.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attr.set_post_ops(sum);
    }
    return {dnnl::matmul::desc(a, b, c), attr, engine};
  }

  dnnl::matmul primitive_;
  memory a_, b_, c_;
};

void multiply(const Shape& shape, const uint16_t* a, const uint8_t* b, float* c) {
  thread_local const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  thread_local dnnl::stream stream(engine);
  thread_local std::map<Shape, Product> products;
  const OneThread one_thread;
  auto at = products.find(shape);
  if (at == products.end()) at = products.emplace(shape, Product(shape, engine)).first;
  at->second.run(stream, a, b, c);
}

// oneDNN starts from zero: adds what the other ways start from, where it is not zero.
void add_bias(const float* bias, float* s) {
  bool any = false;
  for (size_t t = 0; t < kBlockTokens; ++t) any |= bias[t] != 0.0f;
  if (!any) return;
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t t = 0; t < kBlockTokens; ++t) s[r * kKeys + t] += bias[t];
  }
}

void update(const Work& w, size_t row, size_t begin, size_t end) {
  const auto dim = static_cast<int64_t>(w.head_dim);
  const auto n_keys = static_cast<int64_t>((end - begin) * kBlockTokens);
  multiply({dim, n_keys, dim, kKeys, false}, w.q_packed + row * w.head_dim, w.k[begin], w.s);
  for (size_t slot = begin; slot < end; ++slot) {
    float* s = w.s + (slot - begin) * kBlockTokens;
    add_bias(w.bias + slot * kBlockTokens, s);
    if (needs_mask(w, row, slot)) mask_later_keys(w, row, kRows, slot, s, kKeys);
  }
  for (size_t r = 0; r < kRows; ++r) {
    bf16_softmax_row(w, row + r, w.s + r * kKeys, w.p + r * kKeys, static_cast<size_t>(n_keys));
  }
  for (size_t c = 0; c < w.head_dim; c += kValueWidth) {
    multiply({n_keys, kValueWidth, kKeys, dim, true}, w.p,
             w.v[begin] + c / kValueWidth * w.v_block_bytes, w.o + row * w.head_dim + c);
  }
}

constexpr Steps kSteps{kRows,       kSlots, sizeof(uint16_t), kValueWidth, bf16_round_queries,
                       bf16_unpack, update};

}  // namespace

const Steps& matmul_steps() { return kSteps; }

bool matmul_has_amx() {
  static const bool has = [] {
    const auto amx = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_amx);
    return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & amx) == amx;
  }();
  return has;
}

}  // namespace varve::kernels::cpu::tile
