#include "core/plugin/guard.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "core/base/limits.h"
#include "core/base/text.h"

namespace varve {
namespace {

constexpr uint64_t kMisbehaviourLinesMax = 10;

}  // namespace

mri_status fill_error(mri_error* err, mri_status status, std::string_view text) {
  if (err == nullptr || err->struct_size < sizeof(mri_error)) return status;
  const std::string clean = clean_text(text, sizeof(err->msg) - 1);
  std::memcpy(err->msg, clean.c_str(), clean.size() + 1);
  err->msg_len = static_cast<uint32_t>(clean.size());
  err->status = status;
  return status;
}

const char* status_name(mri_status status) {
  static constexpr const char* kNames[] = {
      "success",       "invalid argument", "unsupported",       "no common version",
      "out of memory", "device failure",   "busy, retry later", "cancelled",
      "no such thing", "plugin defect",    "not legal now",     "buffer too small"};
  const bool known = status >= 0 && static_cast<size_t>(status) < std::size(kNames);
  return known ? kNames[status] : nullptr;
}

void PluginGuard::count_misbehaviour(std::string_view what) {
  const uint64_t before = misbehaved_.fetch_add(1, std::memory_order_relaxed);
  if (!log_ || before >= kMisbehaviourLinesMax) return;
  log_(LogLevel::kError, who_,
       absl::StrCat("plugin misbehaves: ", clean_text(what, kLogLineBytesMax),
                    before + 1 == kMisbehaviourLinesMax ? " (further ones are only counted)" : ""));
}

mri_status PluginGuard::check_active(mri_error* err) const {
  const PluginState now = state();
  if (now == PluginState::kActive) return MRI_OK;
  return fill_error(err, MRI_E_STATE,
                    absl::StrCat(who_, ": called ",
                                 now == PluginState::kOpened ? "before activate" : "after drain"));
}

mri_status PluginGuard::broken(mri_error* err, std::string_view what) {
  count_misbehaviour(what);
  return fill_error(err, MRI_E_INTERNAL,
                    absl::StrCat(who_, ": ", clean_text(what, sizeof(mri_error))));
}

mri_status PluginGuard::checked(mri_status status, mri_error* err) {
  const char* name = status_name(status);
  if (name == nullptr) return broken(err, absl::StrCat("unknown status ", status));
  const size_t n = strnlen(err->msg, sizeof(err->msg));
  if (n == sizeof(err->msg)) count_misbehaviour("error text without an end");
  const std::string text(err->msg, n);
  return fill_error(err, status, text.empty() ? std::string_view(name) : std::string_view(text));
}

}  // namespace varve
