// policy_double.h: a kv_tier, a quantizer and a summary as functions of the test, and the host that
// offers them to a KvStore.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/page.h"
#include "mri/ext/log.h"
#include "mri/ext/stack.h"
#include "mri/kind/kv_tier.h"
#include "mri/kind/quantizer.h"
#include "mri/kind/summary.h"

namespace varve::light {

struct PolicyDouble {
  std::function<std::vector<mri_tier_action>(const mri_tier_req&)> decide;
  mri_status decide_status = MRI_OK;
  uint32_t format = MRI_KV_INT8;
  uint64_t body_bytes = 0;  // 0: right for the format
  mri_status encode_status = MRI_OK;
  std::vector<const uint8_t*> previous_bodies;  // one per encoded page
  uint32_t pairs_max = 0;
  std::function<void(const mri_summary_make_req&, mri_summary_make_rsp&)> make;
  int n_made = 0;
  std::vector<std::string> log;

  PolicyDouble() : host_{sizeof(mri_host), MRI_1_1, MRI_1_0, MRI_1_1, "", "", this, interface} {}
  PolicyDouble(const PolicyDouble&) = delete;
  PolicyDouble& operator=(const PolicyDouble&) = delete;

  const mri_host* host() const { return &host_; }

 private:
  static PolicyDouble& of(void* self) { return *static_cast<PolicyDouble*>(self); }

  static mri_status decide_call(void* self, const mri_tier_req* req, mri_tier_rsp* rsp,
                                mri_error*) {
    PolicyDouble& d = of(self);
    const std::vector<mri_tier_action> actions =
        d.decide ? d.decide(*req) : std::vector<mri_tier_action>();
    rsp->n_actions = std::min<uint64_t>(actions.size(), rsp->capacity);
    std::copy_n(actions.begin(), rsp->n_actions, rsp->actions);
    return d.decide_status;
  }
  static mri_status describe_call(void* self, uint32_t head_dim, mri_quant_desc* out, mri_error*) {
    const PolicyDouble& d = of(self);
    out->format = d.format;
    out->body_bytes =
        d.body_bytes != 0 ? d.body_bytes : kernels::body_bytes(kernels::KvFormat::kInt8, head_dim);
    return MRI_OK;
  }
  static mri_status encode_call(void* self, const mri_quant_encode_req* req, mri_error*) {
    kernels::cpu::encode(kernels::KvFormat::kInt8, req->k, req->v, req->head_dim, req->index,
                         req->body);
    const std::lock_guard lock(of(self).mutex_);
    of(self).previous_bodies.push_back(req->previous_body);
    return of(self).encode_status;
  }
  static mri_status decode_call(void*, const mri_quant_decode_req* req, mri_error*) {
    kernels::cpu::decode(kernels::KvFormat::kInt8, req->index, req->body, req->head_dim, req->k,
                         req->v);
    return MRI_OK;
  }
  static uint32_t pairs_max_call(void* self, uint32_t) { return of(self).pairs_max; }
  static mri_status make_call(void* self, const mri_summary_make_req* req,
                              mri_summary_make_rsp* rsp, mri_error*) {
    const std::lock_guard lock(of(self).mutex_);
    ++of(self).n_made;
    if (of(self).make) of(self).make(*req, *rsp);
    return MRI_OK;
  }

  static const void* find(const mri_host* host, const char* id, uint32_t, void** self) {
    static constexpr mri_kv_tier_v1 kTier = {sizeof(mri_kv_tier_v1), 0, decide_call};
    static constexpr mri_quantizer_v1 kQuantizer = {sizeof(mri_quantizer_v1), 0, describe_call,
                                                    encode_call, decode_call};
    static constexpr mri_summary_v1 kSummary = {sizeof(mri_summary_v1), 0, pairs_max_call,
                                                make_call};
    *self = host->self;
    if (std::strcmp(id, MRI_KV_TIER) == 0) return &kTier;
    if (std::strcmp(id, MRI_QUANTIZER) == 0) return &kQuantizer;
    return std::strcmp(id, MRI_SUMMARY) == 0 ? &kSummary : nullptr;
  }
  static void write_log(const mri_host* host, uint32_t, const char* text, uint64_t n_bytes) {
    const std::lock_guard lock(of(host->self).mutex_);
    of(host->self).log.emplace_back(text, n_bytes);
  }
  static const void* interface(const mri_host*, const char* id) {
    static constexpr mri_host_stack_v1 kStack = {sizeof(mri_host_stack_v1), 0, find};
    static constexpr mri_host_log_v1 kLog = {sizeof(mri_host_log_v1), 0, write_log};
    if (std::strcmp(id, MRI_HOST_STACK) == 0) return &kStack;
    return std::strcmp(id, MRI_HOST_LOG) == 0 ? &kLog : nullptr;
  }

  mri_host host_;
  std::mutex mutex_;  // contexts of many threads may ask
};

}  // namespace varve::light
