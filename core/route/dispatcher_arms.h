// Running counters of experiments' arms, and the guardrails over them. Internal to core/route.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/config/serve_config.h"
#include "core/route/dispatcher.h"

namespace varve {

// Thread-safe. Counters are those of one version of an experiment; another version starts anew.
class Arms {
 public:
  // A request under way, until one of the two below with the same arm, unit and deadline (on any
  // clock; the one of `now` below).
  void began(const ExperimentConfig& experiment, size_t arm, uint64_t unit_hash,
             absl::Time deadline);
  void refused(const ExperimentConfig& experiment, size_t arm, uint64_t unit_hash,
               absl::Time deadline);
  void ended(const ExperimentConfig& experiment, size_t arm, uint64_t unit_hash,
             absl::Time deadline, bool is_error, double ttft_ms);

  struct Breach {
    std::string arm, why;
  };
  // Of error_rate_max. A request under way that is late (past its deadline by more than a lane
  // needs to end it) counts as an error from now on, however and whenever it ends.
  std::vector<Breach> breaches(const ExperimentConfig& experiment, absl::Time now);

  // Counts a sample of quality. Returns why its arm has to stop, or "".
  std::string compared(const ExperimentConfig& experiment, size_t arm, const QualitySample& sample);
  // Weights and names from `experiment`; `stopped` stays empty.
  ExperimentStatus status(const ExperimentConfig& experiment) const;
  // Drops the counters of all others.
  void keep(const std::vector<ExperimentConfig>& experiments);

 private:
  struct Counters {
    uint64_t requests = 0, errors = 0, with_ttft = 0, samples = 0;
    double ttft_ms = 0, kld = 0, top1 = 0;     // sums
    std::set<uint64_t> units, compared_units;  // the first min_units
    std::multimap<absl::Time, uint64_t>
        open;  // by deadline: units of requests neither ended nor late
    double error_rate() const;
  };
  using Key = std::pair<std::string, uint32_t>;  // name, version

  std::vector<Counters>& counters_of(const ExperimentConfig& experiment)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // False when it is not open any more.
  bool take(const ExperimentConfig& experiment, size_t arm, uint64_t unit_hash, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::map<Key, std::vector<Counters>> counters_ ABSL_GUARDED_BY(mutex_);
};

// Counts the rows that are of the experiment and compared.
void add_open(const std::vector<Exposure>& open_requests, ExperimentStatus& status);

}  // namespace varve
