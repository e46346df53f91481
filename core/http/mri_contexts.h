// The contexts that clients made over /mri.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/mutex.h"
#include "core/http/held_memory.h"
#include "core/route/dispatcher.h"
#include "mri/kind/runtime.h"
#include "mri/sdk/host.hpp"

namespace varve::http {

// Released when the last call that uses it has ended.
struct MriContext {
  MriContext() = default;
  ~MriContext() {
    if (ctx != 0) runtime.table->release_context(runtime.self, ctx);
  }
  MriContext(const MriContext&) = delete;
  MriContext& operator=(const MriContext&) = delete;

  std::string tenant;
  Placement placement;  // where its tokens are counted
  mri::Peer<mri_runtime_v1> runtime;
  uint64_t ctx = 0;  // the runtime's number for it
  uint32_t priority = 0;
  uint64_t n_vocabulary = 0;
  HeldPart held;
  uint64_t id = 0;                                 // set by add(): the client's number for it
  std::chrono::steady_clock::time_point last_use;  // kept by MriContexts
};

// Thread-safe. A tenant sees its own contexts alone: any other number is kNotFound.
class MriContexts {
 public:
  explicit MriContexts(size_t per_tenant_max) : per_tenant_max_(per_tenant_max) {}

  // Before a context is made; kResourceExhausted when the tenant has as many as it may. add() or
  // unreserve() must follow.
  absl::Status reserve(const std::string& tenant);
  void unreserve(const std::string& tenant);
  uint64_t add(std::shared_ptr<MriContext> context);

  absl::StatusOr<std::shared_ptr<MriContext>> find(const std::string& tenant, uint64_t id);
  absl::Status remove(const std::string& tenant, uint64_t id);
  // Removes what no call uses and none has used for `wait`; returns how many.
  size_t expire(std::chrono::steady_clock::duration wait);

 private:
  const size_t per_tenant_max_;
  Mutex mutex_;
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::shared_ptr<MriContext>> contexts_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, size_t> n_by_tenant_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace varve::http
