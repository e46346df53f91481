// Proxy of a runtime's mri.timings/1.
#include "core/plugin/proxy_call.h"

namespace varve {
namespace {

mri_status enable(void* self, uint64_t ctx, uint32_t on, mri_error* err) {
  PluginPort& port = port_of(self);
  const StepLease lease(port, ctx);
  if (const mri_status status = lease.check(err); status != MRI_OK) return status;
  return plain(port, err,
               [&](mri_error* e) { return port.timings->enable(port.self, ctx, on, e); });
}

mri_status read(void* self, uint64_t ctx, mri_timings* out, mri_error* err) {
  PluginPort& port = port_of(self);
  if (!is_usable(out)) return bad_caller(err);
  const StepLease lease(port, ctx);
  if (const mri_status status = lease.check(err); status != MRI_OK) return status;
  return answered(
      port, UINT32_MAX, out, err,
      [&](mri_error* e) { return port.timings->read(port.self, ctx, out, e); }, nothing_wrong);
}

}  // namespace

const mri_timings_v1 kTimingsProxy = {sizeof(mri_timings_v1), 0, enable, read};

}  // namespace varve
