// Attention of one decoded token: 3 query heads of 64 channels over the pages of a KV head.
// heads:1 stays in the caches, heads:90 comes from memory. bandwidth_share is of what one core
// reads from memory, measured first.
#include <benchmark/benchmark.h>

#include "bench/micro/decode_text.h"

namespace varve::kernels {
namespace {

void attend_rows(benchmark::State& state) {
  const auto format = static_cast<KvFormat>(state.range(0));
  const auto n_pages = static_cast<size_t>(state.range(1));
  const DecodeText text(static_cast<size_t>(state.range(2)), n_pages, format);
  float o[DecodeText::kGroup * DecodeText::kDim], lse[DecodeText::kGroup];
  const double bandwidth = memory_bandwidth();
  for (auto _ : state) {
    for (size_t h = 0; h < text.n_heads(); ++h) {
      cpu::attend_rows(text.tile(), text.pages(h), n_pages, o, sizeof o / sizeof *o, lse, 1);
      benchmark::DoNotOptimize(o);
    }
  }
  const size_t page = body_bytes(format, DecodeText::kDim) +
                      (format == KvFormat::kInt8 ? index_bytes(DecodeText::kDim) : 0);
  const auto heads = static_cast<double>(state.iterations() * text.n_heads());
  using benchmark::Counter;
  state.counters["s_per_head"] = Counter(heads, Counter::kIsRate | Counter::kInvert);
  state.counters["bandwidth_share"] =
      Counter(heads * static_cast<double>(n_pages * page) / bandwidth, Counter::kIsRate);
}
BENCHMARK(attend_rows)
    ->ArgNames({"format", "pages", "heads"})
    ->ArgsProduct({{1, 2, 3}, {25, 75}, {1, 90}})
    ->UseRealTime();

}  // namespace
}  // namespace varve::kernels
