#include "core/metrics/metrics.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/metrics/label_values.h"
#include "core/metrics/scrape.h"
#include "core/metrics/timings_text.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"

namespace varve {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;

// 1 ms to 10 minutes.
const Histogram::BucketBoundaries& buckets_s() {
  static const Histogram::BucketBoundaries kBuckets = {
      .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600};
  return kBuckets;
}

std::string status_class(int status) {
  return status >= 100 && status < 600 ? std::to_string(status / 100) + "xx" : kOtherLabel;
}

double now_s() { return absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()); }

// Stacks that reloads bring.
constexpr size_t kNewStacksMax = 8;

class Recorder : public Metrics {
 public:
  explicit Recorder(const Names& names)
      : classes_(names.classes, 0), stacks_(names.stacks, kNewStacksMax), arms_(arms(names), 0) {
    gauge("varve_build_info", "1; what is running.")
        .Add({{"version", names.version}, {"model", names.model}})
        .Set(1);
    gauge("process_start_time_seconds", "When this began, Unix time.").Add({}).Set(now_s());
    reload_.Add({}).Set(1);
    reload_time_.Add({}).Set(now_s());
  }

  void record(const RequestMetrics& r) override {
    const std::string stack = stacks_(r.stack), outcome = outcomes_(r.outcome);
    if (r.has_timings) record_timings(stack, r.timings);
    if (r.is_shadow) {  // its times are those of leftovers: not of the service
      shadows_.Add({{"stack", stack}, {"outcome", outcome}}).Increment();
      return;
    }
    const Labels labels = {
        {"class", classes_(r.class_name)}, {"arm", arms_(r.arm)}, {"stack", stack}};
    Labels with_outcome = labels;
    with_outcome["outcome"] = outcome;
    requests_.Add(with_outcome).Increment();
    prompt_tokens_.Add(labels).Increment(static_cast<double>(r.prompt_tokens));
    cached_tokens_.Add(labels).Increment(static_cast<double>(r.cached_tokens));
    output_tokens_.Add(labels).Increment(static_cast<double>(r.output_tokens));
    observe(queue_, labels, r.queue_s);
    observe(prefill_, labels, r.prefill_s);
    observe(ttft_, labels, r.ttft_s);
    observe(total_, labels, r.total_s);
    Histogram& gaps = gaps_.Add(labels, buckets_s());
    for (const float gap_ms : r.token_gaps_ms) gaps.Observe(gap_ms / 1e3);
  }

  void rejected(const std::string& class_name, const std::string& why) override {
    rejected_.Add({{"class", classes_(class_name)}, {"why", reasons_(why)}}).Increment();
  }
  void http(const std::string& route, int status, double seconds) override {
    const std::string known = routes_(route);
    http_.Add({{"route", known}, {"status", status_class(status)}}).Increment();
    observe(http_time_, {{"route", known}}, seconds);
  }
  void exposed(const std::string& experiment, const std::string& arm) override {
    exposures_.Add({{"experiment", experiments_(experiment)}, {"arm", arms_(arm)}}).Increment();
  }
  void stopped(const std::string& experiment, const std::string& arm) override {
    stops_.Add({{"experiment", experiments_(experiment)}, {"arm", arms_(arm)}}).Increment();
  }
  void reloaded(bool ok) override {
    reload_.Add({}).Set(ok ? 1 : 0);
    if (ok) reload_time_.Add({}).Set(now_s());
  }
  void set_lanes(std::function<std::vector<LaneMetrics>()> lanes) override {
    MutexLock lock(&mutex_);
    lanes_ = std::move(lanes);
  }

  std::string text() const override {
    std::function<std::vector<LaneMetrics>()> lanes;
    {
      MutexLock lock(&mutex_);
      lanes = lanes_;
    }
    std::vector<prometheus::MetricFamily> families = registry_.Collect();
    add_lanes(
        lanes ? lanes() : std::vector<LaneMetrics>{},
        [this](const std::string& name) { return plugins_(name); }, &families);
    add_timing_shares(timings(), &families);
    add_process(&families);
    std::ostringstream out;
    prometheus::TextSerializer().Serialize(out, families);
    return std::move(out).str();
  }
  mri_timings timings() const override {
    MutexLock lock(&mutex_);
    return timings_;
  }

 private:
  // A request outside any experiment has the arm "".
  static std::vector<std::string> arms(const Names& names) {
    std::vector<std::string> all = names.arms;
    all.emplace_back();
    return all;
  }

  Family<Counter>& counter(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry_);
  }
  Family<Gauge>& gauge(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry_);
  }
  Family<Histogram>& histogram(const char* name, const char* help) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry_);
  }

  // NaN: the request did not come so far.
  static void observe(Family<Histogram>& family, const Labels& labels, double seconds) {
    if (std::isfinite(seconds)) family.Add(labels, buckets_s()).Observe(std::max(0.0, seconds));
  }

  void record_timings(const std::string& stack, const mri_timings& t) {
    const std::pair<const char*, uint64_t> parts[] = {{"local", t.local_attn_ns},
                                                      {"sparse", t.sparse_attn_ns},
                                                      {"summary", t.summary_attn_ns},
                                                      {"kv_cache", t.kv_cache_ns},
                                                      {"other", t.other_ns}};
    for (const auto& [part, ns] : parts) {
      part_time_.Add({{"stack", stack}, {"part", part}}).Increment(static_cast<double>(ns) / 1e9);
    }
    timed_tokens_.Add({{"stack", stack}}).Increment(static_cast<double>(t.n_tokens));
    choices_.Add({{"stack", stack}}).Increment(static_cast<double>(t.n_choices));
    chosen_.Add({{"stack", stack}}).Increment(static_cast<double>(t.blocks_chosen));
    MutexLock lock(&mutex_);
    add_timings(t, &timings_);
  }

  prometheus::Registry registry_;
  LabelValues classes_, stacks_, arms_;
  LabelValues outcomes_{{"stop", "length", "cancelled", "error"}, 0};
  LabelValues reasons_{{}, kNamesMax}, routes_{{}, kNamesMax}, experiments_{{}, kNamesMax};
  mutable LabelValues plugins_{{}, kNamesMax};
  mutable Mutex mutex_;
  std::function<std::vector<LaneMetrics>()> lanes_ ABSL_GUARDED_BY(mutex_);
  mri_timings timings_ ABSL_GUARDED_BY(mutex_){};

  Family<Counter>& requests_ = counter("varve_requests_total", "Requests that have ended.");
  Family<Counter>& rejected_ =
      counter("varve_requests_rejected_total", "Requests that were not taken.");
  Family<Counter>& shadows_ =
      counter("varve_shadow_requests_total", "Replayed requests that have ended.");
  Family<Counter>& prompt_tokens_ = counter("varve_prompt_tokens_total", "Tokens of prompts.");
  Family<Counter>& cached_tokens_ = counter("varve_cached_prompt_tokens_total",
                                            "Tokens of prompts whose memory was there already.");
  Family<Counter>& output_tokens_ = counter("varve_output_tokens_total", "Tokens of answers.");
  Family<Histogram>& ttft_ = histogram("varve_time_to_first_token_seconds",
                                       "From arrival to the first token of the answer.");
  Family<Histogram>& gaps_ =
      histogram("varve_inter_token_seconds", "Between tokens of an answer, from the second on.");
  Family<Histogram>& queue_ =
      histogram("varve_queue_seconds", "From arrival to the first step of the request.");
  Family<Histogram>& prefill_ =
      histogram("varve_prefill_seconds", "From the first step to the first token of the answer.");
  Family<Histogram>& total_ = histogram("varve_request_seconds", "From arrival to the end.");
  Family<Counter>& http_ = counter("varve_http_requests_total", "Answers over HTTP.");
  Family<Histogram>& http_time_ =
      histogram("varve_http_request_seconds", "From the request's head to the answer's end.");
  Family<Counter>& exposures_ =
      counter("varve_experiment_exposures_total", "Requests that an arm of an experiment served.");
  Family<Counter>& stops_ =
      counter("varve_experiment_stops_total", "Times an arm of an experiment was stopped.");
  Family<Gauge>& reload_ = gauge("varve_config_last_reload_successful",
                                 "0 after a reload that was refused: the old configuration runs.");
  Family<Gauge>& reload_time_ = gauge("varve_config_last_reload_success_timestamp_seconds",
                                      "When the running configuration was loaded, Unix time.");
  Family<Counter>& part_time_ = counter("varve_attention_seconds_total",
                                        "Time of the requests that asked for timings, by part.");
  Family<Counter>& timed_tokens_ =
      counter("varve_attention_timed_tokens_total", "Tokens that the timings are of.");
  Family<Counter>& choices_ =
      counter("varve_sparse_choices_total", "Choices of blocks, one per KV head and layer.");
  Family<Counter>& chosen_ =
      counter("varve_sparse_blocks_chosen_total", "Blocks chosen in all of them.");
};

}  // namespace

std::unique_ptr<Metrics> Metrics::make(const Names& names) {
  return std::make_unique<Recorder>(names);
}

}  // namespace varve
