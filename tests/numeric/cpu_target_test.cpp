#include "kernels/cpu_target.h"

#include <cstdlib>

#include "kernels/peak.h"
#include "tests/numeric/support.h"

namespace varve::kernels {
namespace {

TEST(CpuTarget, ForcesAndRestores) {
  ASSERT_TRUE(set_cpu_target("best"));
  const auto best = cpu_target();
  ASSERT_TRUE(set_cpu_target("sse2"));
  EXPECT_EQ(cpu_target(), CpuTarget::kSse2);
  EXPECT_FALSE(set_cpu_target("avx9000"));
  EXPECT_EQ(cpu_target(), CpuTarget::kSse2);
  ASSERT_TRUE(set_cpu_target("best"));
  EXPECT_EQ(cpu_target(), best);
  EXPECT_EQ(best == CpuTarget::kAvx512Vnni, cpu_features().avx512_vnni);
}

TEST(CpuTarget, EnvironmentNamesTheTarget) {
  setenv("VARVE_CPU_TARGET", "pentium", 1);
  const std::string error = apply_cpu_target_env();
  EXPECT_NE(error.find("pentium"), std::string::npos);
  EXPECT_NE(error.find("avx512_vnni"), std::string::npos);
  setenv("VARVE_CPU_TARGET", "best", 1);
  EXPECT_EQ(apply_cpu_target_env(), "");
  unsetenv("VARVE_CPU_TARGET");
  EXPECT_EQ(apply_cpu_target_env(), "");
}

TEST(Peak, MeasuresSomething) {
  const std::vector<uint32_t> data(1 << 16, 1);
  EXPECT_GT(measure_read_bandwidth(data.data(), data.size() * 4, 0.001), 1e6);
  EXPECT_GT(measure_gemm_peak(GemmType::kF32, 0.001), 1e6);
}

}  // namespace
}  // namespace varve::kernels
