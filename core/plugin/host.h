// What the host offers to one plugin: mri_host and the tables behind it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/limits.h"
#include "core/base/log.h"
#include "core/base/mutex.h"
#include "core/base/thread_pool.h"
#include "mri/ext/buffer.h"
#include "mri/ext/log.h"
#include "mri/ext/metrics.h"
#include "mri/ext/threads.h"
#include "mri/host.h"

namespace varve {

// Where a plugin's requests go. Outlives every plugin that got it.
struct HostServices {
  ThreadPool* threads = nullptr;      // null: the interface is not offered
  LogSink log;                        // empty: lines vanish
  uint64_t buffer_bytes_max = 0;      // per plugin; 0: what the machine has
  std::vector<std::string> withheld;  // interface ids that plugins must live without
};

// Everything that a plugin recorded under one name. Counter: `value` is the sum; gauge: the last;
// histogram: `value` is the sum of `count` observations.
struct MetricSample {
  std::string name, help;
  uint32_t kind = 0;  // MRI_METRIC_*
  double value = 0;
  uint64_t count = 0;
};

// [a-z0-9_]+
bool is_metric_name(std::string_view name);

// The host as one plugin sees it; its address is handed to the plugin and must not change.
// Interfaces are called from any thread.
class PluginHost {
 public:
  // Answers interface ids that only the stack knows (kernels, other plugins); may be empty.
  using Lookup = std::function<const void*(std::string_view id)>;
  // Finds another plugin's table, as mri_host_stack_v1.find does.
  using PeerLookup = std::function<const void*(std::string_view id, uint32_t ordinal, void** self)>;

  PluginHost(std::string plugin, uint32_t negotiated, const HostServices& services, Lookup lookup,
             PeerLookup peers);
  PluginHost(const PluginHost&) = delete;
  PluginHost& operator=(const PluginHost&) = delete;

  const mri_host* abi() const { return &abi_; }
  std::vector<MetricSample> metrics() const;
  uint64_t buffer_bytes() const { return buffer_bytes_.load(); }

 private:
  struct Metric {
    std::string name, help;
    uint32_t kind = 0;
    std::atomic<double> value{0};
    std::atomic<uint64_t> count{0};
  };

  static PluginHost& of(const mri_host* host) { return *static_cast<PluginHost*>(host->self); }
  static const void* get_interface(const mri_host* host, const char* id);
  static const void* find_peer(const mri_host* host, const char* id, uint32_t ordinal, void** self);
  static void write_log(const mri_host* host, uint32_t level, const char* text, uint64_t n_bytes);
  static uint32_t define(const mri_host* host, uint32_t kind, const char* name, const char* help);
  static void record(const mri_host* host, uint32_t id, double value);
  static uint32_t concurrency(const mri_host* host);
  static void parallel_for(const mri_host* host, uint64_t n,
                           void (*task)(void* user, uint64_t i, uint32_t worker), void* user);
  static void* alloc(const mri_host* host, uint64_t bytes, uint64_t align, const char* tag);
  static void release(const mri_host* host, void* p);

  const void* find(std::string_view id) const;
  bool may_log();

  const std::string plugin_;
  const HostServices services_;
  const Lookup lookup_;
  const PeerLookup peers_;
  mri_host abi_;

  std::atomic<uint64_t> buffer_bytes_{0};
  std::atomic<int64_t> log_second_{0};
  std::atomic<uint32_t> log_lines_{0};

  // Metrics [0, n_metrics_) are complete and keep their place.
  mutable Mutex define_mutex_;
  std::atomic<uint32_t> n_metrics_{0};
  std::array<Metric, kMetricsPerPluginMax> metrics_;
};

}  // namespace varve
