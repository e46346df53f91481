// Encoding of fresh pages, as prefill does once per token. GB/s counts the f32 read.
#include <benchmark/benchmark.h>

#include <vector>

#include "tests/numeric/page_scene.h"

namespace varve::kernels {
namespace {

constexpr size_t kDim = 64, kPages = 16;

struct Fresh {
  std::vector<float> k, v;
  std::vector<uint8_t> index = std::vector<uint8_t>(index_bytes(kDim));
  std::vector<uint8_t> body = std::vector<uint8_t>(body_bytes(KvFormat::kF32, kDim));
  Fresh() {
    PageScene scene(kDim, kDim, 1, 1);
    k = scene.normal(kPages * kBlockTokens * kDim);
    v = scene.normal(kPages * kBlockTokens * kDim);
  }
};

void count_bytes(benchmark::State& state, size_t tensors) {
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kPages * kBlockTokens * kDim *
                                               sizeof(float) * tensors));
}

void make_index(benchmark::State& state) {
  Fresh fresh;
  for (auto _ : state) {
    for (size_t p = 0; p < kPages; ++p) {
      cpu::make_index(&fresh.k[p * kBlockTokens * kDim], ~0u, kDim, fresh.index.data());
      benchmark::ClobberMemory();
    }
  }
  count_bytes(state, 1);
}
BENCHMARK(make_index);

void encode(benchmark::State& state) {
  Fresh fresh;
  const auto format = static_cast<KvFormat>(state.range(0));
  cpu::make_index(fresh.k.data(), ~0u, kDim, fresh.index.data());
  for (auto _ : state) {
    for (size_t p = 0; p < kPages; ++p) {
      const size_t at = p * kBlockTokens * kDim;
      cpu::encode(format, &fresh.k[at], &fresh.v[at], kDim, fresh.index.data(), fresh.body.data());
      benchmark::ClobberMemory();
    }
  }
  count_bytes(state, 2);
}
BENCHMARK(encode)->ArgName("format")->DenseRange(1, 3);

void decode(benchmark::State& state) {
  Fresh fresh;
  const auto format = static_cast<KvFormat>(state.range(0));
  cpu::make_index(fresh.k.data(), ~0u, kDim, fresh.index.data());
  cpu::encode(format, fresh.k.data(), fresh.v.data(), kDim, fresh.index.data(), fresh.body.data());
  for (auto _ : state) {
    for (size_t p = 0; p < kPages; ++p) {
      const size_t at = p * kBlockTokens * kDim;
      cpu::decode(format, fresh.index.data(), fresh.body.data(), kDim, &fresh.k[at], &fresh.v[at]);
      benchmark::ClobberMemory();
    }
  }
  count_bytes(state, 2);
}
BENCHMARK(decode)->ArgName("format")->DenseRange(1, 3);

}  // namespace
}  // namespace varve::kernels
