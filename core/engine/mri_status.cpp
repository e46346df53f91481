#include "core/engine/mri_status.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace varve {
namespace {

struct Meaning {
  absl::StatusCode code;
  const char* text;
};

Meaning meaning_of(mri_status status) {
  switch (status) {
    case MRI_E_ARG:
      return {absl::StatusCode::kInvalidArgument, "the plugin refused an argument"};
    case MRI_E_UNSUPPORTED:
      return {absl::StatusCode::kUnimplemented, "the plugin does not offer this"};
    case MRI_E_VERSION:
      return {absl::StatusCode::kFailedPrecondition, "no common MRI version"};
    case MRI_E_NOMEM:
      return {absl::StatusCode::kResourceExhausted,
              "a memory budget or the machine's memory is exhausted"};
    case MRI_E_DEVICE:
      return {absl::StatusCode::kUnavailable, "a device or file failed"};
    case MRI_E_BUSY:
      return {absl::StatusCode::kUnavailable, "the plugin is busy"};
    case MRI_E_CANCELLED:
      return {absl::StatusCode::kCancelled, "cancelled"};
    case MRI_E_NOT_FOUND:
      return {absl::StatusCode::kNotFound, "no such context, block or file"};
    case MRI_E_STATE:
      return {absl::StatusCode::kFailedPrecondition, "the call is not legal now"};
    case MRI_E_SPACE:
      return {absl::StatusCode::kOutOfRange, "the caller's buffer is too small"};
    default:
      return {absl::StatusCode::kInternal, "a defect in the plugin"};
  }
}

}  // namespace

mri_error empty_error() {
  mri_error error{};
  error.struct_size = sizeof(error);
  return error;
}

absl::Status to_status(std::string_view call, mri_status status, const mri_error& error) {
  const Meaning meaning = meaning_of(status);
  const std::string given(error.msg, strnlen(error.msg, sizeof(error.msg)));
  return absl::Status(meaning.code,
                      absl::StrCat(std::string(call), ": ", given.empty() ? meaning.text : given));
}

}  // namespace varve
