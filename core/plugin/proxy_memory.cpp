// Proxy of a runtime's mri.memory/1.
#include "core/plugin/proxy_call.h"
#include "mri/kv_view.h"

namespace varve {
namespace {

const char* wrong_in_reuse(const mri_reuse_req& req, const mri_reuse_rsp& rsp) {
  const uint64_t blocks = rsp.n_tokens / MRI_BLOCK_TOKENS;
  if (rsp.ctx == 0) return rsp.n_tokens == 0 ? nullptr : "tokens without a context";
  if (rsp.n_tokens % MRI_BLOCK_TOKENS != 0) return "a prefix that ends inside a block";
  return blocks > 0 && blocks <= req.n_keys ? nullptr : "a prefix that was not asked for";
}

mri_status reuse(void* self, const mri_reuse_req* req, mri_reuse_rsp* rsp, mri_error* err) {
  PluginPort& port = port_of(self);
  if (!is_usable(req) || !is_usable(rsp)) return bad_caller(err);
  if (req->keys == nullptr && req->n_keys > 0) return bad_caller(err);
  rsp->ctx = rsp->n_tokens = 0;
  const mri_status status = answered(
      port, req->hdr.struct_size, rsp, err,
      [&](mri_error* e) { return port.memory->reuse(port.self, req, rsp, e); },
      [&] { return wrong_in_reuse(*req, *rsp); });
  if (status == MRI_OK && rsp->ctx != 0) port.lengths.begin(rsp->ctx, rsp->n_tokens);
  if (status == MRI_OK) return MRI_OK;
  if (rsp->ctx != 0) kRuntimeProxy.release_context(self, rsp->ctx);
  rsp->ctx = rsp->n_tokens = 0;
  return status;
}

mri_status keep(void* self, uint64_t ctx, const mri_prefix_key* keys, uint64_t n_keys,
                uint32_t flags, mri_error* err) {
  PluginPort& port = port_of(self);
  if (keys == nullptr && n_keys > 0) return bad_caller(err);
  const StepLease lease(port, ctx);
  if (const mri_status status = lease.check(err); status != MRI_OK) return status;
  return plain(port, err, [&](mri_error* e) {
    return port.memory->keep(port.self, ctx, keys, n_keys, flags, e);
  });
}

mri_status forget(void* self, const mri_prefix_key* last_key, mri_error* err) {
  PluginPort& port = port_of(self);
  if (last_key == nullptr) return bad_caller(err);
  return plain(port, err,
               [&](mri_error* e) { return port.memory->forget(port.self, last_key, e); });
}

// Context 0 stands for none: only kept prefixes are dropped.
mri_status shrink(void* self, uint64_t ctx, uint64_t wanted_bytes, uint64_t* freed_bytes,
                  mri_error* err) {
  PluginPort& port = port_of(self);
  if (freed_bytes == nullptr) return bad_caller(err);
  *freed_bytes = 0;
  const auto call = [&](mri_error* e) {
    return port.memory->shrink(port.self, ctx, wanted_bytes, freed_bytes, e);
  };
  if (ctx == 0) return plain(port, err, call);
  const StepLease lease(port, ctx);
  if (const mri_status status = lease.check(err); status != MRI_OK) return status;
  return plain(port, err, call);
}

mri_status usage(void* self, mri_memory_usage* out, mri_error* err) {
  PluginPort& port = port_of(self);
  if (!is_usable(out)) return bad_caller(err);
  return answered(
      port, UINT32_MAX, out, err,
      [&](mri_error* e) { return port.memory->usage(port.self, out, e); }, nothing_wrong);
}

}  // namespace

const mri_memory_v1 kMemoryProxy = {sizeof(mri_memory_v1), 0, reuse, keep, forget, shrink, usage};

}  // namespace varve
