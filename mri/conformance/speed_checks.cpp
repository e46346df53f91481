// How long the calls take: told, never judged.
#include <chrono>

#include "mri/conformance/attention_batch.h"
#include "mri/conformance/opened.h"
#include "mri/kind/quantizer.h"
#include "mri/kind/runtime.h"

namespace mri::conformance {
namespace {

// The median of `rounds` times of f, in microseconds.
template <class F>
std::string median_us(int rounds, F&& f) {
  std::vector<double> us;
  for (int i = 0; i < rounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    f();
    us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
                     .count());
  }
  std::nth_element(us.begin(), us.begin() + rounds / 2, us.end());
  return std::to_string(us[static_cast<size_t>(rounds / 2)]) + " us";
}

void times_opening(Bench& bench) {
  bench.report->note("open to close: " + median_us(20, [&] { const Opened plugin(bench); }));
}

void times_pages(Bench& bench) {
  Opened plugin(bench);
  const auto& table = plugin.table<mri_quantizer_v1>(MRI_QUANTIZER);
  constexpr uint32_t kDim = 64;
  mri_quant_desc desc = sized<mri_quant_desc>();
  must(bench, "describe",
       [&](mri_error* e) { return table.describe(plugin.self(), kDim, &desc, e); });
  const std::vector<float> x = Random(bench.seed).normals(MRI_BLOCK_TOKENS * kDim);
  std::vector<float> k(x), v(x);
  Guarded<uint8_t> index(bench.kernels->index_bytes(bench.kernels->self, kDim)),
      body(desc.body_bytes);
  bench.kernels->make_index(bench.kernels->self, x.data(), UINT32_MAX, kDim, index.data());
  mri_quant_encode_req encode = sized<mri_quant_encode_req>();
  encode.k = encode.v = x.data();
  encode.index = index.data();
  encode.body = body.data();
  encode.head_dim = kDim;
  encode.live_mask = UINT32_MAX;
  mri_quant_decode_req decode = sized<mri_quant_decode_req>();
  decode.index = index.data();
  decode.body = body.data();
  decode.k = k.data();
  decode.v = v.data();
  decode.head_dim = kDim;
  decode.live_mask = UINT32_MAX;
  bench.report->note("a page of 32 tokens x 64: encode " +
                     median_us(200, [&] { table.encode(plugin.self(), &encode, nullptr); }) +
                     ", decode " +
                     median_us(200, [&] { table.decode(plugin.self(), &decode, nullptr); }));
}

constexpr Test kTests[] = {
    {"speed.open", "any", 5, MRI_1_0, "Tells how long a life from open to close takes.", "",
     times_opening},
    {"speed.pages", "quantizer", 5, MRI_1_0,
     "Tells how long a page takes, with the host's plain kernels.", "", times_pages},
};

}  // namespace

std::span<const Test> speed_tests() { return kTests; }

}  // namespace mri::conformance
