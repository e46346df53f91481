// The host that the checks show to a plugin: every service of ext/, watched.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "mri/conformance/suite.h"
#include "mri/host.h"

namespace mri::conformance {

// One plugin's host. Its interfaces may be called from any thread.
class WatchedHost {
 public:
  // Stays until the process ends, so that a late use of it is seen and harms nobody. `withheld`: an
  // interface id that is not offered.
  static WatchedHost& make(Bench& bench, const std::string& withheld = {});

  WatchedHost(Report* report, uint32_t version, const mri_kernels_v1* kernels,
              std::string withheld);
  WatchedHost(const WatchedHost&) = delete;
  WatchedHost& operator=(const WatchedHost&) = delete;

  const mri_host* abi() const { return &abi_; }
  // After `n` more buffers there is no memory.
  void give_buffers(uint64_t n) { buffers_left_ = n; }
  // From now on every use of the host is a finding.
  void close() { closed_ = true; }
  // What the plugin did wrong with its host, and what it did not give back. "": nothing.
  std::string faults() const;

 private:
  static WatchedHost& of(const mri_host* host) { return *static_cast<WatchedHost*>(host->self); }
  static const void* get_interface(const mri_host* host, const char* id);
  static void write_log(const mri_host* host, uint32_t level, const char* text, uint64_t n_bytes);
  static uint32_t define(const mri_host* host, uint32_t kind, const char* name, const char* help);
  static void record(const mri_host* host, uint32_t id, double value);
  static uint32_t concurrency(const mri_host* host);
  static void parallel_for(const mri_host* host, uint64_t n,
                           void (*task)(void* user, uint64_t i, uint32_t worker), void* user);
  static const void* find_peer(const mri_host* host, const char* id, uint32_t ordinal, void** peer);
  static void* alloc(const mri_host* host, uint64_t bytes, uint64_t align, const char* tag);
  static void release(const mri_host* host, void* p);

  // Notes a use; `what` names it in a fault.
  void used(const char* what);
  void fault(const std::string& text);

  Report* const report_;
  mri_host abi_;
  const mri_kernels_v1* kernels_;
  const std::string withheld_;
  std::atomic<bool> closed_{false};
  std::atomic<uint64_t> buffers_left_{UINT64_MAX};
  mutable std::mutex mutex_;
  std::string faults_;
  std::map<void*, std::string> buffers_;  // not released yet, with their tags
  std::map<std::string, uint32_t> metrics_;
};

}  // namespace mri::conformance
