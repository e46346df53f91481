// Running counters of experiments' arms, and the guardrails over them. Internal to core/route.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/config/serve_config.h"
#include "core/route/dispatcher.h"

namespace varve {

// Thread-safe. Counters are those of one version of an experiment; another version starts anew.
class Arms {
 public:
  // Counts an ended request. Returns why its arm has to stop, or "".
  std::string ended(const ExperimentConfig& experiment, size_t arm, uint64_t unit_hash,
                    bool is_error, double ttft_ms);
  // The same for a sample of quality.
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
    double error_rate() const;
  };
  using Key = std::pair<std::string, uint32_t>;  // name, version

  std::vector<Counters>& counters_of(const ExperimentConfig& experiment)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::map<Key, std::vector<Counters>> counters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace varve
