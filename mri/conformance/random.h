// Numbers from a seed: the same on every machine.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace mri::conformance {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {  // splitmix64
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // 0 .. n - 1
  uint64_t below(uint64_t n) { return next() % n; }
  uint32_t below32(uint32_t n) { return static_cast<uint32_t>(next() % n); }
  bool chance(uint32_t percent) { return below(100) < percent; }
  // (0, 1]
  double unit() { return static_cast<double>((next() >> 11) + 1) * 0x1p-53; }
  float normal() {
    return static_cast<float>(std::sqrt(-2 * std::log(unit())) *
                              std::cos(6.283185307179586 * unit()));
  }
  // Any bits: also NaN, infinite and subnormal.
  float any_float() {
    const auto bits = static_cast<uint32_t>(next());
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  std::vector<float> normals(uint64_t n, float scale = 1) {
    std::vector<float> x(n);
    for (float& value : x) value = scale * normal();
    return x;
  }

 private:
  uint64_t state_;
};

}  // namespace mri::conformance
