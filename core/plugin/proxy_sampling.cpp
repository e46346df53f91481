// Proxy of a runtime's mri.sampling/1.
#include "core/plugin/proxy_call.h"

namespace varve {
namespace {

mri_status create(void* self, const mri_sampler_req* req, uint64_t* sampler,
                  mri_error* caller_err) {
  PluginPort& port = port_of(self);
  ErrorSlot err(caller_err);
  if (!is_usable(req) || sampler == nullptr) return bad_caller(err.get());
  *sampler = 0;
  const mri_status status = plain(port, err.get(), [&](mri_error* e) {
    return port.sampling->create(port.self, req, sampler, e);
  });
  if (status != MRI_OK) {
    *sampler = 0;
    return status;
  }
  return *sampler != 0 ? MRI_OK : port.guard.broken(err.get(), "a sampler with number 0");
}

mri_status sample(void* self, uint64_t sampler, const float* logits, int32_t* token,
                  mri_error* caller_err) {
  PluginPort& port = port_of(self);
  ErrorSlot err(caller_err);
  if (logits == nullptr || token == nullptr) return bad_caller(err.get());
  *token = -1;
  const mri_status status = plain(port, err.get(), [&](mri_error* e) {
    return port.sampling->sample(port.self, sampler, logits, token, e);
  });
  if (status != MRI_OK) return status;
  return *token >= 0 ? MRI_OK : port.guard.broken(err.get(), "it drew a token below 0");
}

mri_status accept(void* self, uint64_t sampler, const int32_t* tokens, uint64_t n_tokens,
                  mri_error* err) {
  PluginPort& port = port_of(self);
  if (tokens == nullptr && n_tokens > 0) return bad_caller(err);
  return plain(port, err, [&](mri_error* e) {
    return port.sampling->accept(port.self, sampler, tokens, n_tokens, e);
  });
}

void release(void* self, uint64_t sampler) {
  PluginPort& port = port_of(self);
  plain(port, nullptr, [&](mri_error*) {
    port.sampling->release(port.self, sampler);
    return MRI_OK;
  });
}

}  // namespace

const mri_sampling_v1 kSamplingProxy = {
    sizeof(mri_sampling_v1), 0, create, sample, accept, release};

}  // namespace varve
