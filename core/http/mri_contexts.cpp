#include "core/http/mri_contexts.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace varve::http {
namespace {

absl::Status unknown(uint64_t id) {
  return absl::NotFoundError(absl::StrCat(
      "no context ", id, ": it was never made, was released, or has expired; call init_context"));
}

}  // namespace

absl::Status MriContexts::reserve(const std::string& tenant) {
  const MutexLock lock(&mutex_);
  size_t& n = n_by_tenant_[tenant];
  if (n >= per_tenant_max_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("found ", n, " contexts of this tenant; expected fewer than ", per_tenant_max_,
                     ": release one with DELETE /mri/contexts/{id}"));
  }
  ++n;
  return absl::OkStatus();
}

void MriContexts::unreserve(const std::string& tenant) {
  const MutexLock lock(&mutex_);
  const auto n = n_by_tenant_.find(tenant);
  if (--n->second == 0) n_by_tenant_.erase(n);
}

uint64_t MriContexts::add(std::shared_ptr<MriContext> context) {
  const MutexLock lock(&mutex_);
  context->id = ++last_id_;
  context->last_use = std::chrono::steady_clock::now();
  contexts_.emplace(last_id_, std::move(context));
  return last_id_;
}

absl::StatusOr<std::shared_ptr<MriContext>> MriContexts::find(const std::string& tenant,
                                                              uint64_t id) {
  const MutexLock lock(&mutex_);
  const auto found = contexts_.find(id);
  if (found == contexts_.end() || found->second->tenant != tenant) return unknown(id);
  found->second->last_use = std::chrono::steady_clock::now();
  return found->second;
}

absl::Status MriContexts::remove(const std::string& tenant, uint64_t id) {
  std::shared_ptr<MriContext> removed;  // let go without the lock
  {
    const MutexLock lock(&mutex_);
    const auto found = contexts_.find(id);
    if (found == contexts_.end() || found->second->tenant != tenant) return unknown(id);
    removed = std::move(found->second);
    contexts_.erase(found);
  }
  unreserve(tenant);
  return absl::OkStatus();
}

size_t MriContexts::expire(std::chrono::steady_clock::duration wait) {
  std::vector<std::shared_ptr<MriContext>> expired;
  {
    const MutexLock lock(&mutex_);
    const auto now = std::chrono::steady_clock::now();
    std::erase_if(contexts_, [&](auto& entry) {
      if (entry.second.use_count() > 1) entry.second->last_use = now;
      if (now - entry.second->last_use < wait) return false;
      expired.push_back(std::move(entry.second));
      return true;
    });
  }
  for (const auto& context : expired) unreserve(context->tenant);
  return expired.size();
}

}  // namespace varve::http
