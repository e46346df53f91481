#include "core/plugin/host.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/text.h"
#include "core/plugin/crash_record.h"
#include "core/plugin/library.h"
#include "mri/ext/stack.h"

namespace varve {
namespace {

// Kept directly before every buffer.
struct BufferHeader {
  void* base;
  uint64_t bytes;
};

std::string bounded(const char* s) {
  return s == nullptr ? "" : std::string(s, strnlen(s, kPluginTextBytesMax));
}

}  // namespace

bool is_metric_name(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_';
  });
}

PluginHost::PluginHost(std::string plugin, uint32_t negotiated, const HostServices& services,
                       Lookup lookup, PeerLookup peers)
    : plugin_(std::move(plugin)),
      services_(services),
      lookup_(std::move(lookup)),
      peers_(std::move(peers)),
      abi_{sizeof(mri_host), negotiated, VersionRange().min,        VersionRange().max, "varve",
           "0.1.0",          this,       &PluginHost::get_interface} {}

const void* PluginHost::get_interface(const mri_host* host, const char* id) {
  return id == nullptr ? nullptr : of(host).find(bounded(id));
}

const void* PluginHost::find(std::string_view id) const {
  static constexpr mri_host_log_v1 kLog = {sizeof(mri_host_log_v1), 0, &write_log};
  static constexpr mri_host_metrics_v1 kMetrics = {sizeof(mri_host_metrics_v1), 0, &define,
                                                   &record};
  static constexpr mri_host_threads_v1 kThreads = {sizeof(mri_host_threads_v1), 0, &concurrency,
                                                   &parallel_for};
  static constexpr mri_host_buffer_v1 kBuffer = {sizeof(mri_host_buffer_v1), 0, &alloc, &release};
  static constexpr mri_host_stack_v1 kStack = {sizeof(mri_host_stack_v1), 0, &find_peer};

  const auto& withheld = services_.withheld;
  if (std::find(withheld.begin(), withheld.end(), id) != withheld.end()) return nullptr;
  if (id == MRI_HOST_LOG) return &kLog;
  if (id == MRI_HOST_METRICS) return &kMetrics;
  if (id == MRI_HOST_THREADS) return services_.threads == nullptr ? nullptr : &kThreads;
  if (id == MRI_HOST_BUFFER) return &kBuffer;
  if (id == MRI_HOST_STACK) return peers_ ? &kStack : nullptr;
  return lookup_ ? lookup_(id) : nullptr;
}

const void* PluginHost::find_peer(const mri_host* host, const char* id, uint32_t ordinal,
                                  void** self) {
  if (id == nullptr || self == nullptr) return nullptr;
  return of(host).peers_(bounded(id), ordinal, self);
}

bool PluginHost::may_log() {
  const int64_t second = std::chrono::duration_cast<std::chrono::seconds>(
                             std::chrono::steady_clock::now().time_since_epoch())
                             .count();
  if (log_second_.exchange(second) != second) log_lines_.store(0);
  const uint32_t line = log_lines_.fetch_add(1);
  if (line == kLogLinesPerSecondMax) {
    services_.log(LogLevel::kWarning, plugin_,
                  "too many log lines; the rest of this second is lost");
  }
  return line < kLogLinesPerSecondMax;
}

void PluginHost::write_log(const mri_host* host, uint32_t level, const char* text,
                           uint64_t n_bytes) {
  PluginHost& self = of(host);
  if (text == nullptr || !self.services_.log || !self.may_log()) return;
  const std::string_view bytes(text, std::min(n_bytes, kLogLineBytesMax));
  const LogLevel shown = level < MRI_LOG_ERROR ? static_cast<LogLevel>(level) : LogLevel::kError;
  self.services_.log(shown, self.plugin_, clean_text(bytes, kLogLineBytesMax));
}

uint32_t PluginHost::define(const mri_host* host, uint32_t kind, const char* name,
                            const char* help) {
  PluginHost& self = of(host);
  const std::string wanted = bounded(name);
  if (!is_metric_name(wanted) || kind < MRI_METRIC_COUNTER || kind > MRI_METRIC_HISTOGRAM) return 0;
  const MutexLock lock(&self.define_mutex_);
  const uint32_t n = self.n_metrics_.load();
  for (uint32_t i = 0; i < n; ++i) {
    if (self.metrics_[i].name == wanted) return self.metrics_[i].kind == kind ? i + 1 : 0;
  }
  if (n == kMetricsPerPluginMax) return 0;
  self.metrics_[n].name = wanted;
  self.metrics_[n].help = clean_text(bounded(help), kPluginTextBytesMax);
  self.metrics_[n].kind = kind;
  self.n_metrics_.store(n + 1, std::memory_order_release);
  return n + 1;
}

void PluginHost::record(const mri_host* host, uint32_t id, double value) {
  PluginHost& self = of(host);
  if (id == 0 || id > self.n_metrics_.load(std::memory_order_acquire)) return;
  Metric& metric = self.metrics_[id - 1];
  if (!std::isfinite(value) || (metric.kind == MRI_METRIC_COUNTER && value < 0)) return;
  if (metric.kind == MRI_METRIC_GAUGE) {
    metric.value.store(value, std::memory_order_relaxed);
  } else {
    metric.value.fetch_add(value, std::memory_order_relaxed);
  }
  metric.count.fetch_add(1, std::memory_order_relaxed);
}

std::vector<MetricSample> PluginHost::metrics() const {
  std::vector<MetricSample> samples;
  const uint32_t n = n_metrics_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < n; ++i) {
    const Metric& metric = metrics_[i];
    samples.push_back(
        {metric.name, metric.help, metric.kind, metric.value.load(), metric.count.load()});
  }
  return samples;
}

uint32_t PluginHost::concurrency(const mri_host* host) {
  return of(host).services_.threads->concurrency();
}

void PluginHost::parallel_for(const mri_host* host, uint64_t n,
                              void (*task)(void* user, uint64_t i, uint32_t worker), void* user) {
  if (task == nullptr) return;
  // Who crashes in another thread is still the plugin that asked.
  struct Shared {
    void (*task)(void* user, uint64_t i, uint32_t worker);
    void* user;
    Breadcrumb caller;
  } shared{task, user, current_breadcrumb};
  const auto with_breadcrumb = [](void* p, uint64_t i, uint32_t worker) {
    const Shared& from = *static_cast<const Shared*>(p);
    const BreadcrumbScope scope(from.caller);
    from.task(from.user, i, worker);
  };
  of(host).services_.threads->parallel_for(n, with_breadcrumb, &shared);
}

void* PluginHost::alloc(const mri_host* host, uint64_t bytes, uint64_t align, const char*) {
  PluginHost& self = of(host);
  const bool is_power = align != 0 && (align & (align - 1)) == 0;
  if (!is_power || align > kBufferAlignMax) return nullptr;
  const uint64_t used = self.buffer_bytes_.fetch_add(bytes);
  const uint64_t limit = self.services_.buffer_bytes_max;
  const uint64_t pad = std::max<uint64_t>(align, alignof(BufferHeader)) + sizeof(BufferHeader);
  uint64_t total = 0, sum = 0;
  char* base = nullptr;
  if (!__builtin_add_overflow(bytes, pad, &total) && !__builtin_add_overflow(used, bytes, &sum) &&
      (limit == 0 || sum <= limit)) {
    base = static_cast<char*>(std::calloc(1, total));
  }
  if (base == nullptr) {
    self.buffer_bytes_.fetch_sub(bytes);
    return nullptr;
  }
  const uint64_t step = std::max<uint64_t>(align, alignof(BufferHeader));
  const uint64_t first = reinterpret_cast<uint64_t>(base) + sizeof(BufferHeader);
  char* p = base + sizeof(BufferHeader) + (step - first % step) % step;
  const BufferHeader header{base, bytes};
  std::memcpy(p - sizeof(BufferHeader), &header, sizeof(header));
  return p;
}

void PluginHost::release(const mri_host* host, void* p) {
  if (p == nullptr) return;
  BufferHeader header;
  std::memcpy(&header, static_cast<char*>(p) - sizeof(header), sizeof(header));
  of(host).buffer_bytes_.fetch_sub(header.bytes);
  std::free(header.base);
}

}  // namespace varve
