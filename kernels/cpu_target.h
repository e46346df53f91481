// What this CPU offers and which instruction set the cpu kernels use.
#pragma once

#include <string>
#include <string_view>

namespace varve::kernels {

struct CpuFeatures {
  bool avx2, avx512f, avx512_vnni, avx512_bf16, amx_bf16;
};
CpuFeatures cpu_features();
std::string
describe_cpu();  // "avx2 avx512f avx512_vnni avx512_bf16"; "sse2" where there is nothing better

// Instruction sets in rising order. kAvx512Vnni adds the integer dot products to kAvx512.
enum class CpuTarget { kSse2, kAvx2, kAvx512, kAvx512Vnni };
CpuTarget cpu_target();
std::string_view cpu_target_name();  // one of the names below, never "best"

// Makes all cpu kernels of the process use "sse2", "avx2", "avx512", "avx512_vnni" or "best" (the
// start value). False, and nothing changed, for another name or one that this CPU lacks. Not to be
// called while another thread runs a kernel. gemm.h is not concerned: oneDNN chooses for itself.
bool set_cpu_target(std::string_view name);

// Applies the environment variable VARVE_CPU_TARGET, to oneDNN too. To be called at the start of a
// process, before any kernel. Returns an error text (found, expected), or an empty string.
std::string apply_cpu_target_env();

}  // namespace varve::kernels
