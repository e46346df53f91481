#include "kernels/cpu_target.h"

#include <cpuid.h>
#include <hwy/targets.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <dnnl.hpp>

namespace varve::kernels {
namespace {

// The state components that the operating system saves and restores (XCR0).
uint64_t enabled_state() {
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 0;
  uint32_t low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

CpuFeatures detect() {
  constexpr uint64_t kAvxState = 0x6, kAvx512State = 0xe6, kTileState = 0x60000;
  const uint64_t state = enabled_state();
  uint32_t a = 0, b = 0, c = 0, d = 0, a1 = 0, b1 = 0, c1 = 0, d1 = 0;
  __get_cpuid_count(7, 0, &a, &b, &c, &d);
  __get_cpuid_count(7, 1, &a1, &b1, &c1, &d1);
  CpuFeatures f{};
  f.avx2 = (state & kAvxState) == kAvxState && (b & 1u << 5);
  f.avx512f = (state & kAvx512State) == kAvx512State && (b & 1u << 16) && (b & 1u << 30);
  f.avx512_vnni = f.avx512f && (c & 1u << 11);
  f.avx512_bf16 = f.avx512f && (a1 & 1u << 5);
  f.amx_bf16 = (state & kTileState) == kTileState && (d & 1u << 22);
  return f;
}

struct TargetRow {
  CpuTarget target;
  std::string_view name;
  int64_t hwy_mask;  // this target and the weaker ones
  dnnl::cpu_isa onednn;
};

// Highway 1.0 has no SSE2 vectors: its baseline is plain C++, compiled for SSE2.
constexpr TargetRow kTargets[] = {
    {CpuTarget::kSse2, "sse2", HWY_STATIC_TARGET, dnnl::cpu_isa::sse41},
    {CpuTarget::kAvx2, "avx2", HWY_AVX2 | HWY_STATIC_TARGET, dnnl::cpu_isa::avx2},
    {CpuTarget::kAvx512, "avx512", HWY_AVX3 | HWY_AVX2 | HWY_STATIC_TARGET,
     dnnl::cpu_isa::avx512_core},
    {CpuTarget::kAvx512Vnni, "avx512_vnni", HWY_AVX3 | HWY_AVX2 | HWY_STATIC_TARGET,
     dnnl::cpu_isa::avx512_core_vnni},
};

CpuTarget best_target() {
  const CpuFeatures f = cpu_features();
  // Highway's AVX-512 target asks for more than F and BW; believe it.
  const bool avx512 = f.avx512f && (hwy::SupportedTargets() & HWY_AVX3);
  if (avx512) return f.avx512_vnni ? CpuTarget::kAvx512Vnni : CpuTarget::kAvx512;
  return f.avx2 ? CpuTarget::kAvx2 : CpuTarget::kSse2;
}

std::atomic<CpuTarget>& current() {
  static std::atomic<CpuTarget> target = best_target();
  return target;
}

CpuTarget best() {
  static const CpuTarget target = current();  // before any change
  return target;
}

}  // namespace

CpuFeatures cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

std::string describe_cpu() {
  const CpuFeatures f = cpu_features();
  std::string text = f.avx2 ? "avx2" : "sse2";
  if (f.avx512f) text += " avx512f";
  if (f.avx512_vnni) text += " avx512_vnni";
  if (f.avx512_bf16) text += " avx512_bf16";
  if (f.amx_bf16) text += " amx_bf16";
  return text;
}

CpuTarget cpu_target() { return current().load(std::memory_order_relaxed); }

std::string_view cpu_target_name() { return kTargets[static_cast<int>(cpu_target())].name; }

bool set_cpu_target(std::string_view name) {
  const CpuTarget strongest = best();
  for (const TargetRow& row : kTargets) {
    if (name != row.name && !(name == "best" && row.target == strongest)) continue;
    if (row.target > strongest) return false;
    hwy::SetSupportedTargetsForTest(name == "best" ? 0 : row.hwy_mask);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    current() = row.target;
    return true;
  }
  return false;
}

std::string apply_cpu_target_env() {
  const char* name = std::getenv("VARVE_CPU_TARGET");
  if (name == nullptr || *name == '\0') return {};
  if (!set_cpu_target(name)) {
    return "VARVE_CPU_TARGET is \"" + std::string(name) +
           "\"; expected sse2, avx2, avx512, avx512_vnni or best, and one that this CPU has (" +
           describe_cpu() + ")";
  }
  if (std::string_view(name) != "best") {
    dnnl::set_max_cpu_isa(kTargets[static_cast<int>(cpu_target())].onednn);
  }
  return {};
}

}  // namespace varve::kernels
