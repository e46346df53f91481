// Leaves an object in each thread that asked for its capabilities, which uses the host when that
// thread ends, be the plugin closed or not.
#include "mri/mri.h"
namespace {
const mri_host* known = nullptr;
struct Farewell {
  const mri_host* host = nullptr;
  ~Farewell() {
    if (host != nullptr) host->get_interface(host, MRI_HOST_LOG);
  }
};
thread_local Farewell farewell;
mri_status remember(const mri_host* host, uint32_t chosen, mri_plugin** out, mri_error* err);
mri_status greet(void* self, mri_caps* out, mri_error* err);
}  // namespace
#define OPEN remember
#define QUERY_CAPS greet
#include "sound.h"
namespace {
mri_status remember(const mri_host* host, uint32_t, mri_plugin** out, mri_error*) {
  known = host;
  *out = &plugin;
  return MRI_OK;
}
mri_status greet(void*, mri_caps* out, mri_error*) {
  if (IS_SHORT(out, mri_caps)) return MRI_E_ARG;
  farewell.host = known;
  FILLED(out, mri_caps);
  return MRI_OK;
}
}  // namespace
