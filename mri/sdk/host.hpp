// What a plugin may ask of its host. Every service is optional: without one, log lines and metrics
// vanish and loops run in the calling thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <string_view>
#include <type_traits>

#include "mri/ext/buffer.h"
#include "mri/ext/kernels.h"
#include "mri/ext/log.h"
#include "mri/ext/metrics.h"
#include "mri/ext/stack.h"
#include "mri/ext/threads.h"
#include "mri/host.h"
#include "mri/sdk/error.hpp"

namespace mri {

// Another plugin of the stack: call table->f(self, …). Empty when the profile names none.
template <class Table>
struct Peer {
  const Table* table = nullptr;
  void* self = nullptr;
  explicit operator bool() const { return table != nullptr; }
};

// Cheap to copy; valid until close(). [any]
class Host {
 public:
  explicit Host(const mri_host* host)
      : host_(host),
        log_(find<mri_host_log_v1>(MRI_HOST_LOG)),
        threads_(find<mri_host_threads_v1>(MRI_HOST_THREADS)),
        metrics_(find<mri_host_metrics_v1>(MRI_HOST_METRICS)) {}

  const mri_host* raw() const { return host_; }
  uint32_t version() const { return host_->negotiated; }

  // Table of interface `id`, or null when the host does not offer it at this plugin's size.
  template <class Table>
  const Table* find(const char* id) const {
    const auto* table = static_cast<const Table*>(host_->get_interface(host_, id));
    return table != nullptr && table->struct_size >= sizeof(Table) ? table : nullptr;
  }

  // The runtime's fast code. Throws MRI_E_UNSUPPORTED when there is none.
  const mri_kernels_v1& kernels() const {
    const auto* table = find<mri_kernels_v1>(MRI_KERNELS);
    if (table == nullptr) throw Error(MRI_E_UNSUPPORTED, "the host offers no " MRI_KERNELS);
    return *table;
  }

  // The stack's plugin that offers `id`. For runtimes.
  template <class Table>
  Peer<Table> peer(const char* id, uint32_t ordinal = 0) const {
    Peer<Table> peer;
    const auto* stack = find<mri_host_stack_v1>(MRI_HOST_STACK);
    if (stack == nullptr) return peer;
    peer.table = static_cast<const Table*>(stack->find(host_, id, ordinal, &peer.self));
    if (peer.table != nullptr && peer.table->struct_size < sizeof(Table)) peer.table = nullptr;
    return peer;
  }

  void log(uint32_t level, std::string_view text) const {
    if (log_ != nullptr) log_->write(host_, level, text.data(), text.size());
  }

  // MRI_METRIC_*; 0 when not counted anywhere, which record() accepts.
  uint32_t define_metric(uint32_t kind, const char* name, const char* help) const {
    return metrics_ != nullptr ? metrics_->define(host_, kind, name, help) : 0;
  }
  void record(uint32_t metric, double value) const {
    if (metrics_ != nullptr) metrics_->record(host_, metric, value);
  }

  uint32_t concurrency() const { return threads_ != nullptr ? threads_->concurrency(host_) : 1; }

  // f(i, worker) for each i in [0, n), on all cores. Rethrows one of the exceptions that f threw,
  // after all calls are done.
  template <class F>
  void parallel_for(uint64_t n, F&& f) const {
    if (threads_ == nullptr || n <= 1) {
      for (uint64_t i = 0; i < n; ++i) f(i, 0u);
      return;
    }
    Job<std::remove_reference_t<F>> job{std::addressof(f), {}, {}};
    threads_->parallel_for(host_, n, &Job<std::remove_reference_t<F>>::call, &job);
    if (job.error) std::rethrow_exception(job.error);
  }

 private:
  template <class F>
  struct Job {
    F* f;
    std::atomic<bool> failed;
    std::exception_ptr error;

    static void call(void* user, uint64_t i, uint32_t worker) noexcept {
      auto* job = static_cast<Job*>(user);
      try {
        (*job->f)(i, worker);
      } catch (...) {
        if (!job->failed.exchange(true)) job->error = std::current_exception();
      }
    }
  };

  const mri_host* host_;
  const mri_host_log_v1* log_;
  const mri_host_threads_v1* threads_;
  const mri_host_metrics_v1* metrics_;
};

}  // namespace mri
