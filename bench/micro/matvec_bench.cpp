// Few-row products and unpacking, in one thread. `cached` weights (1536 x 576) stay in the
// second-level cache; the others (256 MiB) come from memory. `weights/s` counts each weight once
// however many rows use it; `share` is of the memory bandwidth of one thread.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "bench/micro/machine_peak.h"
#include "kernels/matvec.h"
#include "kernels/unpack.h"

namespace varve::kernels {
namespace {

constexpr size_t kInputs = 576, kCachedRows = 1536;
constexpr size_t kMemoryBytes = size_t{256} << 20;

// Zero weights: the arithmetic does not depend on the values.
PackedWeights weights(WeightFormat format, bool cached) {
  const PackedWeights small(format, kCachedRows, kInputs);
  const size_t copies = cached ? 1 : kMemoryBytes / small.bytes() + 1;
  return PackedWeights(format, kCachedRows * copies, kInputs);
}

void count(benchmark::State& state, const PackedWeights& w) {
  const double passes = static_cast<double>(state.iterations());
  const double numbers = passes * static_cast<double>(w.n() * w.k());
  const double bytes = passes * static_cast<double>(w.bytes());
  state.counters["weights/s"] = benchmark::Counter(numbers, benchmark::Counter::kIsRate);
  state.counters["bytes/s"] = benchmark::Counter(bytes, benchmark::Counter::kIsRate);
  state.counters["share"] = benchmark::Counter(bytes / memory_peak(), benchmark::Counter::kIsRate);
}

void matvec(benchmark::State& state, WeightFormat format) {
  const size_t m = static_cast<size_t>(state.range(0));
  const PackedWeights w = weights(format, state.range(1) != 0);
  const std::vector<float> x(m * kInputs, 0.5f);
  std::vector<float> y(m * w.n());
  for (auto _ : state) {
    cpu::matvec(w, x.data(), m, kInputs, y.data(), w.n(), 0, w.n());
    benchmark::ClobberMemory();
  }
  count(state, w);
}

void few_rows(benchmark::internal::Benchmark* b) {
  b->ArgNames({"m", "cached"})->Args({1, 0});
  for (const int m : {1, 2, 4, 8, 16}) b->Args({m, 1});
}

BENCHMARK_CAPTURE(matvec, w4, WeightFormat::kW4)->Apply(few_rows);
BENCHMARK_CAPTURE(matvec, w8, WeightFormat::kW8)->Apply(few_rows);
BENCHMARK_CAPTURE(matvec, bf16, WeightFormat::kBf16)->Apply(few_rows);
BENCHMARK_CAPTURE(matvec, f32, WeightFormat::kF32)->Apply(few_rows);

void unpack_bf16(benchmark::State& state, WeightFormat format) {
  const PackedWeights w = weights(format, true);
  std::vector<uint16_t> out(w.n() * w.k());
  for (auto _ : state) {
    cpu::unpack_rows_bf16(w, 0, w.n(), out.data(), w.k());
    benchmark::ClobberMemory();
  }
  count(state, w);
}

BENCHMARK_CAPTURE(unpack_bf16, w4, WeightFormat::kW4);
BENCHMARK_CAPTURE(unpack_bf16, w8, WeightFormat::kW8);
BENCHMARK_CAPTURE(unpack_bf16, bf16, WeightFormat::kBf16);

}  // namespace
}  // namespace varve::kernels
