#include "core/route/experiment.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/sha256.h"

namespace varve {
namespace {

struct Key {
  uint64_t word0, word1;
};

Key key_of(const std::string& salt) {
  const Sha256 digest = sha256(salt);
  Key key;
  std::memcpy(&key.word0, digest.data(), sizeof key.word0);
  std::memcpy(&key.word1, digest.data() + sizeof key.word0, sizeof key.word1);
  return key;
}

// The last arm grows down from 1, the others but the control up from 0; the control has what lies
// between. So a ramp or a stop of an arm moves units between it and the control only.
size_t arm_at(const std::vector<ExperimentArm>& arms, double fraction) {
  if (arms.size() < 2) return 0;
  const size_t last = arms.size() - 1;
  if (fraction >= 1 - arms[last].weight / 100) return last;
  double end = 0;
  for (size_t i = 1; i < last; ++i) {
    end += arms[i].weight / 100;
    if (fraction < end) return i;
  }
  return 0;
}

// As many consecutive blocks as there are arms hold each arm once, in an order drawn for them:
// equal time, and nobody can tell the order ahead. A stopped arm's time is the control's.
size_t arm_of_block(const std::vector<ExperimentArm>& arms, const Key& key, int64_t block) {
  const int64_t n = static_cast<int64_t>(arms.size());
  if (n < 2) return 0;
  const int64_t place = ((block % n) + n) % n;
  const int64_t group = (block - place) / n;
  std::vector<size_t> order(arms.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t i = order.size() - 1; i > 0; --i) {
    const uint64_t draw =
        sip_hash(key.word0, key.word1, absl::StrCat("block group ", group, " place ", i));
    std::swap(order[i], order[draw % (i + 1)]);
  }
  const size_t arm = order[static_cast<size_t>(place)];
  return arms[arm].weight > 0 ? arm : 0;
}

}  // namespace

std::string experiment_unit(std::string_view tenant, std::string_view conversation) {
  std::string unit = absl::StrCat(tenant.size(), ":");
  unit.append(tenant).append(absl::StrCat(",", conversation.size(), ":")).append(conversation);
  return unit;
}

Assignment assign(const ExperimentConfig& experiment, std::string_view unit, absl::Time now) {
  const Key key = key_of(experiment.salt);
  Assignment assignment;
  assignment.unit_hash = sip_hash(key.word0, key.word1, unit);
  if (experiment.mode != "switchback") {
    const double fraction = std::ldexp(static_cast<double>(assignment.unit_hash >> 11), -53);
    assignment.arm = arm_at(experiment.arms, fraction);
    return assignment;
  }
  const int64_t length_ns =
      std::max<int64_t>(absl::ToInt64Nanoseconds(experiment.block), 1'000'000'000);
  const int64_t now_ns = absl::ToUnixNanos(now);
  const int64_t within_ns = ((now_ns % length_ns) + length_ns) % length_ns;
  const int64_t block = now_ns / length_ns - (now_ns % length_ns < 0 ? 1 : 0);
  assignment.block = static_cast<uint64_t>(block);
  assignment.arm = arm_of_block(experiment.arms, key, block);
  assignment.burn_in = within_ns < absl::ToInt64Nanoseconds(experiment.burn_in) &&
                       arm_of_block(experiment.arms, key, block - 1) != assignment.arm;
  return assignment;
}

}  // namespace varve
