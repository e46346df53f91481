// First come, first served within a priority; every running sequence decodes, prompts share the
// rest of the step.
#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "mri/sdk/batching.hpp"

namespace {

class Fcfs {
 public:
  Fcfs(const mri::Host&, const mri::Params& params)
      : prefill_share_(params.get<uint64_t>("prefill_share_percent")),
        ageing_us_(params.get<uint64_t>("ageing_ms") * 1000) {}

  static void caps(mri_caps& caps) {
    caps.thread_model = 3;
    caps.determinism = 3;
  }

  mri_status next_step(const mri_batch_req& req, mri_batch_rsp& rsp) const {
    mri::Writer<mri_batch_pick> picks(rsp.picks, rsp.capacity, &rsp.n_picks);
    const std::vector<uint32_t> order = in_order(req);
    uint64_t tokens = req.step_tokens_max, bytes = req.kv_bytes_free, running = 0;
    for (uint64_t i = 0; i < req.n_requests; ++i) running += req.requests[i].running != 0;

    uint64_t decoding = 0;
    for (const uint32_t i : order) {
      const mri_batch_request& r = req.requests[i];
      if (r.running == 0 || r.prompt_tokens_left > 0 || tokens == 0) continue;
      picks.push({i, 1, 0, 0});
      --tokens;
      ++decoding;
    }
    // A prompt may not hold up those who wait for their next token.
    if (decoding > 0) tokens = std::min(tokens, std::max<uint64_t>(1, share(req.step_tokens_max)));
    const uint64_t token_bytes = bytes_per_token(req);
    bool full = false;  // then those behind may not overtake who waits; running prompts go on
    for (const uint32_t i : order) {
      const mri_batch_request& r = req.requests[i];
      if (tokens == 0) break;
      if (r.running != 0 && r.prompt_tokens_left == 0) continue;
      if (r.running == 0) {
        const uint64_t prompt = std::min(r.prompt_tokens_left, UINT64_MAX / token_bytes);
        const bool fits = prompt * token_bytes <= bytes;
        // Alone, a request may try whatever its size: the runtime can demote.
        full = full || running >= req.sequences_max || (!fits && running > 0);
        if (full) continue;
        bytes -= std::min(bytes, prompt * token_bytes);
        ++running;
      }
      const uint64_t n =
          std::clamp<uint64_t>(r.prompt_tokens_left, 1, std::min<uint64_t>(tokens, UINT32_MAX));
      picks.push({i, static_cast<uint32_t>(n), 0, 0});
      tokens -= n;
    }
    return picks.status();
  }

 private:
  uint64_t share(uint64_t tokens) const {
    return tokens / 100 * prefill_share_ + tokens % 100 * prefill_share_ / 100;
  }

  // Priority, raised by waiting; then arrival; then running before waiting.
  std::vector<uint32_t> in_order(const mri_batch_req& req) const {
    std::vector<uint32_t> order(req.n_requests);
    for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](uint32_t x, uint32_t y) {
      const mri_batch_request &a = req.requests[x], &b = req.requests[y];
      return std::tuple(~rank(a), ~a.age_us, a.running == 0, x) <
             std::tuple(~rank(b), ~b.age_us, b.running == 0, y);
    });
    return order;
  }

  uint64_t rank(const mri_batch_request& r) const {
    return r.priority + (ageing_us_ > 0 ? r.age_us / ageing_us_ : 0);
  }

  // What a token of the running requests takes now, at least 1.
  static uint64_t bytes_per_token(const mri_batch_req& req) {
    uint64_t bytes = 0, tokens = 0;
    for (uint64_t i = 0; i < req.n_requests; ++i) {
      const mri_batch_request& r = req.requests[i];
      if (r.running == 0 || r.context_tokens == 0) continue;
      bytes += r.kv_bytes / r.context_tokens;
      ++tokens;
    }
    return std::max<uint64_t>(1, tokens > 0 ? bytes / tokens : 0);
  }

  uint64_t prefill_share_, ageing_us_;
};

constexpr mri_param_desc kParams[] = {
    mri::param_int("prefill_share_percent", 100, 1, 100,
                   "share of a step's tokens that prompts may take while others decode"),
    mri::param_int(
        "ageing_ms", 10000, 0, 1 << 30,
        "each such wait raises a request's priority by one, so that nobody starves; 0: never"),
};

}  // namespace

MRI_PLUGIN(batching, "dev.varve.batching.fcfs", "0.1.0", kParams, Fcfs);
