// From logged requests to independent observations: one per unit.
//
// Requests of one conversation are dependent (they share a prefix, a user, a length), and the next
// one may depend on how the last was served. So a unit counts once, with values that are settled
// when its first requests end and never change afterwards: a median over its requests would move
// between two looks, and the guarantee under peeking would be gone. The first request stands for
// the unit; its second one, which finds the prefix in memory, has a metric of its own.
//
// A unit counts from the moment its request arrives. To wait for the end would show the fast ones
// first, and of an arm that hangs only those that do not; while it is under way, its values are
// known to lie between bounds.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/route/experiment_record.h"
#include "core/route/exposure_log.h"
#include "core/route/statistics/confidence.h"

namespace varve::statistics {

enum Metric : size_t {
  kTtft,       // time to first token of the unit's first request, ms
  kLaterTtft,  // of its second request
  kGap,        // median gap between tokens of the first request, ms
  kStall,      // 99th percentile of those gaps
  kMetrics
};

struct ArmData {
  uint64_t units = 0, requests = 0, errors = 0;  // requests, errors: of those that have ended
  uint64_t open = 0;                             // requests under way
  // One value per unit that has one, in the order in which they arrived. A request that failed, or
  // that its client gave up, before the first token has a TTFT of +infinity.
  Values metric[kMetrics];
  uint64_t failed = 0, undecided = 0;                // units: first request failed, is under way
  std::vector<double> prompt_tokens, cached_tokens;  // first request, when it has ended
  double kv_bytes = 0, kv_tokens = 0;                // sums over requests that ended well
};

// A stretch of wall time, seconds since 1970; the end is not in it.
struct TimeSpan {
  double from_s = -std::numeric_limits<double>::infinity();
  double to_s = std::numeric_limits<double>::infinity();
};

// Rows in the order of arrival. Forced, shadow and burn-in rows, rows of other arms, and units
// whose first request lies outside of `when`, are left out.
class Units {
 public:
  explicit Units(std::vector<std::string> arms, TimeSpan when = {})
      : names_(std::move(arms)), when_(when), arms_(names_.size()) {}
  void add(const Exposure& row);
  const std::vector<ArmData>& arms() const { return arms_; }

 private:
  // SIZE_MAX when it is none of this experiment's.
  size_t arm_number(const std::string& name) const;

  struct Seen {
    size_t arm = 0;
    uint32_t requests = 0;
    bool is_counted = false;
  };
  std::vector<std::string> names_;
  TimeSpan when_;
  std::vector<ArmData> arms_;
  absl::flat_hash_map<uint64_t, Seen> seen_;
};

// True for rows that count: neither forced nor shadow.
inline bool is_counted(const Exposure& row) { return !row.forced && !row.is_shadow; }

// Differences of mean log latency between neighbouring time blocks of different arms, treatment
// minus control, in time order. Each block before the first that may not be over (with a request
// under way whose latency is not known, or the last) is used once; a drift that is slow against a
// block's length cancels, and the random order of arms makes what is left of it average out.
std::vector<double> block_differences(std::span<const Exposure> rows, const std::string& control,
                                      const std::string& treatment, double Exposure::*latency_ms);

}  // namespace varve::statistics
