// A weight matrix W [n out rows][k in], packed for products with a few rows of x (matvec.h) and
// unpacked in row ranges for products with many rows (unpack.h, gemm.h).
//
// Sixteen rows form a panel; the last panel is padded with zero rows. A panel is its codes, then
// its parameters, padded to 64 bytes. Row r of a panel is always in lane r of a 16-lane vector:
//   kW4    codes  [k/8][16] u32: byte b of a word holds code 8 j + b in its low nibble and code 8 j
//   + 4 + b in its high nibble
//          params [k/32][2][16] f16: scale, then min                    w = scale * code + min
//   kW8    codes  [k/4][16][4] u8: code + 128
//          params [k/group][1 or 2][16] f16: scale, then min if any     w = scale * code (+ min)
//   kBf16  [ceil(k/2)][16][2] bf16
//   kF32   [k][16] f32
//
// Scales and mins are rounded to f16: Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 are held exactly; the
// products of two scales of Q4_K, Q5_K and Q6_K are rounded by at most 2^-11 of their size (f16
// nearest even, 2^-12 on average).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace varve::kernels {

enum class WeightFormat { kW4, kW8, kBf16, kF32 };

inline constexpr size_t kPanelRows = 16;
inline constexpr size_t kW4Group = 32;

// Owns the packed bytes (zero until packed). Move-only. Reading is thread-safe; threads may pack
// different rows at once as long as no two of them write the same panel.
class PackedWeights {
 public:
  PackedWeights() = default;

  // group: consecutive inputs that share a scale: 32 for kW4, 16 or 32 for kW8, ignored otherwise.
  // k must be a multiple of 32 for kW4 and kW8. has_min: kW8 only. Throws std::invalid_argument
  // (what was asked, what is allowed), std::length_error when the size overflows, std::bad_alloc.
  PackedWeights(WeightFormat format, size_t n, size_t k, size_t group = kW4Group,
                bool has_min = false);

  // Fill rows [row0, row0 + rows). Arrays are row-major over those rows. Throws std::out_of_range
  // for rows outside the matrix and std::invalid_argument when the format differs.
  void pack_w4(size_t row0, size_t rows, const uint8_t* codes /* [rows][k] 0..15 */,
               const float* scale /* [rows][k/32] */, const float* min /* [rows][k/32] */);
  void pack_w8(size_t row0, size_t rows, const int8_t* codes /* [rows][k] */,
               const float* scale /* [rows][k/group] */,
               const float* min /* [rows][k/group], NULL unless has_min */);
  void pack_bf16(size_t row0, size_t rows, const float* values /* [rows][k] */);
  void pack_f32(size_t row0, size_t rows, const float* values /* [rows][k] */);

  WeightFormat format() const { return format_; }
  size_t n() const { return n_; }
  size_t k() const { return k_; }
  size_t group() const { return group_; }
  bool has_min() const { return has_min_; }
  size_t bytes() const { return panels() * panel_bytes_; }
  size_t panels() const { return n_ / kPanelRows + (n_ % kPanelRows != 0); }
  size_t panel_bytes() const { return panel_bytes_; }

  const uint8_t* codes(size_t panel) const { return bytes_.get() + panel * panel_bytes_; }
  const uint16_t* params(size_t panel) const {
    return reinterpret_cast<const uint16_t*>(codes(panel) + codes_bytes_);
  }

  // One weight, in f32. Slow: the definition of the layout, for tests and ref.
  float at(size_t row, size_t col) const;

 private:
  struct Free {
    void operator()(uint8_t* bytes) const;
  };

  void check_rows(WeightFormat format, size_t row0, size_t rows) const;
  uint8_t* row_codes(size_t row) { return bytes_.get() + row / kPanelRows * panel_bytes_; }
  void store_params(size_t row, const float* scale, const float* min);

  WeightFormat format_ = WeightFormat::kF32;
  size_t n_ = 0, k_ = 0, group_ = kW4Group;
  bool has_min_ = false;
  size_t codes_bytes_ = 0, panel_bytes_ = 0;
  std::unique_ptr<uint8_t[], Free> bytes_;
};

}  // namespace varve::kernels
