// What stands between the host and every call into a plugin: state, containment, and the checks of
// an answer. One per plugin; costs a few atomic loads per call.
#pragma once

#include <cxxabi.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/log.h"
#include "core/plugin/crash_record.h"
#include "mri/status.h"

namespace varve {

enum class PluginState : uint32_t { kOpened, kActive, kDrained };

// All methods may be called from any thread.
class PluginGuard {
 public:
  PluginGuard(std::string who, LogSink log) : who_(std::move(who)), log_(std::move(log)) {}

  PluginState state() const { return state_.load(std::memory_order_acquire); }
  void set_state(PluginState state) { state_.store(state, std::memory_order_release); }

  // For the record of a crash; before the first call.
  void identify(const PluginIdentity& plugin) { plugin_.emplace(plugin); }

  // Broken promises of the plugin so far. Each is logged, the first ones in full.
  uint64_t misbehaved() const { return misbehaved_.load(std::memory_order_relaxed); }
  void count_misbehaviour(std::string_view what);

  // MRI_OK while active, else MRI_E_STATE with text.
  mri_status check_active(mri_error* err) const;

  // Counts the broken promise and says so in `err`; returns MRI_E_INTERNAL.
  mri_status broken(mri_error* err, std::string_view what);

  // Runs `call`, which returns a status of the plugin or void. No exception leaves; an unknown
  // status becomes MRI_E_INTERNAL; the text in `err` is clean UTF-8 with an end afterwards.
  // `function`: what a crash report names.
  template <class Call>
  mri_status contain(mri_error* err, Call&& call, const char* function = __builtin_FUNCTION());

  // The headers of an answer, before and after the call. `Rsp` has the member hdr.
  struct Sizes {
    uint32_t rsp = 0;
    uint32_t req = UINT32_MAX;
  };
  template <class Rsp>
  Sizes before(Rsp* rsp, uint32_t req_size) const;
  template <class Rsp>
  mri_status after(Rsp* rsp, Sizes sizes, mri_status status, mri_error* err);

 private:
  // A call's status and text, made fit to be shown.
  mri_status checked(mri_status status, mri_error* err);

  const std::string who_;
  const LogSink log_;
  std::optional<PluginIdentity> plugin_;
  std::atomic<PluginState> state_{PluginState::kOpened};
  std::atomic<uint64_t> misbehaved_{0};
};

// Writes `text` to `err`, which may be null; cut and cleaned as needed. Returns `status`.
mri_status fill_error(mri_error* err, mri_status status, std::string_view text);

// "out of memory" for MRI_E_NOMEM; nullptr for a value that mri/status.h does not list.
const char* status_name(mri_status status);

// `err` of a caller when it is usable, else one of its own whose text is lost. Starts empty.
class ErrorSlot {
 public:
  explicit ErrorSlot(mri_error* err)
      : err_(err != nullptr && err->struct_size >= sizeof(mri_error) ? err : &own_) {
    err_->struct_size = sizeof(mri_error);
    err_->status = MRI_OK;
    err_->vendor_code = 0;
    err_->msg_len = 0;
    err_->msg[0] = '\0';
  }
  mri_error* get() { return err_; }

 private:
  mri_error own_;
  mri_error* err_;
};

template <class Call>
mri_status PluginGuard::contain(mri_error* err, Call&& call, const char* function) {
  const BreadcrumbScope scope({plugin_.has_value() ? &*plugin_ : nullptr, function});
  try {
    const mri_status status = call();
    return status == MRI_OK && err->msg[0] == '\0' ? MRI_OK : checked(status, err);
  } catch (abi::__forced_unwind&) {
    throw;  // the thread is being cancelled
  } catch (const std::exception& e) {
    return broken(err, e.what());
  } catch (...) {
    return broken(err, "an exception of unknown type");
  }
}

template <class Rsp>
PluginGuard::Sizes PluginGuard::before(Rsp* rsp, uint32_t req_size) const {
  rsp->hdr.written = 0;
  rsp->hdr.req_seen = 0;
  return {rsp->hdr.struct_size, req_size};
}

template <class Rsp>
mri_status PluginGuard::after(Rsp* rsp, Sizes sizes, mri_status status, mri_error* err) {
  const mri_rsp_hdr hdr = rsp->hdr;
  const bool too_much =
      hdr.struct_size != sizes.rsp || hdr.written > sizes.rsp || hdr.req_seen > sizes.req;
  const bool nothing = status == MRI_OK && (hdr.written == 0 || hdr.req_seen == 0);
  if (!too_much && !nothing) return status;
  rsp->hdr.struct_size = sizes.rsp;
  rsp->hdr.written = 0;
  return broken(err, too_much ? "its answer claims more bytes than there are"
                              : "its answer says that nothing was written or read");
}

}  // namespace varve
