#include "mri/conformance/opened.h"

namespace mri::conformance {

Opened::Opened(Bench& bench, const std::string& withheld)
    : bench_(bench), host_(WatchedHost::make(bench, withheld)) {
  if (bench.entry == nullptr) {
    bench.report->fail("not loaded: " + bench.refusal);
    throw Stop{};
  }
  must(bench, "open",
       [&](mri_error* e) { return bench.entry->open(host_.abi(), bench.version, &plugin_, e); });
  if (plugin_ == nullptr || plugin_->struct_size < sizeof(mri_plugin) ||
      plugin_->get_interface == nullptr || plugin_->query_caps == nullptr ||
      plugin_->activate == nullptr || plugin_->drain == nullptr || plugin_->close == nullptr) {
    bench.report->fail("open gave no object, a short one, or one with a null function");
    throw Stop{};
  }
  try {
    must(bench, "activate", [&](mri_error* e) {
      return plugin_->activate(plugin_->self, bench.params.data(), bench.params.size(), e);
    });
  } catch (const Stop&) {
    plugin_->close(plugin_->self);
    throw;
  }
}

void Opened::drain() {
  is_drained_ = true;
  must(bench_, "drain", [&](mri_error* e) { return plugin_->drain(plugin_->self, 1000000000, e); });
}

Opened::~Opened() {
  try {
    if (!is_drained_) drain();
  } catch (const Stop&) {  // reported; it is closed all the same
  }
  plugin_->close(plugin_->self);
  host_.close();
  const std::string faults = host_.faults();
  bench_.report->expect(faults.empty(), "use of the host: " + faults);
}

mri_caps Opened::caps() {
  mri_caps caps = sized<mri_caps>();
  must(bench_, "query_caps",
       [&](mri_error* e) { return plugin_->query_caps(plugin_->self, &caps, e); });
  return caps;
}

}  // namespace mri::conformance
