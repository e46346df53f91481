#include "core/metrics/scrape.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "core/metrics/timings_text.h"

namespace varve {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using LabelList = std::vector<ClientMetric::Label>;

// One family under construction.
class Samples {
 public:
  Samples(std::string name, std::string help, MetricType type = MetricType::Gauge) {
    family_.name = std::move(name);
    family_.help = std::move(help);
    family_.type = type;
  }
  Samples& add(LabelList labels, double value) {
    ClientMetric metric;
    metric.label = std::move(labels);
    (family_.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
    family_.metric.push_back(std::move(metric));
    return *this;
  }
  Samples& add(LabelList labels, uint64_t count, double sum) {
    add(std::move(labels), 0);
    family_.metric.back().summary.sample_count = count;
    family_.metric.back().summary.sample_sum = sum;
    return *this;
  }
  void to(std::vector<MetricFamily>* out) { out->push_back(std::move(family_)); }

 private:
  MetricFamily family_;
};

struct LaneSample {
  const char* name;
  const char* help;
  MetricType type;
  double (*value)(const LaneMetrics&);
};

double number(uint64_t value) { return static_cast<double>(value); }

constexpr LaneSample kLaneSamples[] = {
    {"varve_lane_running_requests", "Requests that are being computed.", MetricType::Gauge,
     [](const LaneMetrics& l) { return number(l.running); }},
    {"varve_lane_waiting_requests", "Requests in the queue.", MetricType::Gauge,
     [](const LaneMetrics& l) { return number(l.waiting); }},
    {"varve_lane_concurrency", "Most requests that are computed at once.", MetricType::Gauge,
     [](const LaneMetrics& l) { return number(l.concurrency); }},
    {"varve_lane_queue_limit", "Most requests that may wait.", MetricType::Gauge,
     [](const LaneMetrics& l) { return number(l.queue_max); }},
    {"varve_lane_steps_total", "Steps of the engine.", MetricType::Counter,
     [](const LaneMetrics& l) { return number(l.steps); }},
    {"varve_lane_step_clips_total", "Answers of the batching plugin that broke a limit.",
     MetricType::Counter, [](const LaneMetrics& l) { return number(l.step_clips); }},
    {"varve_lane_demotions_total", "Times a request gave memory away for one of higher priority.",
     MetricType::Counter, [](const LaneMetrics& l) { return number(l.demotions); }},
    {"varve_lane_peak_mode", "1 while summaries are left out because of load.", MetricType::Gauge,
     [](const LaneMetrics& l) { return l.peak ? 1.0 : 0.0; }},
    {"varve_lane_last_progress_age_seconds", "Time since a token was computed.", MetricType::Gauge,
     [](const LaneMetrics& l) { return l.last_progress_age_s; }},
    {"varve_lane_oldest_wait_seconds", "How long the oldest request of the queue has waited.",
     MetricType::Gauge, [](const LaneMetrics& l) { return l.oldest_wait_s; }},
    {"varve_kv_kept_prefix_bytes", "KV memory of prefixes that no request uses at the moment.",
     MetricType::Gauge, [](const LaneMetrics& l) { return number(l.kept_prefix_bytes); }},
    {"varve_kv_budget_bytes", "KV memory that the stack may use; 0: no limit.", MetricType::Gauge,
     [](const LaneMetrics& l) { return number(l.budget_bytes); }},
    {"varve_kv_hot_limit_tokens",
     "Hot tokens that the running requests may have by their stack's profile; 0: no limit.",
     MetricType::Gauge, [](const LaneMetrics& l) { return number(l.hot_limit_tokens); }},
    {"varve_kv_used_bytes", "KV memory in use, kept prefixes included.", MetricType::Gauge,
     [](const LaneMetrics& l) { return number(l.used_bytes); }},
    {"varve_kv_bf16_bytes", "What the tokens of running requests would take as plain bf16.",
     MetricType::Gauge, [](const LaneMetrics& l) { return number(l.usage.bf16_bytes); }},
};

void add_tiers(const std::vector<LaneMetrics>& lanes, std::vector<MetricFamily>* out) {
  Samples bytes("varve_kv_bytes", "KV memory of running requests by tier.");
  Samples tokens("varve_kv_tokens", "Tokens of running requests by tier.");
  for (const LaneMetrics& lane : lanes) {
    const mri_kv_usage& u = lane.usage;
    const auto labels = [&](const char* tier) {
      return LabelList{{"stack", lane.stack}, {"tier", tier}};
    };
    bytes.add(labels("hot"), number(u.hot_bytes)).add(labels("warm"), number(u.warm_bytes));
    bytes.add(labels("cold"), number(u.cold_bytes));
    bytes.add(labels("backing"), number(u.backing_bytes));
    tokens.add(labels("hot"), number(u.hot_tokens)).add(labels("warm"), number(u.warm_tokens));
    tokens.add(labels("cold"), number(u.cold_tokens));
  }
  bytes.to(out);
  tokens.to(out);
}

void add_plugins(const std::vector<LaneMetrics>& lanes,
                 const std::function<std::string(const std::string&)>& plugin_label,
                 std::vector<MetricFamily>* out) {
  Samples info("varve_plugin_info", "1 for each plugin of a stack: its version and file.");
  Samples errors("varve_plugin_errors_total", "Promises that a plugin broke.", MetricType::Counter);
  Samples calls("varve_worker_call_seconds", "Calls that the plugin's own process answered.",
                MetricType::Summary);
  Samples restarts("varve_worker_restarts_total",
                   "Starts of the plugin's own process but the first.", MetricType::Counter);
  Samples quarantined("varve_worker_quarantined",
                      "1: the plugin's own process failed too often and is not started again.");
  Samples fallbacks("varve_worker_fallback_calls_total",
                    "Calls that the fallback answered instead of the plugin's own process.",
                    MetricType::Counter);
  for (const LaneMetrics& lane : lanes) {
    for (const PluginMetrics& plugin : lane.plugins) {
      const LabelList labels = {{"stack", lane.stack}, {"plugin", plugin_label(plugin.name)}};
      LabelList told = labels;
      told.insert(told.end(), {{"generation", std::to_string(lane.generation)},
                               {"version", plugin.version},
                               {"sha256", plugin.sha256}});
      info.add(told, 1);
      errors.add(labels, number(plugin.errors));
      if (!plugin.has_worker) continue;
      calls.add(labels, plugin.worker_calls, plugin.worker_call_s);
      restarts.add(labels, number(plugin.worker_restarts));
      quarantined.add(labels, plugin.worker_quarantined ? 1 : 0);
      fallbacks.add(labels, number(plugin.worker_fallback_calls));
    }
  }
  for (Samples* samples : {&info, &errors, &calls, &restarts, &quarantined, &fallbacks})
    samples->to(out);
}

// Share of f32 memory that warm blocks save, index included; negative when there are none.
double warm_saved(const mri_kv_usage& u) {
  const double tokens = number(u.hot_tokens) + number(u.warm_tokens) + number(u.cold_tokens);
  if (u.warm_tokens == 0 || u.bf16_bytes == 0 || tokens <= 0) return -1;
  const double f32_bytes = 2 * number(u.bf16_bytes) / tokens * number(u.warm_tokens);
  return std::max(0.0, 1 - number(u.warm_bytes) / f32_bytes);
}

// The names and labels of the system that this one re-creates: one figure for the whole process.
void add_legacy(const std::vector<LaneMetrics>& lanes, std::vector<MetricFamily>* out) {
  double hot = 0, warm = 0, cold = 0, saved = 0, weight = 0;
  for (const LaneMetrics& lane : lanes) {
    hot += number(lane.usage.hot_bytes);
    warm += number(lane.usage.warm_bytes);
    cold += number(lane.usage.cold_bytes);
    const double share = warm_saved(lane.usage);
    if (share < 0) continue;
    saved += share * number(lane.usage.warm_tokens);
    weight += number(lane.usage.warm_tokens);
  }
  Samples("k25_kv_hot_bytes", "KV memory of the hot tier.").add({}, hot).to(out);
  Samples("k25_kv_warm_bytes", "KV memory of the warm tier.").add({}, warm).to(out);
  Samples("k25_kv_cold_bytes", "KV memory of the cold tier.").add({}, cold).to(out);
  Samples ratio("k25_warm_compression_ratio",
                "Share of f32 memory that warm blocks save; no sample without warm blocks.");
  if (weight > 0) ratio.add({}, saved / weight);
  ratio.to(out);
}

std::string field(const std::string& text, const std::string& name) {
  const size_t at = text.find(name);
  return at == std::string::npos ? "" : text.substr(at + name.size());
}

std::string read_file(const char* path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Fields of /proc/self/stat after the name, which may hold spaces and brackets: state is the first.
std::vector<double> stat_fields() {
  const std::string text = read_file("/proc/self/stat");
  const size_t end = text.rfind(')');
  std::vector<double> fields;
  if (end == std::string::npos) return fields;
  std::istringstream in(text.substr(end + 1));
  std::string word;
  while (in >> word) fields.push_back(std::strtod(word.c_str(), nullptr));
  return fields;
}

}  // namespace

void add_lanes(const std::vector<LaneMetrics>& lanes,
               const std::function<std::string(const std::string&)>& plugin_label,
               std::vector<MetricFamily>* out) {
  for (const LaneSample& sample : kLaneSamples) {
    Samples samples(sample.name, sample.help, sample.type);
    for (const LaneMetrics& lane : lanes) samples.add({{"stack", lane.stack}}, sample.value(lane));
    samples.to(out);
  }
  add_tiers(lanes, out);
  Samples ratio("varve_kv_warm_compression_ratio",
                "Share of f32 memory that warm blocks save, index included; no sample without warm "
                "blocks.");
  for (const LaneMetrics& lane : lanes) {
    const double share = warm_saved(lane.usage);
    if (share >= 0) ratio.add({{"stack", lane.stack}}, share);
  }
  ratio.to(out);
  add_plugins(lanes, plugin_label, out);
  add_legacy(lanes, out);
}

void add_process(std::vector<MetricFamily>* out) {
  const auto gauge = [&](const char* name, const char* help, double value) {
    Samples(name, help).add({}, value).to(out);
  };
  // Numbers of proc(5), counted from `state` = 0.
  constexpr size_t kUserTicks = 11, kSystemTicks = 12, kThreads = 17, kBytes = 20, kPages = 21;
  const std::vector<double> stat = stat_fields();
  if (stat.size() > kPages) {
    const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
    const auto page_bytes = static_cast<double>(sysconf(_SC_PAGESIZE));
    Samples("process_cpu_seconds_total", "CPU time, user and system.", MetricType::Counter)
        .add({}, (stat[kUserTicks] + stat[kSystemTicks]) / ticks)
        .to(out);
    gauge("process_threads", "Threads.", stat[kThreads]);
    gauge("process_virtual_memory_bytes", "Address space in use.", stat[kBytes]);
    gauge("process_resident_memory_bytes", "Memory in RAM.", stat[kPages] * page_bytes);
  }
  const std::string peak = field(read_file("/proc/self/status"), "VmHWM:");
  if (!peak.empty()) {
    gauge("process_resident_memory_max_bytes", "Most memory in RAM so far.",
          std::strtod(peak.c_str(), nullptr) * 1024);
  }
  std::error_code failed;
  std::filesystem::directory_iterator entry("/proc/self/fd", failed);
  double n_fds = 0;
  for (; !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
    ++n_fds;
  }
  if (!failed) gauge("process_open_fds", "Open file descriptors.", n_fds - 1);  // but the folder's
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    gauge("process_max_fds", "Most file descriptors.", static_cast<double>(limit.rlim_cur));
  }
}

void add_timing_shares(const mri_timings& sum, std::vector<MetricFamily>* out) {
  const TimingShares shares = timing_shares(sum);
  Samples parts("varve_attention_share_ratio", "Share of the timed requests' time by part.");
  parts.add({{"part", "local"}}, shares.local).add({{"part", "sparse"}}, shares.sparse);
  parts.add({{"part", "summary"}}, shares.summary).add({{"part", "kv_cache"}}, shares.kv_cache);
  parts.add({{"part", "other"}}, shares.other).to(out);
  Samples("varve_sparse_hit_ratio",
          "Share of the chosen blocks that were chosen for the token before too.")
      .add({}, sparse_hit_rate(sum))
      .to(out);
}

}  // namespace varve
