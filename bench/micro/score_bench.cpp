// Selection of one decoded token at 16K tokens: 512 pages by radius, the best 128 by sketch, the
// best 16 of those. heads:1 stays in the caches, heads:90 comes from memory.
#include <benchmark/benchmark.h>

#include "bench/micro/decode_text.h"
#include "kernels/top_k.h"

namespace varve::kernels {
namespace {

constexpr size_t kPages = 512, kKept = 128, kChosen = 16;

void report(benchmark::State& state, const DecodeText& text, size_t bytes_per_head) {
  const auto heads = static_cast<double>(state.iterations() * text.n_heads());
  const double bandwidth = memory_bandwidth();
  using benchmark::Counter;
  state.counters["s_per_head"] = Counter(heads, Counter::kIsRate | Counter::kInvert);
  state.counters["bandwidth_share"] =
      Counter(heads * static_cast<double>(bytes_per_head) / bandwidth, Counter::kIsRate);
}

void score(benchmark::State& state, Score how, size_t n_pages, size_t bytes_per_page) {
  const DecodeText text(static_cast<size_t>(state.range(0)), n_pages, KvFormat::kInt8);
  std::vector<float> scores(n_pages);
  for (auto _ : state) {
    for (size_t h = 0; h < text.n_heads(); ++h) {
      cpu::score_pages(text.tile(), text.pages(h), n_pages, how, 1, scores.data());
      benchmark::DoNotOptimize(scores.data());
    }
  }
  report(state, text, n_pages * bytes_per_page);
}

void radius(benchmark::State& state) { score(state, Score::kRadius, kPages, 6 * DecodeText::kDim); }
BENCHMARK(radius)->ArgName("heads")->Arg(1)->Arg(90)->UseRealTime();

void sketch(benchmark::State& state) { score(state, Score::kSketch, kKept, 12 * DecodeText::kDim); }
BENCHMARK(sketch)->ArgName("heads")->Arg(1)->Arg(90)->UseRealTime();

void top_k(benchmark::State& state) {
  const auto n = static_cast<size_t>(state.range(0));
  std::vector<float> scores = PageScene(8, 8, 1, 1).normal(n);
  std::vector<uint32_t> out(n);
  for (float& x : scores) x = std::exp(4 * x);
  for (auto _ : state) {
    benchmark::DoNotOptimize(cpu::top_k(scores.data(), n, n / 4, out.data()));
  }
}
BENCHMARK(top_k)->Arg(128)->Arg(512)->Arg(4096);

// Everything that hybrid attention does per token and KV head.
void choose_and_attend(benchmark::State& state) {
  const DecodeText text(static_cast<size_t>(state.range(0)), kPages, KvFormat::kInt8);
  std::vector<float> scores(kPages);
  std::vector<uint32_t> places(kPages);
  std::vector<KvPage> kept(kKept), chosen;
  float o[DecodeText::kGroup * DecodeText::kDim], lse[DecodeText::kGroup];
  for (auto _ : state) {
    for (size_t h = 0; h < text.n_heads(); ++h) {
      const KvPage* pages = text.pages(h);
      cpu::score_pages(text.tile(), pages, kPages, Score::kRadius, 1, scores.data());
      cpu::top_k(scores.data(), kPages, kKept, places.data());
      for (size_t i = 0; i < kKept; ++i) kept[i] = pages[places[i]];
      cpu::score_pages(text.tile(), kept.data(), kKept, Score::kSketch, 1, scores.data());
      cpu::top_k(scores.data(), kKept, kChosen, places.data());
      chosen.assign(pages + kPages - 9, pages + kPages);  // the window
      for (size_t i = 0; i < kChosen; ++i) chosen.push_back(kept[places[i]]);
      cpu::attend_rows(text.tile(), chosen.data(), chosen.size(), o, sizeof o / sizeof *o, lse, 1);
      benchmark::DoNotOptimize(o);
    }
  }
  const size_t body = body_bytes(KvFormat::kInt8, DecodeText::kDim);
  report(state, text,
         kPages * 6 * DecodeText::kDim + kKept * 8 * DecodeText::kDim + (kChosen + 9) * body);
}
BENCHMARK(choose_and_attend)->ArgName("heads")->Arg(1)->Arg(90)->UseRealTime();

}  // namespace
}  // namespace varve::kernels
