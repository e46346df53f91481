// The operations between the products, on rows of a model of 135M parameters, from cache, in one
// thread. `share` is of the memory bandwidth of one thread: above 1 these never are the limit of
// what streams from memory.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "bench/micro/machine_peak.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "kernels/softmax.h"
#include "kernels/swiglu.h"

namespace varve::kernels {
namespace {

constexpr size_t kWidth = 576, kHidden = 1536;

void count(benchmark::State& state, size_t bytes) {
  const double total = static_cast<double>(bytes) * static_cast<double>(state.iterations());
  state.counters["bytes/s"] = benchmark::Counter(total, benchmark::Counter::kIsRate);
  state.counters["share"] = benchmark::Counter(total / memory_peak(), benchmark::Counter::kIsRate);
}

void rms_norm_bf16(benchmark::State& state) {
  const std::vector<float> x(kWidth, 0.5f), w(kWidth, 1.0f);
  std::vector<uint16_t> y(kWidth);
  for (auto _ : state) {
    cpu::rms_norm_bf16(x.data(), w.data(), 1e-5f, y.data(), kWidth);
    benchmark::ClobberMemory();
  }
  count(state, kWidth * 10);
}
BENCHMARK(rms_norm_bf16);

void swiglu_bf16(benchmark::State& state) {
  const std::vector<float> gate(kHidden, 0.5f), up(kHidden, 1.0f);
  std::vector<uint16_t> y(kHidden);
  for (auto _ : state) {
    cpu::swiglu_bf16(gate.data(), up.data(), y.data(), kHidden);
    benchmark::ClobberMemory();
  }
  count(state, kHidden * 10);
}
BENCHMARK(swiglu_bf16);

void softmax(benchmark::State& state) {
  std::vector<float> x(kHidden, 0.5f);
  for (auto _ : state) {
    benchmark::DoNotOptimize(cpu::softmax(x.data(), kHidden));
    benchmark::ClobberMemory();
  }
  count(state, kHidden * 8);
}
BENCHMARK(softmax);

void rope(benchmark::State& state) {
  std::vector<float> x(kWidth, 0.5f);
  const std::vector<float> cos(32, 1.0f), sin(32, 0.0f);
  for (auto _ : state) {
    cpu::rope_rows(x.data(), kWidth / 64, 64, 64, cos.data(), sin.data());
    benchmark::ClobberMemory();
  }
  count(state, kWidth * 8);
}
BENCHMARK(rope);

}  // namespace
}  // namespace varve::kernels
