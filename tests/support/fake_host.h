// fake_host.h: a host for one plugin: loops run in the calling thread, kernels are those of
// kernels/ref.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "mri/entry.h"
#include "mri/ext/kernels.h"
#include "tools/mri_conform/ref_kernels.h"

namespace varve::test {

using varve::ref_kernels;

// A plugin library, opened and activated. Throws std::runtime_error with the plugin's text when it
// refuses.
class FakeHost {
 public:
  // `concurrency`: threads of parallel_for; 1 runs loops in the calling thread.
  FakeHost(const std::string& library, std::vector<mri_param> params, uint32_t concurrency = 1);
  ~FakeHost();
  FakeHost(const FakeHost&) = delete;
  FakeHost& operator=(const FakeHost&) = delete;

  const mri_plugin_entry& entry() const { return *entry_; }
  void* self() const { return plugin_->self; }

  template <class Table>
  const Table& table(const char* id) const {
    const void* table = plugin_->get_interface(plugin_->self, id);
    if (table == nullptr) throw std::runtime_error(std::string("no interface ") + id);
    return *static_cast<const Table*>(table);
  }

 private:
  static const void* get_interface(const mri_host* host, const char* id);

  mri_host host_;
  uint32_t concurrency_;
  void* library_;
  const mri_plugin_entry* entry_;
  mri_plugin* plugin_;

  friend uint32_t fake_concurrency(const mri_host* host);
};

mri_param param(const char* key, int value);
mri_param param(const char* key, double value);
mri_param param(const char* key, bool value);
mri_param param(const char* key, const char* value);

// A request or response with its size set.
template <class T>
T sized() {
  T value{};
  value.hdr.struct_size = sizeof(T);
  return value;
}

}  // namespace varve::test
