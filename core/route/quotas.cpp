#include <algorithm>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/route/api_keys.h"

namespace varve {
namespace {

constexpr size_t kBucketsMax = 8192;  // more than a file has keys
constexpr double kMinuteSeconds = 60;

// Refills evenly to its limit in a minute. May fall below zero by one request larger than the whole
// limit, which could never run otherwise.
struct Bucket {
  double level = 0, limit = 0;

  // A limit that a reload raises can be used at once.
  void refill(double seconds, double new_limit) {
    level += std::max(0.0, new_limit - limit) + new_limit * seconds / kMinuteSeconds;
    limit = new_limit;
    level = std::min(level, limit);
  }
  // Seconds until `amount` may be taken; 0: now, or no limit.
  double wait(double amount) const {
    const double missing = std::min(amount, limit) - level;
    return limit == 0 || missing <= 0 ? 0 : missing * kMinuteSeconds / limit;
  }
  void take(double amount) {
    if (limit != 0) level -= amount;
  }
};

class BucketQuotas final : public Quotas {
 public:
  absl::Status take(std::string_view key_id, const ApiKeys::Limits& limits, uint64_t tokens,
                    absl::Time now, absl::Duration* retry_after) override {
    if (limits.requests_per_minute == 0 && limits.tokens_per_minute == 0) return absl::OkStatus();
    MutexLock lock(&mutex_);
    State& state = state_of(key_id, now);
    // A clock that went back only begins anew: what was refilled stays.
    const double seconds = std::clamp(absl::ToDoubleSeconds(now - state.seen), 0.0, kMinuteSeconds);
    state.seen = now;
    state.requests.refill(seconds, static_cast<double>(limits.requests_per_minute));
    state.tokens.refill(seconds, static_cast<double>(limits.tokens_per_minute));
    const double amount = static_cast<double>(tokens);
    const double request_wait = state.requests.wait(1);
    const double token_wait = state.tokens.wait(amount);
    if (request_wait > 0 || token_wait > 0) {
      *retry_after = absl::Seconds(std::max(request_wait, token_wait));
      return absl::ResourceExhaustedError(
          request_wait >= token_wait
              ? absl::StrCat("found more than ", limits.requests_per_minute,
                             " requests per minute with this key; expected fewer")
              : absl::StrCat("found more than ", limits.tokens_per_minute,
                             " tokens per minute with this key, of which this request may take ",
                             tokens, "; expected fewer"));
    }
    state.requests.take(1);
    state.tokens.take(amount);
    return absl::OkStatus();
  }

  // What goes beyond the limit is cut at the next take().
  void refund(std::string_view key_id, uint64_t tokens) override {
    MutexLock lock(&mutex_);
    const auto found = states_.find(key_id);
    if (found != states_.end()) found->second.tokens.level += static_cast<double>(tokens);
  }

 private:
  struct State {
    Bucket requests, tokens;
    absl::Time seen;
  };

  State& state_of(std::string_view key_id, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = states_.find(key_id);
    if (found != states_.end()) return found->second;
    if (states_.size() >= kBucketsMax) {
      states_.erase(std::min_element(states_.begin(), states_.end(), [](auto& a, auto& b) {
        return a.second.seen < b.second.seen;
      }));
    }
    return states_.emplace(key_id, State{{}, {}, now}).first->second;
  }

  Mutex mutex_;
  std::map<std::string, State, std::less<>> states_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Quotas> Quotas::make() { return std::make_unique<BucketQuotas>(); }

}  // namespace varve
