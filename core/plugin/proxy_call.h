// The common body of proxies. Only for proxy_*.cpp.
#pragma once

#include <cstddef>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "core/plugin/proxy.h"
#include "mri/sdk/sizes.hpp"

namespace varve {

inline PluginPort& port_of(void* self) { return *static_cast<PluginPort*>(self); }

template <class Table>
const Table& table_of(const PluginPort& port) {
  return *static_cast<const Table*>(port.table);
}

// Is it there, and as long as in MRI 1.0?
template <class T>
bool is_usable(const T* request_or_response) {
  return request_or_response != nullptr && request_or_response->hdr.struct_size >= mri::kSize10<T>;
}

inline mri_status bad_caller(mri_error* err) {
  return fill_error(err, MRI_E_ARG, "null or short request or response");
}

// A call with an answer. `call(err)` calls the plugin; `check()` returns what is wrong with an
// answer that came with MRI_OK, or nullptr.
template <class Rsp, class Call, class Check>
mri_status answered(PluginPort& port, uint32_t req_size, Rsp* rsp, mri_error* caller_err,
                    Call&& call, Check&& check, const char* function = __builtin_FUNCTION()) {
  ErrorSlot err(caller_err);
  if (const mri_status status = port.guard.check_active(err.get()); status != MRI_OK) return status;
  const PluginGuard::Sizes sizes = port.guard.before(rsp, req_size);
  mri_status status = port.guard.contain(
      err.get(), [&] { return call(err.get()); }, function);
  status = port.guard.after(rsp, sizes, status, err.get());
  if (status != MRI_OK) return status;
  const char* wrong = check();
  return wrong == nullptr ? MRI_OK : port.guard.broken(err.get(), wrong);
}

// A call without an answer to check.
template <class Call>
mri_status plain(PluginPort& port, mri_error* caller_err, Call&& call,
                 const char* function = __builtin_FUNCTION()) {
  ErrorSlot err(caller_err);
  if (const mri_status status = port.guard.check_active(err.get()); status != MRI_OK) return status;
  return port.guard.contain(
      err.get(), [&] { return call(err.get()); }, function);
}

// Holds contexts for one call; the plugin is called without any lock.
class StepLease {
 public:
  StepLease(PluginPort& port, uint64_t ctx) : StepLease(port, Contexts{ctx}) {}
  StepLease(PluginPort& port, const mri_step_req& req) : StepLease(port, contexts_of(req)) {}
  ~StepLease() {
    if (taken_ == 0) port_.contexts.leave(contexts_);
  }
  StepLease(const StepLease&) = delete;
  StepLease& operator=(const StepLease&) = delete;

  // MRI_OK, or MRI_E_STATE with text.
  mri_status check(mri_error* err) const {
    if (taken_ == 0) return MRI_OK;
    if (taken_ == UINT64_MAX) return fill_error(err, MRI_E_NOT_FOUND, "there is no context 0");
    return fill_error(err, MRI_E_STATE,
                      absl::StrCat("context ", taken_,
                                   " has another step or summary call under way, or is named "
                                   "twice: one at a time per context"));
  }

 private:
  using Contexts = absl::InlinedVector<uint64_t, 16>;

  StepLease(PluginPort& port, Contexts contexts)
      : port_(port), contexts_(std::move(contexts)), taken_(port.contexts.enter(contexts_)) {}

  static Contexts contexts_of(const mri_step_req& req) {
    Contexts contexts;
    for (uint64_t i = 0; i < req.n_seqs; ++i) contexts.push_back(req.seqs[i].ctx);
    return contexts;
  }

  PluginPort& port_;
  const Contexts contexts_;  // a copy: the plugin may write to the request's sequences
  const uint64_t taken_;
};

inline const char* nothing_wrong() { return nullptr; }

}  // namespace varve
