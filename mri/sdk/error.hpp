// How a plugin written in C++ reports failure: throw mri::Error (or anything); guard() turns it
// into a status and text.
#pragma once

#include <cxxabi.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "mri/status.h"

namespace mri {

// A failure with the status that the host shall see.
class Error : public std::runtime_error {
 public:
  Error(mri_status status, const std::string& text) : std::runtime_error(text), status_(status) {}
  mri_status status() const { return status_; }

 private:
  mri_status status_;
};

// Fills the caller's error. `err` may be null. Cuts at 239 bytes, never inside a UTF-8 sequence.
// Returns `status`.
inline mri_status set_error(mri_error* err, mri_status status, std::string_view text) noexcept {
  if (err == nullptr || err->struct_size < sizeof(mri_error)) return status;
  size_t n = std::min(text.size(), sizeof(err->msg) - 1);
  if (n < text.size()) {
    while (n > 0 && (static_cast<unsigned char>(text[n]) & 0xC0u) == 0x80u) --n;
  }
  std::memcpy(err->msg, text.data(), n);
  err->msg[n] = '\0';
  err->msg_len = static_cast<uint32_t>(n);
  err->status = status;
  return status;
}

// Calls f(), which returns void or mri_status. No exception leaves, except the unwinding of a
// cancelled thread.
template <class F>
mri_status guard(mri_error* err, F&& f) {
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<F>>) {
      f();
      return MRI_OK;
    } else {
      return f();
    }
  } catch (const Error& e) {
    return set_error(err, e.status(), e.what());
  } catch (const std::bad_alloc&) {
    return set_error(err, MRI_E_NOMEM, "out of memory");
  } catch (const std::exception& e) {
    return set_error(err, MRI_E_INTERNAL, e.what());
  } catch (abi::__forced_unwind&) {
    throw;
  } catch (...) {
    return set_error(err, MRI_E_INTERNAL, "an exception of unknown type");
  }
}

}  // namespace mri
