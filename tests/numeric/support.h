// Shared by the numeric tests: seeded data, errors, and running a check on every instruction set of
// this machine.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu_target.h"

namespace varve::kernels {

inline std::vector<float> random_floats(size_t count, uint32_t seed, float low = -1.0f,
                                        float high = 1.0f) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(generator);
  return values;
}

// |got - want| / |want| over whole vectors (2-norms).
inline double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2);
    size += std::pow(static_cast<double>(want[i]), 2);
  }
  return size > 0 ? std::sqrt(error / size) : std::sqrt(error);
}

// Calls check() once per instruction set that this CPU has, forced; the best is restored.
template <class Check>
void on_every_target(Check check) {
  size_t ran = 0;
  for (const char* name : {"sse2", "avx2", "avx512", "avx512_vnni"}) {
    if (!set_cpu_target(name)) continue;
    SCOPED_TRACE(std::string("target ") + name);
    EXPECT_EQ(cpu_target_name(), name);
    check();
    ++ran;
  }
  EXPECT_TRUE(set_cpu_target("best"));
  EXPECT_GE(ran, 1u);
}

}  // namespace varve::kernels
