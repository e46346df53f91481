// A plugin between open() and close(), as a test uses it.
#pragma once

#include <string>

#include "mri/conformance/calling.h"
#include "mri/conformance/host.h"

namespace mri::conformance {

// Opens and activates; afterwards drains, closes and reports what is left behind. Each failure is a
// finding, and one that leaves nothing to test throws Stop.
class Opened {
 public:
  explicit Opened(Bench& bench, const std::string& withheld = {});
  ~Opened();
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  void* self() const { return plugin_->self; }
  const mri_plugin& plugin() const { return *plugin_; }
  mri_caps caps();
  // Ahead of the destructor, which then only closes.
  void drain();

  // The table of an interface, or null when the plugin has none at the size of 1.0.
  template <class Table>
  const Table* find(const char* id) const {
    const auto* table = static_cast<const Table*>(plugin_->get_interface(plugin_->self, id));
    return table != nullptr && table->struct_size >= sizeof(Table) ? table : nullptr;
  }
  // The same, of an interface that the kind must have.
  template <class Table>
  const Table& table(const char* id) const {
    const Table* found = find<Table>(id);
    if (found == nullptr) {
      bench_.report->fail(std::string("get_interface(\"") + id + "\") gives null or a short table");
      throw Stop{};
    }
    return *found;
  }

 private:
  Bench& bench_;
  WatchedHost& host_;
  mri_plugin* plugin_ = nullptr;
  bool is_drained_ = false;
};

}  // namespace mri::conformance
