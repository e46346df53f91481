// What the checks of a runtime share.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "mri/conformance/random.h"
#include "mri/conformance/runtime_client.h"

namespace mri::conformance {

// Logits of the same tokens computed in other portions may differ by rounding: root mean square of
// the difference, relative to the logits' spread.
inline constexpr double kLogitErrorMax = 0.02;

// A runtime in a test: its contexts are released at the end, and a failure that leaves nothing to
// test is reported and throws Stop.
class Runtime {
 public:
  explicit Runtime(Bench& bench, const std::string& withheld = {})
      : bench_(bench), random_(bench.seed), client_(bench.server) {
    if (client_ != nullptr) return;
    local_ = local_runtime(bench, withheld);
    client_ = local_.get();
  }
  ~Runtime() {
    for (const uint64_t ctx : contexts_) client_->release(ctx);
  }
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  RuntimeClient* operator->() { return client_; }
  Report& report() { return *bench_.report; }

  std::vector<int32_t> tokens(uint64_t n) {
    const uint64_t vocabulary = client_->vocabulary();
    std::vector<int32_t> tokens(n);
    for (int32_t& token : tokens) {
      token = static_cast<int32_t>(
          1 + random_.below(std::min<uint64_t>(vocabulary == 0 ? 100 : vocabulary - 1, 200)));
    }
    return tokens;
  }

  // A context, released at the end; the test stops when there is none.
  Inited make(const Init& init) {
    Inited made = client_->init(init);
    if (made.status != MRI_OK || made.ctx == 0) {
      report().fail("init_context of " + std::to_string(init.tokens.size()) +
                    " tokens: " + made.text + ", ctx " + std::to_string(made.ctx));
      throw Stop{};
    }
    contexts_.push_back(made.ctx);
    return made;
  }
  uint64_t make(const std::vector<int32_t>& tokens) {
    Init init;
    init.tokens = tokens;
    return make(init).ctx;
  }

  // One sequence's step, which must succeed.
  Stepped step(uint64_t ctx, const std::vector<int32_t>& tokens, bool all_logits = false) {
    const bool logits = client_->vocabulary() > 0;
    const SteppedAll all = client_->step({{ctx, tokens, logits, all_logits, 0}});
    if (all.status != MRI_OK || all.seqs.size() != 1 || all.seqs[0].status != MRI_OK) {
      report().fail("forward_step of " + std::to_string(tokens.size()) + " tokens: " + all.text +
                    (all.seqs.empty() ? "" : ", its status " + std::to_string(all.seqs[0].status)));
      throw Stop{};
    }
    return all.seqs[0];
  }

  Evicted evict(uint64_t ctx, mri_token_range range, uint32_t granularity) {
    const Evicted evicted = client_->evict(ctx, {range}, granularity);
    if (report().expect(evicted.status == MRI_OK, "evict_kv: " + evicted.text)) return evicted;
    throw Stop{};
  }

  Listed list(uint64_t ctx) {
    const Listed listed = client_->list(ctx, 0, 0);
    if (report().expect(listed.status == MRI_OK, "get_kv_summary: " + listed.text)) return listed;
    throw Stop{};
  }

 private:
  Bench& bench_;
  Random random_;
  std::unique_ptr<RuntimeClient> local_;
  RuntimeClient* client_;
  std::vector<uint64_t> contexts_;
};

inline std::vector<int32_t> part(const std::vector<int32_t>& tokens, size_t first, size_t n) {
  const auto at = tokens.begin() + static_cast<std::ptrdiff_t>(first);
  return {at, at + static_cast<std::ptrdiff_t>(n)};
}

// kLogitErrorMax's measure; infinite for other sizes or what is not finite.
inline double difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  double error = 0, mean = 0, power = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return INFINITY;
    error += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    mean += a[i];
  }
  mean /= std::max<double>(1, static_cast<double>(a.size()));
  for (const float x : a) power += (x - mean) * (x - mean);
  return error == 0 ? 0 : std::sqrt(error / std::max(power, 1e-12));
}

inline uint64_t live_tokens(const Listed& listed) {
  uint64_t n = 0;
  for (const mri_kv_block_info& row : listed.rows) n += row.n_tokens;
  return n;
}

}  // namespace mri::conformance
