// What this machine is and does: facts from the system, and two measures.
#pragma once

#include <cstdint>
#include <string>

namespace varve::cli {

struct Machine {
  std::string cpu_name;
  std::string cpu_features;   // "avx2 avx512f …"
  std::string kernel_target;  // what the kernels use: "avx512_vnni"
  bool has_avx2 = false, has_avx512 = false, has_bf16_products = false, has_amx = false;
  uint32_t n_cores = 0;       // that this process may use
  uint64_t memory_bytes = 0;  // of the machine, or its control group's limit
  uint64_t available_bytes = 0;
  double read_gb_per_s = 0;    // 10^9 bytes, all cores together
  double gemm_f32_gflops = 0;  // all cores together
  double gemm_bf16_gflops = 0;
};

// Takes some `seconds` for each of the three measures.
Machine measure_machine(double seconds);

}  // namespace varve::cli
