// What operators watch, in Prometheus form. Labels come from the configuration alone, so that no
// client can add series: a class, stack or arm that Names does not have is "other", and of all that
// is named elsewhere in the configuration or in the code (routes, experiments, plugins, reasons)
// the first kNamesMax count, the rest is "other".
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mri/ext/timings.h"
#include "mri/kind/runtime.h"

namespace varve {

inline constexpr size_t kNamesMax = 64;

// One ended request.
struct RequestMetrics {
  std::string class_name, arm, stack, outcome;  // outcome: stop, length, cancelled, error
  bool is_shadow = false;
  double queue_s = 0, prefill_s = 0, ttft_s = 0, total_s = 0;  // NaN where it did not come so far
  std::vector<float> token_gaps_ms;
  uint64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  bool has_timings = false;
  mri_timings timings{};
};

// One plugin of a lane; worker_…: of its own process, if it has one.
struct PluginMetrics {
  std::string name;  // "kv_tier/age"
  std::string version, sha256;
  uint64_t errors = 0;
  bool has_worker = false, worker_quarantined = false;
  uint64_t worker_calls = 0, worker_restarts = 0, worker_fallback_calls = 0;
  double worker_call_s = 0;  // of all worker_calls
};

// One lane at the moment of a scrape.
struct LaneMetrics {
  std::string stack;  // LaneInfo::name()
  uint32_t generation = 1;
  uint32_t running = 0, waiting = 0, concurrency = 0, queue_max = 0;
  uint64_t steps = 0, step_clips = 0, demotions = 0;
  bool peak = false;
  double last_progress_age_s = 0, oldest_wait_s = 0;
  mri_kv_usage usage{};
  uint64_t kept_prefix_bytes = 0, budget_bytes = 0, used_bytes = 0;
  uint64_t hot_limit_tokens = 0;  // of all running requests together; 0: none
  std::vector<PluginMetrics> plugins;
};

// Thread-safe.
class Metrics {
 public:
  struct Names {
    std::vector<std::string> classes, stacks, arms;
    std::string model, version;
  };
  static std::unique_ptr<Metrics> make(const Names& names);
  virtual ~Metrics() = default;

  virtual void record(const RequestMetrics& request) = 0;
  virtual void rejected(const std::string& class_name,
                        const std::string& why) = 0;  // queue, quota, …
  virtual void http(const std::string& route, int status,
                    double seconds) = 0;  // route: its pattern
  virtual void exposed(const std::string& experiment, const std::string& arm) = 0;
  // A guardrail or an operator set the arm's weight to 0.
  virtual void stopped(const std::string& experiment, const std::string& arm) = 0;
  virtual void reloaded(bool ok) = 0;
  // Asked at each scrape.
  virtual void set_lanes(std::function<std::vector<LaneMetrics>()> lanes) = 0;
  // Text exposition format 0.0.4.
  virtual std::string text() const = 0;
  // Sums of all timings recorded so far, for the health board.
  virtual mri_timings timings() const = 0;
};

}  // namespace varve
