// C [m][n] f32 (+)= A [m][k] * W for many rows, in the calling thread. cpu: oneDNN, which chooses
// AMX, AVX512_BF16, AVX-512 or AVX2 by itself and makes one primitive per thread and shape; m is
// cut into pieces of 512, 256, 128, 64 and 32 rows (the last one padded in scratch), so the number
// of shapes stays small whatever m is. Touches nothing outside the matrices. Thread-safe: many
// threads may call at once, each with its own rows or columns of C; no OpenMP region is entered.
// Throws std::runtime_error (shape and oneDNN's reason) when oneDNN refuses, std::bad_alloc.
#pragma once

#include <cstddef>

namespace varve::kernels {

enum class GemmType { kF32, kBf16 };  // of A and W; bf16 products are summed in f32

struct GemmShape {
  size_t m = 0, n = 0, k = 0;
  size_t lda = 0, ldw = 0, ldc = 0;  // elements from row to row
  GemmType type = GemmType::kBf16;
  bool w_is_kn = false;     // W is [k][n]; else [n][k], out rows first
  bool accumulate = false;  // C += ; else C =
};

namespace ref {
void gemm(const GemmShape& shape, const void* a, const void* w, float* c);
}
namespace cpu {
void gemm(const GemmShape& shape, const void* a, const void* w, float* c);

// Whether bf16 products are faster than f32 ones here (AVX512_BF16 or AMX). kBf16 works everywhere,
// but slower than kF32 without.
bool gemm_prefers_bf16();
}  // namespace cpu
}  // namespace varve::kernels
