// What experiments are judged by: one row per request and per replayed request, in SQLite.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/engine/request.h"

namespace varve {

struct Exposure {
  std::string experiment;
  uint32_t version = 1;
  uint64_t unit_hash = 0;
  std::string arm, class_name, request_id, stack_digest;
  bool forced = false, burn_in = false, is_shadow = false;
  uint64_t block = 0;  // switchback
  double wall_s = 0;   // when the request arrived, seconds since 1970
  double ttft_ms = 0, gap_p50_ms = 0, gap_p99_ms = 0, total_ms = 0;  // NaN where there is none
  uint64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  uint64_t hot_bytes = 0, warm_bytes = 0, cold_bytes = 0;
  std::string finish, error;  // error: status code name, or empty
};

// Exposure::finish of a request under way, before and after its stack has begun to compute it;
// ttft_ms is NaN until there is a first token, total_ms the time so far.
inline constexpr char kWaiting[] = "waiting";
inline constexpr char kRunning[] = "running";
inline bool is_open(const Exposure& row) {
  return row.finish == kWaiting || row.finish == kRunning;
}

// Teacher-forced comparison of one request's text on an arm's stack against the exact stack.
struct QualitySample {
  std::string experiment;
  uint32_t version = 1;
  std::string arm, request_id;
  double wall_s = 0;
  uint64_t tokens = 0, depth_tokens = 0;  // compared, and how deep in the context they stand
  double delta_nll = 0, mean_kld = 0, top1_agreement = 0;
  uint64_t unit_hash = 0;  // samples of one unit count once
};

struct ExperimentEvent {  // started, weights changed, arm stopped, …
  std::string experiment, what, detail;
  double wall_s = 0;
};

// Thread-safe. Writing never blocks the caller: rows go to a bounded queue and one writer thread;
// what does not fit, or fails (disk full), is counted, never waited for. Events that failed are
// tried again with the next rows.
class ExposureLog {
 public:
  // Creates the file (WAL, schema version in user_version) or opens one of a known version. Rotates
  // to "<path>.1" when it grows past bytes_max.
  static absl::StatusOr<std::unique_ptr<ExposureLog>> open(const std::string& path,
                                                           uint64_t bytes_max);
  virtual ~ExposureLog() = default;  // writes what is queued
  // A request under way, in the queue: the file has what is known of it, brought up to date every
  // second and in one piece with the rows of those that have ended. Returns its ticket, from 1, to
  // be told when its stack begins to compute it and when its first token comes. It stays until
  // end(), which adds its row, or forget(), when it was not exposed.
  virtual uint64_t begin(Exposure row) = 0;
  virtual void started(uint64_t ticket) = 0;
  virtual void answered(uint64_t ticket) = 0;
  virtual void end(uint64_t ticket, Exposure row) = 0;
  virtual void forget(uint64_t ticket) = 0;
  virtual std::vector<Exposure> open_requests() const = 0;  // in the order of begin()

  virtual void add(Exposure row) = 0;
  virtual void add(QualitySample row) = 0;
  virtual void add(ExperimentEvent row) = 0;
  virtual void flush() = 0;  // returns when all that is known before is in the file, or failed
  struct Counts {
    uint64_t written = 0, dropped = 0, failed = 0;
  };
  virtual Counts counts() const = 0;
};

// Reads a log that a server may be writing to, with what was rotated to "<path>.1", in the order of
// writing; exposures that are open (is_open()) come last. Those that a server left when it was
// killed stay so. `experiment` empty: all. A missing, damaged or foreign file is an error. [any]
absl::StatusOr<std::vector<Exposure>> read_exposures(const std::string& path,
                                                     const std::string& experiment,
                                                     uint32_t version);
absl::StatusOr<std::vector<QualitySample>> read_quality(const std::string& path,
                                                        const std::string& experiment,
                                                        uint32_t version);
absl::StatusOr<std::vector<ExperimentEvent>> read_events(const std::string& path,
                                                         const std::string& experiment);
absl::StatusOr<std::vector<std::string>> read_experiments(const std::string& path);

}  // namespace varve
