// attend_tile on a tile of dense prefill: 128 queries x 3 heads of 64 channels. TFLOP/s counts the
// two products; share is of the multiply-add peak of the instructions used, measured first.
#include <benchmark/benchmark.h>
#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <random>
#include <string>
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

constexpr int kChains = 24;  // enough to hide the latency
constexpr int kSteps = 1'000'000;

// Multiply-adds from registers; returns the flop done.
__attribute__((target("avx512f"))) double spin_f32(float* out) {
  __m512 sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = _mm512_set1_ps(static_cast<float>(i));  // all differ
  const __m512 x = _mm512_set1_ps(*out);
  for (int step = 0; step < kSteps; ++step) {
    HWY_UNROLL(24)
    for (int i = 0; i < kChains; ++i) sum[i] = _mm512_fmadd_ps(x, x, sum[i]);
  }
  for (const __m512& chain : sum) *out += _mm512_cvtss_f32(chain);
  return 32.0 * kChains * kSteps;
}

__attribute__((target("avx512f,avx512bf16"))) double spin_bf16(float* out) {
  __m512 sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = _mm512_set1_ps(static_cast<float>(i));  // all differ
  const auto x = reinterpret_cast<__m512bh>(_mm512_set1_ps(*out));
  for (int step = 0; step < kSteps; ++step) {
    HWY_UNROLL(24)
    for (int i = 0; i < kChains; ++i) sum[i] = _mm512_dpbf16_ps(sum[i], x, x);
  }
  for (const __m512& chain : sum) *out += _mm512_cvtss_f32(chain);
  return 64.0 * kChains * kSteps;
}

// The best of several tries, in TFLOP/s of processor time; 0 where the instructions are missing.
double peak(double (*spin)(float*), bool available) {
  double best = 0;
  float out = 1;
  for (int i = 0; available && i < 10; ++i) {
    const std::clock_t start = std::clock();
    const double flop = spin(&out);
    best =
        std::max(best, 1e-12 * flop * CLOCKS_PER_SEC / static_cast<double>(std::clock() - start));
    benchmark::DoNotOptimize(out);
  }
  return best;
}

void attend(benchmark::State& state, const cpu::tile::Steps& steps, Compute compute,
            KvFormat format, double peak_tflops) {
  const Text text(format, static_cast<size_t>(state.range(0)));
  std::vector<float> o(kQueries * kGroup * kDim), lse(kQueries * kGroup);
  const QueryTile tile = text.tile(compute);
  const std::clock_t start = std::clock();
  for (auto _ : state) {
    cpu::tile::attend_with(steps, tile, text.pages().data(), text.pages().size(), o.data(),
                           kGroup * kDim, lse.data(), kGroup);
    benchmark::DoNotOptimize(o.data());
  }
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  const double tflops = 1e-12 * text.flop() * static_cast<double>(state.iterations()) / seconds;
  state.counters["TFLOP/s"] = tflops;
  if (peak_tflops > 0) state.counters["share"] = tflops / peak_tflops;
}

void add(const std::string& name, const cpu::tile::Steps& steps, Compute compute,
         double peak_tflops) {
  const std::pair<const char*, KvFormat> formats[] = {
      {"/bf16", KvFormat::kBf16}, {"/int8", KvFormat::kInt8}, {"/f32", KvFormat::kF32}};
  for (const auto& [format_name, format] : formats) {
    benchmark::RegisterBenchmark((name + format_name).c_str(), attend, steps, compute, format,
                                 peak_tflops)
        ->Arg(32)
        ->Arg(256)
        ->Arg(1024)
        ->Unit(benchmark::kMillisecond);
  }
}

}  // namespace
}  // namespace varve::kernels

int main(int argc, char** argv) {
  using namespace varve::kernels;
  benchmark::Initialize(&argc, argv);
  const CpuFeatures cpu = cpu_features();
  const double f32 = peak(spin_f32, cpu.avx512f), bf16 = peak(spin_bf16, cpu.avx512_bf16);
  benchmark::AddCustomContext("peak TFLOP/s, f32", std::to_string(f32));
  benchmark::AddCustomContext("peak TFLOP/s, bf16 without AMX", std::to_string(bf16));
  add("f32", cpu::tile::f32_steps(), Compute::kF32, f32);
  if (cpu.avx512_bf16) {
    add("bf16", cpu::tile::bf16_steps(), Compute::kBf16, bf16);
    add("matmul", cpu::tile::matmul_steps(), Compute::kBf16, bf16);
  }
  benchmark::RunSpecifiedBenchmarks();
}
