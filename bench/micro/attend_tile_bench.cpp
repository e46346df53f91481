// attend_tile on a tile of dense prefill: 128 queries x 3 heads of 64 channels. TFLOP/s counts the
// two products; share is of the multiply-add peak of the instructions used, measured first.
#include <benchmark/benchmark.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/attend.h"
#include "kernels/cpu/attend_tile_steps.h"
#include "kernels/cpu_target.h"

namespace varve::kernels {
namespace {

constexpr uint32_t kDim = 64, kQueries = 128, kGroup = 3, kBlocks = 1100;

std::vector<float> normal(size_t n) {
  std::mt19937 random(1);
  std::normal_distribution<float> gauss;
  std::vector<float> x(n);
  for (float& value : x) value = gauss(random);
  return x;
}

// Older pages of a dense text and a tile of queries after them.
class Text {
 public:
  Text(KvFormat format, size_t n_pages)
      : angles_(kBlocks * kDim / 2), q_(normal(kQueries * kGroup * kDim)) {
    for (size_t i = 0; i < angles_.size(); ++i) angles_[i] = std::sqrt(0.5f);
    rope_ = {angles_.data(), angles_.data(), angles_.data(), angles_.data(),
             kBlocks,        kBlocks,        kDim,           kDim};
    const std::vector<float> k = normal(kBlockTokens * kDim), v = normal(kBlockTokens * kDim);
    const size_t index = index_bytes(kDim), page = index + body_bytes(format, kDim);
    bytes_.resize(n_pages * page);
    for (size_t i = 0; i < n_pages; ++i) {
      uint8_t* at = &bytes_[i * page];
      ref::make_index(k.data(), ~0u, kDim, at);
      ref::encode(format, k.data(), v.data(), kDim, at, at + index);
      pages_.push_back(
          {at, at + index, nullptr, ~0u, format, static_cast<int32_t>(n_pages - i), 0});
    }
  }

  const std::vector<KvPage>& pages() const { return pages_; }
  QueryTile tile(Compute compute) const {
    return {q_.data(), kGroup * kDim, kQueries, kGroup, 0, 0.125f, compute, &rope_};
  }
  double flop() const {
    return 4.0 * kDim * kQueries * kGroup * kBlockTokens * static_cast<double>(pages_.size());
  }

 private:
  std::vector<float> angles_, q_;
  std::vector<uint8_t> bytes_;
  RopeTable rope_{};
  std::vector<KvPage> pages_;
};

void attend(benchmark::State& state, const cpu::tile::Steps& steps, Compute compute,
            KvFormat format) {
  const Text text(format, static_cast<size_t>(state.range(0)));
  std::vector<float> o(kQueries * kGroup * kDim), lse(kQueries * kGroup);
  const QueryTile tile = text.tile(compute);
  for (auto _ : state) {
    cpu::tile::attend_with(steps, tile, text.pages().data(), text.pages().size(), o.data(),
                           kGroup * kDim, lse.data(), kGroup);
    benchmark::DoNotOptimize(o.data());
  }
  state.counters["TFLOP/s"] =
      benchmark::Counter(text.flop() * 1e-12, benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace
}  // namespace varve::kernels

int main(int argc, char** argv) {
  using namespace varve::kernels;
  benchmark::Initialize(&argc, argv);
  const std::pair<const char*, KvFormat> formats[] = {
      {"/bf16", KvFormat::kBf16}, {"/int8", KvFormat::kInt8}, {"/f32", KvFormat::kF32}};
  for (const auto& [name, format] : formats) {
    benchmark::RegisterBenchmark((std::string("f32") + name).c_str(), attend,
                                 cpu::tile::f32_steps(), Compute::kF32, format)
        ->Arg(32)
        ->Arg(256)
        ->Arg(1024)
        ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark((std::string("bf16") + name).c_str(), attend,
                                 cpu::tile::bf16_steps(), Compute::kBf16, format)
        ->Arg(32)
        ->Arg(256)
        ->Arg(1024)
        ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark((std::string("matmul") + name).c_str(), attend,
                                 cpu::tile::matmul_steps(), Compute::kBf16, format)
        ->Arg(32)
        ->Arg(256)
        ->Arg(1024)
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::RunSpecifiedBenchmarks();
}
