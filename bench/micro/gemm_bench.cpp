// Many-row products of a model of 135M parameters (576 wide, 1536 in the feed-forward layer), in
// one thread. `share` is of the best rate of the same kind of product on large square-ish matrices.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "bench/micro/machine_peak.h"
#include "kernels/gemm.h"

namespace varve::kernels {
namespace {

void gemm(benchmark::State& state, GemmType type, bool w_is_kn) {
  GemmShape s;
  s.m = static_cast<size_t>(state.range(0));
  s.n = s.ldc = static_cast<size_t>(state.range(1));
  s.k = s.lda = static_cast<size_t>(state.range(2));
  s.type = type;
  s.w_is_kn = w_is_kn;
  s.ldw = w_is_kn ? s.n : s.k;
  const size_t size = type == GemmType::kF32 ? 4 : 2;
  const std::vector<uint8_t> a(s.m * s.k * size), w(s.n * s.k * size);
  std::vector<float> c(s.m * s.n);
  const double peak = gemm_peak(type);
  cpu::gemm(s, a.data(), w.data(), c.data());
  for (auto _ : state) cpu::gemm(s, a.data(), w.data(), c.data());
  const double work = 2.0 * static_cast<double>(s.m * s.n * s.k * state.iterations());
  state.counters["flop/s"] = benchmark::Counter(work, benchmark::Counter::kIsRate);
  state.counters["share"] = benchmark::Counter(work / peak, benchmark::Counter::kIsRate);
}

void model_shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"m", "n", "k"});
  for (const int m : {32, 128, 512}) {
    b->Args({m, 960, 576})->Args({m, 576, 576})->Args({m, 3072, 576})->Args({m, 576, 1536});
  }
}

BENCHMARK_CAPTURE(gemm, bf16, GemmType::kBf16, false)->Apply(model_shapes);
BENCHMARK_CAPTURE(gemm, f32, GemmType::kF32, false)->Apply(model_shapes);

// Attention of a query tile: scores against 512 keys, then their weighted values.
BENCHMARK_CAPTURE(gemm, scores_bf16, GemmType::kBf16, false)
    ->ArgNames({"m", "n", "k"})
    ->Args({192, 512, 64});
BENCHMARK_CAPTURE(gemm, values_bf16, GemmType::kBf16, true)
    ->ArgNames({"m", "n", "k"})
    ->Args({192, 64, 512});

// A tail of one row: the price of padding to 32.
BENCHMARK_CAPTURE(gemm, tail_bf16, GemmType::kBf16, false)
    ->ArgNames({"m", "n", "k"})
    ->Args({1, 576, 576});

}  // namespace
}  // namespace varve::kernels
