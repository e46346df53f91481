// A host for a plugin's own tests: compile the plugin's sources into the test program, and
//
//   mri::testing::Plugin plugin({{"window_tokens", int64_t{64}}});
//   const auto& tier = plugin.table<mri_kv_tier_v1>(MRI_KV_TIER);
//   MRI_CHECK(tier.decide(plugin.self(), &req, &rsp, nullptr) == MRI_OK);
//   return mri::testing::result();
//
// Loops run in the calling thread, log lines and metrics vanish; other interfaces are those that
// the test gives.
#pragma once

#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "mri/entry.h"

// The plugin's own; it is in the same program.
extern "C" const mri_plugin_entry mri_plugin_entry_v1;

namespace mri::testing {

using ParamValue = std::variant<bool, int64_t, double, std::string>;
using ParamValues = std::vector<std::pair<std::string, ParamValue>>;
// Tables by interface id, for what the plugin asks of its host.
using Interfaces = std::map<std::string, const void*>;

// The plugin of this program, opened and activated; drained and closed at the end. Throws
// std::runtime_error with the plugin's text when it refuses.
class Plugin {
 public:
  explicit Plugin(const ParamValues& values = {}, Interfaces interfaces = {},
                  uint32_t version = MRI_TARGET_VERSION)
      : interfaces_(std::move(interfaces)), host_{sizeof(mri_host), version, MRI_1_0, version,
                                                  "test",           "1.0",   this,    find} {
    mri_error error = empty_error();
    require(mri_plugin_entry_v1.open(&host_, version, &plugin_, &error), "open", error);
    const std::vector<mri_param> params = params_of(values);
    const mri_status status =
        plugin_->activate(plugin_->self, params.data(), params.size(), &error);
    if (status != MRI_OK) plugin_->close(plugin_->self);
    require(status, "activate", error);
  }
  ~Plugin() {
    mri_error error = empty_error();
    plugin_->drain(plugin_->self, kDrainNs, &error);
    plugin_->close(plugin_->self);
  }
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  void* self() const { return plugin_->self; }

  template <class Table>
  const Table& table(const char* id) const {
    const void* table = plugin_->get_interface(plugin_->self, id);
    if (table == nullptr) throw std::runtime_error(std::string("the plugin has no ") + id);
    return *static_cast<const Table*>(table);
  }

 private:
  static constexpr uint64_t kDrainNs = 1'000'000'000;

  static mri_error empty_error() {
    mri_error error{};
    error.struct_size = sizeof(error);
    return error;
  }

  static void require(mri_status status, const char* call, const mri_error& error) {
    if (status == MRI_OK) return;
    throw std::runtime_error(std::string(call) + ": status " + std::to_string(status) + ": " +
                             error.msg);
  }

  static std::vector<mri_param> params_of(const ParamValues& values) {
    std::vector<mri_param> params;
    for (const auto& [key, value] : values) {
      mri_param param{};
      param.key = key.c_str();
      if (const auto* b = std::get_if<bool>(&value)) {
        param.type = MRI_PARAM_BOOL;
        param.int_value = *b ? 1 : 0;
      } else if (const auto* i = std::get_if<int64_t>(&value)) {
        param.type = MRI_PARAM_INT;
        param.int_value = *i;
      } else if (const auto* d = std::get_if<double>(&value)) {
        param.type = MRI_PARAM_FLOAT;
        param.float_value = *d;
      } else {
        param.type = MRI_PARAM_STRING;
        param.string_value = std::get<std::string>(value).c_str();
      }
      params.push_back(param);
    }
    return params;
  }

  static const void* find(const mri_host* host, const char* id) {
    const auto& interfaces = static_cast<const Plugin*>(host->self)->interfaces_;
    const auto it = interfaces.find(id);
    return it == interfaces.end() ? nullptr : it->second;
  }

  Interfaces interfaces_;
  mri_host host_;
  mri_plugin* plugin_ = nullptr;
};

// A request or response with its size set, all else zero.
template <class T>
T sized() {
  T value{};
  value.hdr.struct_size = sizeof(T);
  return value;
}

inline int n_failed = 0;

inline void check(bool holds, const char* what, const char* file, int line) {
  if (holds) return;
  ++n_failed;
  std::fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, what);
}

// main()'s return value: 0 when every MRI_CHECK held.
inline int result() { return n_failed == 0 ? 0 : 1; }

}  // namespace mri::testing

// Prints what does not hold, and goes on.
#define MRI_CHECK(condition) ::mri::testing::check((condition), #condition, __FILE__, __LINE__)
