// The size rules of growable structs. Kind headers apply them; a plugin's methods see whole structs
// of its own version.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "mri/kind/runtime.h"
#include "mri/sdk/error.hpp"
#include "mri/status.h"

namespace mri {

// The smallest struct_size that a caller may give: the struct's size in MRI 1.0.
template <class T>
inline constexpr uint32_t kSize10 = sizeof(T);
template <>
inline constexpr uint32_t kSize10<mri_evict_rsp> = MRI_EVICT_RSP_SIZE_1_0;

// min(struct_size, sizeof(T)). Throws MRI_E_ARG when `raw` is null or shorter than in 1.0.
template <class T>
uint32_t common_size(const T* raw) {
  if (raw == nullptr) throw Error(MRI_E_ARG, "null request or response");
  const uint32_t size = raw->hdr.struct_size;
  if (size < kSize10<T>) {
    throw Error(MRI_E_ARG, "struct_size is " + std::to_string(size) + ", MRI 1.0 has " +
                               std::to_string(kSize10<T>));
  }
  return std::min(size, static_cast<uint32_t>(sizeof(T)));
}

// A caller's request at this plugin's size: what the caller does not have reads as zero.
template <class T>
class Request {
 public:
  explicit Request(const T* raw) : seen_(common_size(raw)) { std::memcpy(&value_, raw, seen_); }
  const T& operator*() const { return value_; }
  uint32_t seen() const { return seen_; }

 private:
  uint32_t seen_;
  T value_{};
};

// A caller's response at this plugin's size. Going out of scope copies back what the caller has
// room for and says so in `written` and `req_seen`, after success and failure alike (MRI_E_SPACE
// needs its counts).
template <class T>
class Response {
 public:
  explicit Response(T* raw) : Response(raw, common_size(raw)) {}
  Response(T* raw, uint32_t req_seen) : raw_(raw), size_(common_size(raw)) {
    std::memcpy(&value_, raw, size_);
    value_.hdr.written = size_;
    value_.hdr.req_seen = req_seen;
  }
  ~Response() { std::memcpy(raw_, &value_, size_); }
  Response(const Response&) = delete;
  Response& operator=(const Response&) = delete;
  T& operator*() { return value_; }

 private:
  T* raw_;
  uint32_t size_;
  T value_{};
};

// Does the answer hold this member? A host reads newer members only through this.
template <class T, class Member>
bool has(const T& rsp, Member T::*member) {
  const auto* base = reinterpret_cast<const char*>(&rsp);
  const auto* field = reinterpret_cast<const char*>(&(rsp.*member));
  return static_cast<uint64_t>(field - base) + sizeof(Member) <= rsp.hdr.written;
}

// Fills a caller's array and counts on past its end, so that the count says how much room is
// needed.
template <class T>
class Writer {
 public:
  Writer(T* out, uint64_t capacity, uint64_t* count)
      : out_(out), capacity_(capacity), count_(count) {
    *count_ = 0;
  }
  void push(const T& value) {
    if (*count_ < capacity_) out_[*count_] = value;
    ++*count_;
  }
  void push(const T* values, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) push(values[i]);
  }
  // MRI_OK, or MRI_E_SPACE when not everything fitted.
  mri_status status() const { return *count_ <= capacity_ ? MRI_OK : MRI_E_SPACE; }

 private:
  T* out_;
  uint64_t capacity_;
  uint64_t* count_;
};

}  // namespace mri
