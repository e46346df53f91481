#include "adapters/light/forward/resident.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <span>

#include "kernels/unpack.h"

namespace varve::light {
namespace {

using kernels::PackedWeights;

constexpr size_t kRowsAtOnce = 64;

// Rows [n0, n1) of consecutive parts, as one matrix.
PackedWeights unpacked(std::span<const PackedWeights* const> parts, size_t n0, size_t n1) {
  const size_t k = parts[0]->k();
  PackedWeights out(kernels::WeightFormat::kBf16, n1 - n0, k);
  std::vector<float> rows(kRowsAtOnce * k);
  size_t base = 0;
  for (const PackedWeights* part : parts) {
    const size_t end = std::min(n1, base + part->n());
    for (size_t row = std::max(n0, base); row < end;) {
      const size_t n = std::min(kRowsAtOnce, end - row);
      kernels::cpu::unpack_rows_f32(*part, row - base, row - base + n, rows.data(), k);
      out.pack_bf16(row - n0, n, rows.data());
      row += n;
    }
    base += part->n();
  }
  return out;
}

PackedWeights unpacked(const RowParts& parts, size_t n0, size_t n1) {
  std::vector<const PackedWeights*> list;
  for (const PackedWeights& part : parts) list.push_back(&part);
  return unpacked(list, n0, n1);
}

PackedWeights unpacked(const PackedWeights& w) {
  const PackedWeights* part = &w;
  return unpacked(std::span(&part, 1), 0, w.n());
}

std::shared_ptr<const ResidentWeights> make_resident(const std::shared_ptr<const Model>& model,
                                                     const mri::Host& host) {
  auto made = std::make_shared<ResidentWeights>();
  made->model = model;
  made->layers.resize(model->layers.size());
  const size_t ff = model->config.n_ff;
  const size_t qkv = model->config.q_rows() + 2 * model->config.kv_rows();
  host.parallel_for(made->layers.size() + 1, [&](uint64_t i, uint32_t) {
    if (i == 0) {
      made->output = unpacked(model->output);
      return;
    }
    const Model::Layer& from = model->layers[i - 1];
    made->layers[i - 1] = {unpacked(from.wqkv, 0, qkv), unpacked(from.wo),
                           unpacked(from.w_gate_up, 0, ff), unpacked(from.w_gate_up, ff, 2 * ff),
                           unpacked(from.w_down)};
  });
  return made;
}

}  // namespace

std::shared_ptr<const ResidentWeights> share_resident(const std::shared_ptr<const Model>& model,
                                                      const mri::Host& host) {
  static std::mutex mutex;
  static std::map<const Model*, std::weak_ptr<const ResidentWeights>> known;
  const std::lock_guard lock(mutex);
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<const ResidentWeights>& entry = known[model.get()];
  std::shared_ptr<const ResidentWeights> resident = entry.lock();
  if (resident == nullptr) {
    resident = make_resident(model, host);
    entry = resident;
  }
  return resident;
}

}  // namespace varve::light
