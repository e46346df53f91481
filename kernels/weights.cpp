#include "kernels/weights.h"

#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "kernels/number.h"

namespace varve::kernels {
namespace {

constexpr size_t kAlignment = 64;

size_t checked_product(size_t a, size_t b) {
  size_t product;
  if (__builtin_mul_overflow(a, b, &product)) {
    throw std::length_error("packed weights: the size of the matrix overflows (" +
                            std::to_string(a) + " x " + std::to_string(b) + ")");
  }
  return product;
}

size_t code_bytes_of_panel(WeightFormat format, size_t k) {
  switch (format) {
    case WeightFormat::kW4:
      return checked_product(k / 2, kPanelRows);
    case WeightFormat::kW8:
      return checked_product(k, kPanelRows);
    case WeightFormat::kBf16:
      return checked_product((k + k % 2) * 2, kPanelRows);
    case WeightFormat::kF32:
      return checked_product(checked_product(k, 4), kPanelRows);
  }
  throw std::invalid_argument("packed weights: unknown format");
}

bool is_coded(WeightFormat format) {
  return format == WeightFormat::kW4 || format == WeightFormat::kW8;
}

}  // namespace

void PackedWeights::Free::operator()(uint8_t* bytes) const {
  ::operator delete[](bytes, std::align_val_t(kAlignment));
}

PackedWeights::PackedWeights(WeightFormat format, size_t n, size_t k, size_t group, bool has_min)
    : format_(format), n_(n), k_(k), group_(group), has_min_(format == WeightFormat::kW4) {
  size_t params_bytes = 0;
  if (is_coded(format)) {
    const bool group_is_known = group == 32 || (format == WeightFormat::kW8 && group == 16);
    if (!group_is_known || k % 32 != 0) {
      throw std::invalid_argument("packed weights: group " + std::to_string(group) + " and k " +
                                  std::to_string(k) +
                                  "; expected k a multiple of 32 and group 32 (or 16 with 8 bits)");
    }
    has_min_ = has_min_ || has_min;
    params_bytes = k / group * (has_min_ ? 2 : 1) * kPanelRows * sizeof(uint16_t);
  }
  codes_bytes_ = code_bytes_of_panel(format, k);
  panel_bytes_ = (codes_bytes_ + params_bytes + kAlignment - 1) / kAlignment * kAlignment;
  const size_t total = checked_product(panels(), panel_bytes_);
  bytes_.reset(new (std::align_val_t(kAlignment)) uint8_t[total]);
  std::memset(bytes_.get(), 0, total);
}

void PackedWeights::check_rows(WeightFormat format, size_t row0, size_t rows) const {
  if (format != format_) {
    throw std::invalid_argument("packed weights: rows of another format than the matrix");
  }
  if (row0 > n_ || rows > n_ - row0) {
    throw std::out_of_range("packed weights: rows " + std::to_string(row0) + " to " +
                            std::to_string(row0 + rows) + " of " + std::to_string(n_));
  }
}

void PackedWeights::store_params(size_t row, const float* scale, const float* min) {
  auto* out = reinterpret_cast<uint16_t*>(row_codes(row) + codes_bytes_) + row % kPanelRows;
  for (size_t g = 0; g < k_ / group_; ++g) {
    *out = f16_from_f32(scale[g]);
    out += kPanelRows;
    if (!has_min_) continue;
    *out = f16_from_f32(min[g]);
    out += kPanelRows;
  }
}

void PackedWeights::pack_w4(size_t row0, size_t rows, const uint8_t* codes, const float* scale,
                            const float* min) {
  check_rows(WeightFormat::kW4, row0, rows);
  const size_t groups = k_ / kW4Group;
  for (size_t i = 0; i < rows; ++i) {
    uint8_t* out = row_codes(row0 + i) + (row0 + i) % kPanelRows * 4;
    const uint8_t* in = codes + i * k_;
    for (size_t j = 0; j < k_ / 8; ++j) {
      for (size_t b = 0; b < 4; ++b) {
        out[j * kPanelRows * 4 + b] =
            static_cast<uint8_t>((in[8 * j + b] & 15) | (in[8 * j + 4 + b] & 15) << 4);
      }
    }
    store_params(row0 + i, scale + i * groups, min + i * groups);
  }
}

void PackedWeights::pack_w8(size_t row0, size_t rows, const int8_t* codes, const float* scale,
                            const float* min) {
  check_rows(WeightFormat::kW8, row0, rows);
  if (has_min_ != (min != nullptr)) {
    throw std::invalid_argument("packed weights: mins given do not match has_min");
  }
  const size_t groups = k_ / group_;
  for (size_t i = 0; i < rows; ++i) {
    uint8_t* out = row_codes(row0 + i) + (row0 + i) % kPanelRows * 4;
    for (size_t c = 0; c < k_; ++c) {
      out[c / 4 * kPanelRows * 4 + c % 4] = static_cast<uint8_t>(codes[i * k_ + c] + 128);
    }
    store_params(row0 + i, scale + i * groups, has_min_ ? min + i * groups : nullptr);
  }
}

void PackedWeights::pack_bf16(size_t row0, size_t rows, const float* values) {
  check_rows(WeightFormat::kBf16, row0, rows);
  for (size_t i = 0; i < rows; ++i) {
    auto* out = reinterpret_cast<uint16_t*>(row_codes(row0 + i)) + (row0 + i) % kPanelRows * 2;
    for (size_t c = 0; c < k_; ++c) {
      out[c / 2 * kPanelRows * 2 + c % 2] = bf16_from_f32(values[i * k_ + c]);
    }
  }
}

void PackedWeights::pack_f32(size_t row0, size_t rows, const float* values) {
  check_rows(WeightFormat::kF32, row0, rows);
  for (size_t i = 0; i < rows; ++i) {
    auto* out = reinterpret_cast<float*>(row_codes(row0 + i)) + (row0 + i) % kPanelRows;
    for (size_t c = 0; c < k_; ++c) out[c * kPanelRows] = values[i * k_ + c];
  }
}

float PackedWeights::at(size_t row, size_t col) const {
  const size_t panel = row / kPanelRows, lane = row % kPanelRows;
  const uint8_t* in = codes(panel);
  if (format_ == WeightFormat::kF32) {
    return reinterpret_cast<const float*>(in)[col * kPanelRows + lane];
  }
  if (format_ == WeightFormat::kBf16) {
    const auto* pairs = reinterpret_cast<const uint16_t*>(in);
    return f32_from_bf16(pairs[(col / 2 * kPanelRows + lane) * 2 + col % 2]);
  }
  const uint16_t* group = params(panel) + col / group_ * (has_min_ ? 2 : 1) * kPanelRows + lane;
  const float scale = f32_from_f16(group[0]);
  const float min = has_min_ ? f32_from_f16(group[kPanelRows]) : 0.0f;
  if (format_ == WeightFormat::kW8) {
    return scale * static_cast<float>(in[(col / 4 * kPanelRows + lane) * 4 + col % 4] - 128) + min;
  }
  const uint8_t both = in[(col / 8 * kPanelRows + lane) * 4 + col % 4];
  return scale * static_cast<float>(col % 8 < 4 ? both & 15 : both >> 4) + min;
}

}  // namespace varve::kernels
