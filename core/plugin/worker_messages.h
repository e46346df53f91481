// Packed messages between host and worker: fixed-size numbers and texts with their lengths, in
// order.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plugin/host.h"
#include "core/plugin/library.h"
#include "mri/ext/params.h"

namespace varve {

class Packer {
 public:
  template <class T>
  void put(T value) {
    static_assert(std::is_arithmetic_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void put_text(std::string_view text) {
    put(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Reads what the other side packed and believes nothing: past the end everything is 0 or empty, and
// is_sound() is false from then on.
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : rest_(bytes) {}

  template <class T>
  T get() {
    static_assert(std::is_arithmetic_v<T>);
    T value{};
    const std::string_view bytes = take(sizeof(value));
    if (bytes.size() == sizeof(value)) std::memcpy(&value, bytes.data(), sizeof(value));
    return value;
  }
  std::string get_text() { return std::string(take(get<uint32_t>())); }
  bool is_sound() const { return is_sound_; }
  // Everything read, and nothing left?
  bool is_done() const { return is_sound_ && rest_.empty(); }

 private:
  std::string_view take(uint64_t n) {
    is_sound_ = is_sound_ && n <= rest_.size();
    if (!is_sound_) return {};
    const std::string_view taken = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return taken;
  }

  std::string_view rest_;
  bool is_sound_ = true;
};

// kLoad.
struct LoadMessage {
  std::string path, kind, who;
  VersionRange host_versions;
  uint64_t buffer_bytes_max = 0;
  bool has_threads = false;
  std::vector<std::string> withheld;
  std::string sha256 = {};  // of the bytes to load
};
std::string packed_load(const LoadMessage& message);
absl::StatusOr<LoadMessage> unpacked_load(std::string_view bytes);

// Its answer: what the library is, or why it is refused. The host checks the entry again with its
// own rules (entry_check.h); `path`, `kind` and `host` are those it asked for.
std::string packed_library(const absl::StatusOr<PluginLibrary>& library);
absl::StatusOr<PluginInfo> unpacked_library(std::string_view bytes, const std::string& path,
                                            std::string_view kind, VersionRange host);

// kActivate. The result points into `texts`.
std::string packed_params(const mri_param* params, uint64_t n_params);
absl::StatusOr<std::vector<mri_param>> unpacked_params(std::string_view bytes,
                                                       std::vector<std::string>* texts);

// The answer to kMetrics.
struct WorkerNumbers {
  uint64_t buffer_bytes = 0;
  std::vector<MetricSample> metrics;
};
std::string packed_numbers(const WorkerNumbers& numbers);
absl::StatusOr<WorkerNumbers> unpacked_numbers(std::string_view bytes);

}  // namespace varve
