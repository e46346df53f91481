#include "kernels/matvec.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cpu/matvec_vnni.h"
#include "kernels/cpu_target.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matvec.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace varve::kernels::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

const hn::CappedTag<float, kPanelRows> df;
const hn::RebindToSigned<decltype(df)> di;
const hn::Rebind<hwy::float16_t, decltype(df)> dh;
constexpr size_t kLanes = hn::MaxLanes(df);
constexpr size_t kRowsAtOnce =
    4;  // rows of x per pass over a panel; eight sums fit AVX2's registers
using F = hn::Vec<decltype(df)>;
using I = hn::Vec<decltype(di)>;

HWY_INLINE F load_f16(const uint16_t* in) {
  return hn::PromoteTo(df, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(in)));
}

HWY_INLINE I load_words(const uint8_t* in) {
  return hn::LoadU(di, reinterpret_cast<const int32_t*>(in));
}

// M rows of x against kLanes rows of W, starting at `lane` of a panel. Vectors are passed in
// structs: some compilers warn about arrays of them as template arguments.
template <size_t M>
struct Sums {
  F row[M];
};

template <size_t M>
HWY_INLINE void clear(Sums<M>& s) {
  for (size_t i = 0; i < M; ++i) s.row[i] = hn::Zero(df);
}

template <size_t M>
HWY_INLINE void add(Sums<M>& s, F weight, const float* x, size_t x_stride) {
  for (size_t i = 0; i < M; ++i) {
    s.row[i] = hn::MulAdd(weight, hn::Set(df, x[i * x_stride]), s.row[i]);
  }
}

// One group of codes: s += code * x.
template <size_t M>
HWY_INLINE void add_codes4(Sums<M>& s, const uint8_t* codes, const float* x, size_t x_stride,
                           size_t inputs) {
  for (size_t j = 0; j < inputs / 8; ++j) {
    hwy::Prefetch(codes + j * kPanelRows * 4 + kPrefetchBytes);
    const I words = load_words(codes + j * kPanelRows * 4);
    for (int nibble = 0; nibble < 8; ++nibble) {
      const I code = hn::And(hn::ShiftRightSame(words, 4 * nibble), hn::Set(di, 15));
      add(s, hn::ConvertTo(df, code), x + 8 * j + nibble / 2 + 4 * (nibble % 2), x_stride);
    }
  }
}

template <size_t M>
HWY_INLINE void add_codes8(Sums<M>& s, const uint8_t* codes, const float* x, size_t x_stride,
                           size_t inputs) {
  for (size_t j = 0; j < inputs / 4; ++j) {
    hwy::Prefetch(codes + j * kPanelRows * 4 + kPrefetchBytes);
    const I words =
        hn::Xor(load_words(codes + j * kPanelRows * 4), hn::Set(di, static_cast<int>(0x80808080u)));
    for (int byte = 0; byte < 4; ++byte) {
      const I code = hn::ShiftRight<24>(hn::ShiftLeftSame(words, 24 - 8 * byte));
      add(s, hn::ConvertTo(df, code), x + 4 * j + byte, x_stride);
    }
  }
}

template <size_t M>
HWY_INLINE void coded_panel(const PackedWeights& w, const float* x, size_t x_stride,
                            const float* sum_x, size_t panel, size_t lane, Sums<M>& total) {
  const bool is_w4 = w.format() == WeightFormat::kW4;
  const size_t groups = w.k() / w.group();
  const uint8_t* codes = w.codes(panel) + lane * 4;
  const uint16_t* params = w.params(panel) + lane;
  for (size_t g = 0; g < groups; ++g) {
    Sums<M> s;
    clear(s);
    if (is_w4) {
      add_codes4(s, codes, x + g * w.group(), x_stride, w.group());
    } else {
      add_codes8(s, codes, x + g * w.group(), x_stride, w.group());
    }
    codes += w.group() * kPanelRows / (is_w4 ? 2 : 1);
    const F scale = load_f16(params);
    for (size_t i = 0; i < M; ++i) total.row[i] = hn::MulAdd(scale, s.row[i], total.row[i]);
    params += kPanelRows;
    if (!w.has_min()) continue;
    const F min = load_f16(params);
    for (size_t i = 0; i < M; ++i) {
      total.row[i] = hn::MulAdd(min, hn::Set(df, sum_x[i * groups + g]), total.row[i]);
    }
    params += kPanelRows;
  }
}

template <size_t M>
HWY_INLINE void bf16_panel(const PackedWeights& w, const float* x, size_t x_stride, size_t panel,
                           size_t lane, Sums<M>& total) {
  const uint8_t* pairs = w.codes(panel) + lane * 4;
  for (size_t c = 0; c < w.k(); c += 2, pairs += kPanelRows * 4) {
    const I words = load_words(pairs);
    add(total, hn::BitCast(df, hn::ShiftLeft<16>(words)), x + c, x_stride);
    if (c + 1 == w.k()) break;
    const I odd = hn::And(words, hn::Set(di, static_cast<int>(0xffff0000u)));
    add(total, hn::BitCast(df, odd), x + c + 1, x_stride);
  }
}

template <size_t M>
HWY_INLINE void f32_panel(const PackedWeights& w, const float* x, size_t x_stride, size_t panel,
                          size_t lane, Sums<M>& total) {
  const auto* values = reinterpret_cast<const float*>(w.codes(panel)) + lane;
  for (size_t c = 0; c < w.k(); ++c) {
    add(total, hn::LoadU(df, values + c * kPanelRows), x + c, x_stride);
  }
}

template <size_t M>
HWY_NOINLINE void rows(const PackedWeights& w, const float* x, size_t x_stride, const float* sum_x,
                       float* y, size_t y_stride, size_t panel) {
  HWY_ALIGN float out[M * kPanelRows];
  for (size_t lane = 0; lane < kPanelRows; lane += kLanes) {
    Sums<M> total;
    clear(total);
    if (w.format() == WeightFormat::kF32) {
      f32_panel(w, x, x_stride, panel, lane, total);
    } else if (w.format() == WeightFormat::kBf16) {
      bf16_panel(w, x, x_stride, panel, lane, total);
    } else {
      coded_panel(w, x, x_stride, sum_x, panel, lane, total);
    }
    for (size_t i = 0; i < M; ++i) hn::Store(total.row[i], df, out + i * kPanelRows + lane);
  }
  const size_t row0 = panel * kPanelRows;
  const size_t live = HWY_MIN(w.n() - row0, kPanelRows);
  for (size_t i = 0; i < M; ++i) {
    std::memcpy(y + i * y_stride + row0, out + i * kPanelRows, live * sizeof(float));
  }
}

// sum_x [count][groups]
void sum_groups(const PackedWeights& w, const float* x, size_t count, size_t x_stride,
                std::vector<float>& sum_x) {
  const size_t groups = w.k() / w.group();
  if (sum_x.size() < count * groups) sum_x.resize(count * groups);
  for (size_t i = 0; i < count; ++i) {
    for (size_t g = 0; g < groups; ++g) {
      const float* in = x + i * x_stride + g * w.group();
      F sum = hn::Zero(df);
      for (size_t c = 0; c < w.group(); c += kLanes) sum = hn::Add(sum, hn::LoadU(df, in + c));
      sum_x[i * groups + g] = hn::GetLane(hn::SumOfLanes(df, sum));
    }
  }
}

void matvec_f32(const PackedWeights& w, const float* x, size_t m, size_t x_stride, float* y,
                size_t y_stride, size_t n0, size_t n1) {
  thread_local std::vector<float> sum_x;
  for (size_t first = 0; first < m; first += kRowsAtOnce) {
    const size_t count = HWY_MIN(m - first, kRowsAtOnce);
    const float* in = x + first * x_stride;
    float* out = y + first * y_stride;
    if (w.has_min()) sum_groups(w, in, count, x_stride, sum_x);
    for (size_t row = n0; row < n1; row += kPanelRows) {
      const size_t panel = row / kPanelRows;
      if (count == 1) rows<1>(w, in, x_stride, sum_x.data(), out, y_stride, panel);
      if (count == 2) rows<2>(w, in, x_stride, sum_x.data(), out, y_stride, panel);
      if (count == 3) rows<3>(w, in, x_stride, sum_x.data(), out, y_stride, panel);
      if (count == 4) rows<4>(w, in, x_stride, sum_x.data(), out, y_stride, panel);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace varve::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace varve::kernels::cpu {

HWY_EXPORT(matvec_f32);

void matvec(const PackedWeights& w, const float* x, size_t m, size_t x_stride, float* y,
            size_t y_stride, size_t n0, size_t n1) {
  const bool is_coded = w.format() == WeightFormat::kW4 || w.format() == WeightFormat::kW8;
  if (is_coded && cpu_target() == CpuTarget::kAvx512Vnni) {
    return matvec_vnni(w, x, m, x_stride, y, y_stride, n0, n1);
  }
  HWY_DYNAMIC_DISPATCH(matvec_f32)(w, x, m, x_stride, y, y_stride, n0, n1);
}

}  // namespace varve::kernels::cpu
#endif  // HWY_ONCE
