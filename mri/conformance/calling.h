// How the checks call a plugin: straight, without a host's proxies, and watching what every call
// must keep to.
#pragma once

#include <cxxabi.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "mri/conformance/suite.h"
#include "mri/sdk/sizes.hpp"

namespace mri::conformance {

inline constexpr unsigned char kCanary = 0xa5;
inline constexpr uint64_t kCanaryBytes = 256;

// n values between watched bytes.
template <class T>
class Guarded {
 public:
  explicit Guarded(uint64_t n, T fill = {})
      : n_(n), bytes_(n * sizeof(T) + 2 * kCanaryBytes + 64, kCanary) {
    const auto at = reinterpret_cast<uintptr_t>(bytes_.data()) + kCanaryBytes;
    data_ = reinterpret_cast<T*>((at + 63) / 64 * 64);
    std::fill(data_, data_ + n, fill);
  }
  Guarded(const std::vector<T>& from) : Guarded(from.size()) {  // NOLINT: a copy of it, guarded
    std::copy(from.begin(), from.end(), data_);
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](uint64_t i) { return data_[i]; }
  const T& operator[](uint64_t i) const { return data_[i]; }
  uint64_t size() const { return n_; }
  std::vector<T> copy() const { return std::vector<T>(data_, data_ + n_); }

  // Is everything around the values as it was?
  bool is_intact() const {
    const auto* first = reinterpret_cast<const unsigned char*>(data_);
    const auto is_canary = [](unsigned char b) { return b == kCanary; };
    return std::all_of(bytes_.data(), first, is_canary) &&
           std::all_of(first + n_ * sizeof(T), bytes_.data() + bytes_.size(), is_canary);
  }

 private:
  uint64_t n_;
  std::vector<unsigned char> bytes_;
  T* data_;
};

// A request or response of `struct_size` bytes, which may be more or fewer than T has; what follows
// T is filled with `beyond`.
template <class T>
class Sized {
 public:
  explicit Sized(const T& value, uint32_t struct_size = sizeof(T), unsigned char beyond = 0)
      : bytes_(struct_size, beyond) {
    std::memcpy(bytes_.data(), &value, std::min<uint64_t>(struct_size, sizeof(T)));
    get()->hdr.struct_size = struct_size;
  }
  T* get() { return reinterpret_cast<T*>(bytes_.data()); }
  T* operator->() { return get(); }
  bool is_intact() const { return bytes_.is_intact(); }

 private:
  Guarded<unsigned char> bytes_;
};

// A T of the size that a host of the negotiated version gives.
template <class T>
T sized(const T& from = {}) {
  T value = from;
  value.hdr.struct_size = sizeof(T);
  return value;
}

// What a failed call said, for findings: "status 4 (out of memory here)".
std::string said(mri_status status, const mri_error& err);

// Is `status` one of mri/status.h?
bool is_listed(mri_status status);

// An error's memory, watched.
class ErrorBox {
 public:
  ErrorBox();
  mri_error* get() { return err_.data(); }
  // Is what came with `status` fit to be shown?
  void check(Bench& bench, const std::string& what, mri_status status) const;
  std::string text(mri_status status) const { return said(status, err_[0]); }

 private:
  Guarded<mri_error> err_;
};

// f(err) -> mri_status. Fails the test when the status is none, its text cannot be shown, or an
// exception comes out. `text`, if given, gets said().
template <class F>
mri_status call(Bench& bench, const std::string& what, F&& f, std::string* text = nullptr) {
  ErrorBox err;
  mri_status status = MRI_OK;
  try {
    status = f(err.get());
  } catch (abi::__forced_unwind&) {
    throw;
  } catch (const std::exception& e) {
    bench.report->fail(what + ": a C++ exception crossed the interface: " + e.what());
    throw Stop{};
  } catch (...) {
    bench.report->fail(what + ": an exception of unknown type crossed the interface");
    throw Stop{};
  }
  err.check(bench, what, status);
  if (text != nullptr) *text = err.text(status);
  return status;
}

// The same for a call that must succeed.
template <class F>
void must(Bench& bench, const std::string& what, F&& f) {
  std::string text;
  if (call(bench, what, f, &text) == MRI_OK) return;
  bench.report->fail(what + ": wanted success, got " + text);
  throw Stop{};
}

// Does each of a few calls of f() put the calling thread to sleep at least once? Counted by the
// kernel as voluntary context switches, so that how busy the machine is has no part in it; a thread
// that spins is not seen.
bool sleeps_each_time(const std::function<void()>& f);

// Calls is_right(thread) `times` times in each of four threads at once, thread = 0 .. 3. The test
// fails with how many `what` were wrong, among them one whose call threw Stop.
void in_four_threads(Bench& bench, int times, const std::string& what,
                     const std::function<bool(uint64_t thread)>& is_right);

}  // namespace mri::conformance
