#include "kernels/unpack.h"

#include <cstring>

#include "kernels/number.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/unpack.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/store-inl.h"

HWY_BEFORE_NAMESPACE();
namespace varve::kernels::cpu {
namespace HWY_NAMESPACE {

const hn::CappedTag<float, 16> df;
const hn::RebindToSigned<decltype(df)> di;
const hn::Rebind<uint8_t, decltype(df)> d8;
constexpr size_t kLanes = hn::MaxLanes(df);
constexpr size_t kChunk = 32;  // inputs handled at once; a whole number of groups

// Codes of one panel for 32 inputs, one row after the other.
struct Codes {
  HWY_ALIGN uint8_t row[kPanelRows][kChunk];
};

// words [count][16] u32 -> [16][count]
template <size_t Count>
HWY_INLINE void transpose(const uint8_t* words, uint32_t (&out)[kPanelRows][Count]) {
  for (size_t j = 0; j < Count; ++j) {
    for (size_t r = 0; r < kPanelRows; ++r) {
      std::memcpy(&out[r][j], words + (j * kPanelRows + r) * 4, 4);
    }
  }
}

HWY_INLINE void read_codes4(const uint8_t* words, Codes& codes) {
  uint32_t by_row[kPanelRows][kChunk / 8];
  transpose(words, by_row);
  for (size_t r = 0; r < kPanelRows; ++r) {
    for (size_t j = 0; j < kChunk / 8; ++j) {
      const uint32_t low = by_row[r][j] & 0x0f0f0f0fu, high = by_row[r][j] >> 4 & 0x0f0f0f0fu;
      std::memcpy(codes.row[r] + 8 * j, &low, 4);
      std::memcpy(codes.row[r] + 8 * j + 4, &high, 4);
    }
  }
}

HWY_INLINE void read_codes8(const uint8_t* words, Codes& codes) {
  uint32_t by_row[kPanelRows][kChunk / 4];
  transpose(words, by_row);
  std::memcpy(codes.row, by_row, sizeof codes.row);
}

template <class Out>
HWY_INLINE void decode(const uint8_t* codes, float scale, float min, Out* out, size_t count) {
  const auto vscale = hn::Set(df, scale), vmin = hn::Set(df, min);
  for (size_t i = 0; i < count; i += kLanes) {
    const auto code = hn::ConvertTo(df, hn::PromoteTo(di, hn::LoadU(d8, codes + i)));
    store_as(df, hn::MulAdd(code, vscale, vmin), out + i);
  }
}

// Rows [r0, r1) of one panel; out is row r0.
template <class Out>
void coded_panel(const PackedWeights& w, size_t panel, size_t r0, size_t r1, Out* out,
                 size_t out_stride) {
  const bool is_w4 = w.format() == WeightFormat::kW4;
  const size_t group = w.group();
  const uint8_t* words = w.codes(panel);
  const uint16_t* params = w.params(panel);
  Codes codes;
  for (size_t c = 0; c < w.k(); c += kChunk) {
    is_w4 ? read_codes4(words, codes) : read_codes8(words, codes);
    words += kChunk * kPanelRows / (is_w4 ? 2 : 1);
    for (size_t part = 0; part < kChunk; part += group) {
      for (size_t r = r0; r < r1; ++r) {
        const float scale = f32_from_f16(params[r]);
        const float min = w.has_min() ? f32_from_f16(params[kPanelRows + r]) : 0.0f;
        decode(codes.row[r] + part, scale, is_w4 ? min : min - 128.0f * scale,
               out + (r - r0) * out_stride + c + part, group);
      }
      params += kPanelRows * (w.has_min() ? 2 : 1);
    }
  }
}

HWY_INLINE void store_half(uint16_t bits, float* out) { *out = kernels::f32_from_bf16(bits); }
HWY_INLINE void store_half(uint16_t bits, uint16_t* out) { *out = bits; }

template <class Out>
void bf16_panel(const PackedWeights& w, size_t panel, size_t r0, size_t r1, Out* out,
                size_t out_stride) {
  const auto* halves = reinterpret_cast<const uint16_t*>(w.codes(panel));
  for (size_t r = r0; r < r1; ++r, out += out_stride) {
    const uint16_t* pair = halves + r * 2;
    for (size_t c = 0; c + 1 < w.k(); c += 2, pair += kPanelRows * 2) {
      store_half(pair[0], out + c);
      store_half(pair[1], out + c + 1);
    }
    if (w.k() % 2 != 0) store_half(pair[0], out + w.k() - 1);
  }
}

template <class Out>
void f32_panel(const PackedWeights& w, size_t panel, size_t r0, size_t r1, Out* out,
               size_t out_stride) {
  const auto* values = reinterpret_cast<const float*>(w.codes(panel));
  for (size_t r = r0; r < r1; ++r, out += out_stride) {
    for (size_t c = 0; c < w.k(); ++c) store_one(values[c * kPanelRows + r], out + c);
  }
}

template <class Out>
void unpack(const PackedWeights& w, size_t n0, size_t n1, Out* out, size_t out_stride) {
  for (size_t row = n0; row < n1;) {
    const size_t panel = row / kPanelRows, r0 = row % kPanelRows;
    const size_t r1 = HWY_MIN(kPanelRows, r0 + n1 - row);
    if (w.format() == WeightFormat::kF32) {
      f32_panel(w, panel, r0, r1, out, out_stride);
    } else if (w.format() == WeightFormat::kBf16) {
      bf16_panel(w, panel, r0, r1, out, out_stride);
    } else {
      coded_panel(w, panel, r0, r1, out, out_stride);
    }
    out += (r1 - r0) * out_stride;
    row += r1 - r0;
  }
}

void unpack_f32(const PackedWeights& w, size_t n0, size_t n1, float* out, size_t out_stride) {
  unpack(w, n0, n1, out, out_stride);
}
void unpack_b16(const PackedWeights& w, size_t n0, size_t n1, uint16_t* out, size_t out_stride) {
  unpack(w, n0, n1, out, out_stride);
}

}  // namespace HWY_NAMESPACE
}  // namespace varve::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace varve::kernels::cpu {

HWY_EXPORT(unpack_f32);
HWY_EXPORT(unpack_b16);

void unpack_rows_f32(const PackedWeights& w, size_t n0, size_t n1, float* out, size_t out_stride) {
  HWY_DYNAMIC_DISPATCH(unpack_f32)(w, n0, n1, out, out_stride);
}

void unpack_rows_bf16(const PackedWeights& w, size_t n0, size_t n1, uint16_t* out,
                      size_t out_stride) {
  HWY_DYNAMIC_DISPATCH(unpack_b16)(w, n0, n1, out, out_stride);
}

}  // namespace varve::kernels::cpu
#endif  // HWY_ONCE
