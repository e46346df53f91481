#include "kernels/peak.h"

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/peak.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace varve::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Reads all of data; the sum keeps the compiler from leaving it out.
uint32_t read_all(const uint32_t* data, size_t count) {
  const hn::ScalableTag<uint32_t> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  auto a = hn::Zero(d), b = hn::Zero(d);
  for (size_t i = 0; i + 2 * kLanes <= count; i += 2 * kLanes) {
    a = hn::Xor(a, hn::LoadU(d, data + i));
    b = hn::Xor(b, hn::LoadU(d, data + i + kLanes));
  }
  return hn::GetLane(hn::Xor(a, b));
}

}  // namespace HWY_NAMESPACE
}  // namespace varve::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace varve::kernels {

HWY_EXPORT(read_all);

namespace {

// The thread's CPU time: what other programs take of the cores does not count.
double now_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// The shortest time of one call of `work`, tried for `seconds`.
template <class Work>
double shortest_seconds(double seconds, Work work) {
  const double start = now_seconds();
  double best = 1e30, before = start;
  do {
    work();
    const double after = now_seconds();
    best = std::min(best, after - before);
    before = after;
  } while (before - start < seconds);
  return std::max(best, 1e-9);
}

}  // namespace

double measure_read_bandwidth(const void* data, size_t bytes, double seconds) {
  volatile uint32_t sink = 0;
  const double start = now_seconds();
  size_t rounds = 0;
  double elapsed = 0;
  do {
    sink = sink + HWY_DYNAMIC_DISPATCH(read_all)(static_cast<const uint32_t*>(data), bytes / 4);
    ++rounds;
    elapsed = now_seconds() - start;
  } while (elapsed < seconds);
  return static_cast<double>(rounds) * static_cast<double>(bytes) / std::max(elapsed, 1e-9);
}

double measure_gemm_peak(GemmType type, double seconds) {
  GemmShape s;
  s.m = 512;
  s.n = s.k = s.lda = s.ldw = s.ldc = 1024;
  s.type = type;
  const size_t size = type == GemmType::kF32 ? 4 : 2;
  const std::vector<uint8_t> a(s.m * s.k * size), w(s.n * s.k * size);
  std::vector<float> c(s.m * s.n);
  cpu::gemm(s, a.data(), w.data(), c.data());  // makes the primitive
  const double best =
      shortest_seconds(seconds, [&] { cpu::gemm(s, a.data(), w.data(), c.data()); });
  return 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k) /
         best;
}

}  // namespace varve::kernels
#endif  // HWY_ONCE
