#include "mri/conformance/host.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "mri/ext/buffer.h"
#include "mri/ext/log.h"
#include "mri/ext/metrics.h"
#include "mri/ext/stack.h"
#include "mri/ext/threads.h"
#include "mri/kind/runtime.h"
#include "mri/version.h"

namespace mri::conformance {
namespace {

constexpr uint32_t kConcurrency = 2;
constexpr uint64_t kBufferBytesMax = uint64_t{1} << 30;

bool is_name(std::string_view name) {
  return !name.empty() &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == name.npos;
}

}  // namespace

WatchedHost& WatchedHost::make(Bench& bench, const std::string& withheld) {
  static auto* hosts = new std::vector<std::unique_ptr<WatchedHost>>;  // never destroyed
  hosts->push_back(
      std::make_unique<WatchedHost>(bench.report, bench.version, bench.kernels, withheld));
  return *hosts->back();
}

WatchedHost::WatchedHost(Report* report, uint32_t version, const mri_kernels_v1* kernels,
                         std::string withheld)
    : report_(report),
      abi_{sizeof(mri_host), version, MRI_1_0, version,
           "mri-conform",    "1.0.0", this,    get_interface},
      kernels_(kernels),
      withheld_(std::move(withheld)) {}

std::string WatchedHost::faults() const {
  const std::lock_guard lock(mutex_);
  std::string text = faults_;
  for (const auto& [pointer, tag] : buffers_) text += "buffer '" + tag + "' was never released; ";
  return text;
}

void WatchedHost::used(const char* what) {
  if (closed_) report_->fail(std::string(what) + " of the host was called after close()");
}

void WatchedHost::fault(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (faults_.size() < 1000) faults_ += text;
}

const void* WatchedHost::get_interface(const mri_host* host, const char* id) {
  static constexpr mri_host_log_v1 kLog = {sizeof(mri_host_log_v1), 0, write_log};
  static constexpr mri_host_metrics_v1 kMetrics = {sizeof(mri_host_metrics_v1), 0, define, record};
  static constexpr mri_host_threads_v1 kThreads = {sizeof(mri_host_threads_v1), 0,
                                                   &WatchedHost::concurrency, parallel_for};
  static constexpr mri_host_buffer_v1 kBuffer = {sizeof(mri_host_buffer_v1), 0, alloc, release};
  static constexpr mri_host_stack_v1 kStack = {sizeof(mri_host_stack_v1), 0, find_peer};
  WatchedHost& self = of(host);
  self.used("mri_host.get_interface");
  const std::string_view name = id == nullptr ? "" : id;
  if (name == self.withheld_) return nullptr;
  if (name == MRI_HOST_LOG) return &kLog;
  if (name == MRI_HOST_METRICS) return &kMetrics;
  if (name == MRI_HOST_THREADS) return &kThreads;
  if (name == MRI_HOST_BUFFER) return &kBuffer;
  if (name == MRI_HOST_STACK) return &kStack;
  if (name == MRI_KERNELS) return self.kernels_;
  return nullptr;
}

void WatchedHost::write_log(const mri_host* host, uint32_t, const char* text, uint64_t n_bytes) {
  of(host).used("log.write");
  if (text == nullptr && n_bytes > 0) of(host).fault("log.write got a null text; ");
}

uint32_t WatchedHost::define(const mri_host* host, uint32_t kind, const char* name, const char*) {
  WatchedHost& self = of(host);
  self.used("metrics.define");
  if (name == nullptr || !is_name(name) || kind < MRI_METRIC_COUNTER ||
      kind > MRI_METRIC_HISTOGRAM) {
    self.fault("metrics.define got the name '" + std::string(name == nullptr ? "" : name) +
               "', kind " + std::to_string(kind) + "; ");
    return 0;
  }
  const std::lock_guard lock(self.mutex_);
  return self.metrics_.try_emplace(name, self.metrics_.size() + 1).first->second;
}

void WatchedHost::record(const mri_host* host, uint32_t, double) {
  of(host).used("metrics.record");
}

uint32_t WatchedHost::concurrency(const mri_host* host) {
  of(host).used("threads.concurrency");
  return kConcurrency;
}

// Backwards, so that nobody relies on the order.
void WatchedHost::parallel_for(const mri_host* host, uint64_t n,
                               void (*task)(void* user, uint64_t i, uint32_t worker), void* user) {
  WatchedHost& self = of(host);
  self.used("threads.parallel_for");
  std::atomic<uint64_t> left{n};
  const auto work = [&](uint32_t worker) {
    for (uint64_t i = 0; (i = left.load()) > 0;) {
      if (left.compare_exchange_weak(i, i - 1)) task(user, i - 1, worker);
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t w = 1; w < kConcurrency && w < n; ++w) threads.emplace_back(work, w);
  work(0);
  for (std::thread& thread : threads) thread.join();
}

const void* WatchedHost::find_peer(const mri_host* host, const char* id, uint32_t, void** peer) {
  WatchedHost& self = of(host);
  self.used("stack.find");
  if (peer != nullptr) *peer = nullptr;
  if (id != nullptr && std::string_view(id) == MRI_RUNTIME) {
    self.fault(
        "stack.find was asked for the runtime itself, whose call is under way: call your own "
        "functions; ");
  }
  return nullptr;
}

void* WatchedHost::alloc(const mri_host* host, uint64_t bytes, uint64_t align, const char* tag) {
  WatchedHost& self = of(host);
  self.used("buffer.alloc");
  if (align == 0 || (align & (align - 1)) != 0 || align > 4096) {
    self.fault("buffer.alloc got the alignment " + std::to_string(align) + "; ");
    return nullptr;
  }
  if (bytes == 0 || bytes > kBufferBytesMax) return nullptr;
  uint64_t left = self.buffers_left_.load();
  while (left > 0 && !self.buffers_left_.compare_exchange_weak(left, left - 1)) continue;
  if (left == 0) return nullptr;
  void* p = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (p == nullptr) return nullptr;
  std::memset(p, 0, bytes);
  const std::lock_guard lock(self.mutex_);
  self.buffers_[p] = tag == nullptr ? "" : tag;
  return p;
}

void WatchedHost::release(const mri_host* host, void* p) {
  WatchedHost& self = of(host);
  self.used("buffer.release");
  if (p == nullptr) return;
  {
    const std::lock_guard lock(self.mutex_);
    if (self.buffers_.erase(p) > 0) {
      std::free(p);
      return;
    }
  }
  self.fault("buffer.release got what buffer.alloc never gave, or twice; ");
}

}  // namespace mri::conformance
