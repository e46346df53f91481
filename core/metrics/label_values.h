// The values a label may take.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "core/base/mutex.h"

namespace varve {

inline constexpr char kOtherLabel[] = "other";

// Thread-safe. Values beyond the first ones and beyond `n_more` further ones are "other".
class LabelValues {
 public:
  LabelValues(const std::vector<std::string>& first, size_t n_more)
      : n_max_(first.size() + n_more), values_(first.begin(), first.end()) {}

  std::string operator()(const std::string& value) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    if (values_.count(value) != 0) return value;
    if (values_.size() >= n_max_) return kOtherLabel;
    values_.insert(value);
    return value;
  }

 private:
  const size_t n_max_;
  Mutex mutex_;
  std::set<std::string> values_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace varve
