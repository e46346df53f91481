#include "core/batch/batcher.h"

#include <algorithm>

namespace varve {
namespace {

// Every running answer gets its token, then prompts in the order given: running ones first.
std::vector<mri_batch_pick> first_come(std::span<const mri_batch_request> requests,
                                       const BatchLimits& limits) {
  std::vector<mri_batch_pick> picks;
  uint64_t tokens = limits.step_tokens_max, running = 0;
  for (const mri_batch_request& r : requests) running += r.running != 0;
  const auto take = [&](uint32_t i) {
    const uint64_t wanted = std::max<uint64_t>(1, requests[i].prompt_tokens_left);
    const auto n = static_cast<uint32_t>(std::min<uint64_t>({wanted, tokens, UINT32_MAX}));
    if (n > 0) picks.push_back({i, n, 0, 0});
    tokens -= n;
  };
  for (const bool decodes : {true, false}) {
    for (uint32_t i = 0; i < requests.size(); ++i) {
      if (requests[i].running != 0 && (requests[i].prompt_tokens_left == 0) == decodes) take(i);
    }
  }
  for (uint32_t i = 0; i < requests.size(); ++i) {
    if (requests[i].running != 0 || running >= limits.sequences_max || tokens == 0) continue;
    ++running;
    take(i);
  }
  return picks;
}

// Leaves what keeps to the limits; true when all did.
bool clip(std::span<const mri_batch_request> requests, const BatchLimits& limits,
          std::vector<mri_batch_pick>* picks) {
  std::vector<bool> seen(requests.size());
  uint64_t tokens = limits.step_tokens_max, running = 0;
  for (const mri_batch_request& r : requests) running += r.running != 0;
  bool all_kept = true;
  std::vector<mri_batch_pick> kept;
  for (mri_batch_pick pick : *picks) {
    if (pick.request >= requests.size() || seen[pick.request] || pick.n_tokens == 0) {
      all_kept = false;
      continue;
    }
    const mri_batch_request& r = requests[pick.request];
    const uint64_t most = std::min(tokens, std::max<uint64_t>(1, r.prompt_tokens_left));
    if (most == 0 || (r.running == 0 && running >= limits.sequences_max)) {
      all_kept = false;
      continue;
    }
    all_kept = all_kept && pick.n_tokens <= most;
    pick.n_tokens = static_cast<uint32_t>(std::min<uint64_t>(pick.n_tokens, most));
    seen[pick.request] = true;
    tokens -= pick.n_tokens;
    running += r.running == 0;
    kept.push_back(pick);
  }
  *picks = std::move(kept);
  return all_kept;
}

}  // namespace

std::vector<mri_batch_pick> Batcher::next_step(std::span<const mri_batch_request> requests,
                                               const BatchLimits& limits) {
  if (requests.empty() || limits.step_tokens_max == 0) return {};
  if (!plugin_) return first_come(requests, limits);
  const bool has_work = std::any_of(requests.begin(), requests.end(), [&](const auto& r) {
    return r.running != 0 || limits.sequences_max > 0;
  });
  std::vector<mri_batch_pick> picks;
  const bool answered = ask(requests, limits, &picks);
  const bool kept = answered && clip(requests, limits, &picks);
  if (!kept || (picks.empty() && has_work)) clips_.fetch_add(1, std::memory_order_relaxed);
  if (picks.empty()) return first_come(requests, limits);
  std::stable_sort(
      picks.begin(), picks.end(),
      [](const mri_batch_pick& a, const mri_batch_pick& b) { return a.sub_batch < b.sub_batch; });
  return picks;
}

bool Batcher::ask(std::span<const mri_batch_request> requests, const BatchLimits& limits,
                  std::vector<mri_batch_pick>* picks) const {
  picks->resize(requests.size());
  mri_batch_req req{};
  req.hdr.struct_size = sizeof(req);
  req.requests = requests.data();
  req.n_requests = requests.size();
  req.step_tokens_max = limits.step_tokens_max;
  req.kv_bytes_free = limits.kv_bytes_free;
  req.sequences_max = limits.sequences_max;
  mri_batch_rsp rsp{};
  rsp.hdr.struct_size = sizeof(rsp);
  rsp.picks = picks->data();
  rsp.capacity = picks->size();
  mri_error error{};
  error.struct_size = sizeof(error);
  const bool ok = plugin_.table->next_step(plugin_.self, &req, &rsp, &error) == MRI_OK;
  picks->resize(ok ? std::min<uint64_t>(rsp.n_picks, picks->size()) : 0);
  return ok;
}

}  // namespace varve
