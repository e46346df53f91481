#include "tools/varve/machine.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <thread>
#include <vector>

#include "kernels/cpu_target.h"
#include "kernels/gemm.h"
#include "kernels/peak.h"

namespace varve::cli {
namespace {

constexpr size_t kReadBytes = size_t{128} << 20;  // per core: larger than its share of any cache

// The value of the first line "name : value" of a file in /proc, or "".
std::string proc_value(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, name.size(), name) != 0) continue;
    const size_t start = line.find_first_not_of(" \t", colon + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

uint64_t meminfo_bytes(const char* name) {
  uint64_t kib = 0;
  std::istringstream(proc_value("/proc/meminfo", name)) >> kib;
  return kib << 10;
}

// A control group's memory limit (v2), or the largest number.
uint64_t memory_limit_bytes() {
  std::ifstream file("/sys/fs/cgroup/memory.max");
  uint64_t bytes = 0;
  return file >> bytes ? bytes : UINT64_MAX;
}

uint32_t usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0)
    return std::max(1u, std::thread::hardware_concurrency());
  return static_cast<uint32_t>(CPU_COUNT(&set));
}

// The sum of measure(core) over threads that run at the same time.
double on_all_cores(uint32_t n_cores, const std::function<double(uint32_t core)>& measure) {
  std::vector<double> results(n_cores);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < n_cores; ++i) threads.emplace_back([&, i] { results[i] = measure(i); });
  double sum = 0;
  for (uint32_t i = 0; i < n_cores; ++i) {
    threads[i].join();
    sum += results[i];
  }
  return sum;
}

// Filled first: a core that still fills its share would leave the others more than theirs.
double read_bandwidth(uint32_t n_cores, double seconds) {
  const std::vector<std::vector<char>> data(n_cores, std::vector<char>(kReadBytes, 1));
  return on_all_cores(n_cores, [&](uint32_t core) {
    return kernels::measure_read_bandwidth(data[core].data(), kReadBytes, seconds);
  });
}

}  // namespace

Machine measure_machine(double seconds) {
  Machine machine;
  const kernels::CpuFeatures features = kernels::cpu_features();
  machine.cpu_name = proc_value("/proc/cpuinfo", "model name");
  machine.cpu_features = kernels::describe_cpu();
  machine.kernel_target = std::string(kernels::cpu_target_name());
  machine.has_avx2 = features.avx2;
  machine.has_avx512 = features.avx512f;
  machine.has_bf16_products = features.avx512_bf16 || features.amx_bf16;
  machine.has_amx = features.amx_bf16;
  machine.n_cores = usable_cores();
  machine.memory_bytes = std::min(meminfo_bytes("MemTotal"), memory_limit_bytes());
  machine.available_bytes = std::min(meminfo_bytes("MemAvailable"), machine.memory_bytes);
  machine.read_gb_per_s = read_bandwidth(machine.n_cores, seconds) / 1e9;
  const auto gemm = [&](kernels::GemmType type) {
    return on_all_cores(machine.n_cores,
                        [=](uint32_t) { return kernels::measure_gemm_peak(type, seconds); }) /
           1e9;
  };
  machine.gemm_f32_gflops = gemm(kernels::GemmType::kF32);
  machine.gemm_bf16_gflops = gemm(kernels::GemmType::kBf16);
  return machine;
}

}  // namespace varve::cli
