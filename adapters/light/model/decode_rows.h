#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/weights.h"

namespace varve::light {

// How PackedWeights holds the rows of one stored tensor.
struct PackedShape {
  kernels::WeightFormat format = kernels::WeightFormat::kF32;
  size_t group = kernels::kW4Group;
  bool has_min = false;
  bool operator==(const PackedShape&) const = default;
};

// The packed form of a coded ggml type:
//   Q4_0 Q4_1 Q4_K                  4-bit codes, groups of 32, min
//   Q5_0 Q8_0 IQ4_NL IQ4_XS         8-bit codes, groups of 32
//   Q5_1 Q5_K                       8-bit codes, groups of 32, min
//   Q6_K Q3_K                       8-bit codes, groups of 16
//   Q2_K                            8-bit codes, groups of 16, min
// The codes are the file's own; only a group scale that is a product of two stored numbers (the K
// types and IQ4_XS) is rounded, to f16. Every other quantised type has the form kBf16: it is
// expanded by ggml and rounded to bf16 (relative error up to 2^-9, far below the error of its own
// codes). Float types depend on their values, see float_shape().
PackedShape coded_shape(uint32_t ggml_type);
bool is_float_type(uint32_t ggml_type);  // F32, F16, BF16

// The narrower of kBf16 and kF32 that holds every one of `values` exactly. So F16 files that were
// converted from bf16 stay at 16 bits, and others cost 32: no weight is ever rounded for space.
bool fits_bf16(std::span<const float> values);

// Space for the decoded rows of one chunk, reused between chunks.
struct DecodedRows {
  std::vector<uint8_t> codes4;
  std::vector<int8_t> codes8;
  std::vector<float> scale, min;
  std::vector<float> values;
};

// Expands `count` stored elements (a multiple of the type's block) to f32 by ggml's own definition.
void expand(uint32_t ggml_type, const std::byte* stored, float* out, size_t count);

// Decodes one stored row of `cols` elements as row `row` of `out`, whose vectors the caller sized
// for the shape: codes or values [rows][cols], scale and min [rows][cols / group].
void decode_row(uint32_t ggml_type, const PackedShape& shape, const std::byte* stored, size_t cols,
                size_t row, DecodedRows& out);

// Sizes `out` for `rows` rows of `cols`.
void resize(DecodedRows& out, const PackedShape& shape, size_t rows, size_t cols);

}  // namespace varve::light
