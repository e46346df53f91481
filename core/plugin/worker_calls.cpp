#include "core/plugin/worker_calls.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>

#include "core/base/limits.h"
#include "mri/kv_view.h"

namespace varve {
namespace {

constexpr uint64_t product(uint64_t a, uint64_t b) {
  uint64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? UINT64_MAX : result;
}

template <class T>
const T& req_of(const CallArgs& args) {
  return *static_cast<const T*>(args.req);
}
template <class T>
const T& rsp_of(const CallArgs& args) {
  return *static_cast<const T*>(args.rsp);
}

// --- quantizer: pages of 32 tokens ---

template <class Req>
uint64_t values_bytes(const CallArgs& args) {
  return product(MRI_BLOCK_TOKENS * sizeof(float), req_of<Req>(args).head_dim);
}
// kv_view.h: three f16 and a u64 per channel, padded to 64.
template <class Req>
uint64_t index_bytes(const CallArgs& args) {
  return (uint64_t{14} * req_of<Req>(args).head_dim + 63) / 64 * 64;
}
uint64_t body_bytes(const CallArgs& args) { return args.body_bytes; }

using Bytes = uint64_t (*)(const CallArgs& args);
constexpr ArrayRule req_reads(uint32_t offset, Bytes bytes) {
  return {false, false, offset, bytes, nullptr};
}
constexpr ArrayRule req_writes(uint32_t offset, Bytes bytes) {
  return {false, true, offset, bytes, nullptr};
}
constexpr ArrayRule rsp_writes(uint32_t offset, Bytes bytes, Bytes written) {
  return {true, true, offset, bytes, written};
}

using Encode = mri_quant_encode_req;
constexpr ArrayRule kEncodeArrays[] = {
    req_reads(offsetof(Encode, k), values_bytes<Encode>),
    req_reads(offsetof(Encode, v), values_bytes<Encode>),
    req_reads(offsetof(Encode, index), index_bytes<Encode>),
    req_writes(offsetof(Encode, body), body_bytes),
    req_reads(offsetof(Encode, previous_index), index_bytes<Encode>),
    req_reads(offsetof(Encode, previous_body), body_bytes)};

using Decode = mri_quant_decode_req;
constexpr ArrayRule kDecodeArrays[] = {
    req_reads(offsetof(Decode, index), index_bytes<Decode>),
    req_reads(offsetof(Decode, body), body_bytes),
    req_reads(offsetof(Decode, previous_index), index_bytes<Decode>),
    req_reads(offsetof(Decode, previous_body), body_bytes),
    req_writes(offsetof(Decode, k), values_bytes<Decode>),
    req_writes(offsetof(Decode, v), values_bytes<Decode>)};

// --- kv_tier ---

constexpr ArrayRule kDecideArrays[] = {
    req_reads(offsetof(mri_tier_req, blocks),
              [](const CallArgs& args) {
                return product(req_of<mri_tier_req>(args).n_blocks, sizeof(mri_tier_block));
              }),
    rsp_writes(
        offsetof(mri_tier_rsp, actions),
        [](const CallArgs& args) {
          return product(rsp_of<mri_tier_rsp>(args).capacity, sizeof(mri_tier_action));
        },
        [](const CallArgs& args) {
          return product(rsp_of<mri_tier_rsp>(args).n_actions, sizeof(mri_tier_action));
        })};

// --- batching ---

constexpr ArrayRule kNextStepArrays[] = {
    req_reads(offsetof(mri_batch_req, requests),
              [](const CallArgs& args) {
                return product(req_of<mri_batch_req>(args).n_requests, sizeof(mri_batch_request));
              }),
    rsp_writes(
        offsetof(mri_batch_rsp, picks),
        [](const CallArgs& args) {
          return product(rsp_of<mri_batch_rsp>(args).capacity, sizeof(mri_batch_pick));
        },
        [](const CallArgs& args) {
          return product(rsp_of<mri_batch_rsp>(args).n_picks, sizeof(mri_batch_pick));
        })};

// --- summary ---

using MakeReq = mri_summary_make_req;
using MakeRsp = mri_summary_make_rsp;
uint64_t tokens_bytes(const CallArgs& args) {
  const auto& req = req_of<MakeReq>(args);
  return product(sizeof(float), product(req.n_tokens, req.head_dim));
}
uint64_t mass_bytes(const CallArgs& args) {
  return product(sizeof(float), req_of<MakeReq>(args).n_tokens);
}
uint64_t pair_room(const CallArgs& args) {
  return product(sizeof(float),
                 product(rsp_of<MakeRsp>(args).pairs_capacity, req_of<MakeReq>(args).head_dim));
}
uint64_t pairs_written(const CallArgs& args) {
  return product(sizeof(float),
                 product(rsp_of<MakeRsp>(args).n_pairs, req_of<MakeReq>(args).head_dim));
}
constexpr ArrayRule kMakeArrays[] = {
    req_reads(offsetof(MakeReq, k), tokens_bytes),
    req_reads(offsetof(MakeReq, v), tokens_bytes),
    req_reads(offsetof(MakeReq, mass), mass_bytes),
    rsp_writes(offsetof(MakeRsp, k), pair_room, pairs_written),
    rsp_writes(offsetof(MakeRsp, v), pair_room, pairs_written),
    rsp_writes(
        offsetof(MakeRsp, log_count),
        [](const CallArgs& args) {
          return product(sizeof(float), rsp_of<MakeRsp>(args).pairs_capacity);
        },
        [](const CallArgs& args) {
          return product(sizeof(float), rsp_of<MakeRsp>(args).n_pairs);
        })};

mri_status describe(const void* table, void* self, void* req, void* rsp, mri_error* err) {
  return static_cast<const mri_quantizer_v1*>(table)->describe(
      self, static_cast<DescribeRequest*>(req)->head_dim, static_cast<mri_quant_desc*>(rsp), err);
}
mri_status encode(const void* table, void* self, void* req, void*, mri_error* err) {
  return static_cast<const mri_quantizer_v1*>(table)->encode(self, static_cast<Encode*>(req), err);
}
mri_status decode(const void* table, void* self, void* req, void*, mri_error* err) {
  return static_cast<const mri_quantizer_v1*>(table)->decode(self, static_cast<Decode*>(req), err);
}
mri_status decide(const void* table, void* self, void* req, void* rsp, mri_error* err) {
  return static_cast<const mri_kv_tier_v1*>(table)->decide(self, static_cast<mri_tier_req*>(req),
                                                           static_cast<mri_tier_rsp*>(rsp), err);
}
mri_status pairs_max(const void* table, void* self, void* req, void* rsp, mri_error*) {
  static_cast<PairsResponse*>(rsp)->n_pairs = static_cast<const mri_summary_v1*>(table)->pairs_max(
      self, static_cast<PairsRequest*>(req)->n_tokens);
  return MRI_OK;
}
mri_status make(const void* table, void* self, void* req, void* rsp, mri_error* err) {
  return static_cast<const mri_summary_v1*>(table)->make(self, static_cast<MakeReq*>(req),
                                                         static_cast<MakeRsp*>(rsp), err);
}
mri_status next_step(const void* table, void* self, void* req, void* rsp, mri_error* err) {
  return static_cast<const mri_batching_v1*>(table)->next_step(
      self, static_cast<mri_batch_req*>(req), static_cast<mri_batch_rsp*>(rsp), err);
}

constexpr uint32_t kMakeKept = offsetof(MakeRsp, n_pairs) - offsetof(MakeRsp, k);

constexpr CallRule kRules[] = {
    {WorkerCall::kDescribe,
     "describe",
     sizeof(DescribeRequest),
     sizeof(mri_quant_desc),
     0,
     0,
     {},
     describe},
    {WorkerCall::kEncode, "encode", sizeof(Encode), 0, 0, 0, kEncodeArrays, encode},
    {WorkerCall::kDecode, "decode", sizeof(Decode), 0, 0, 0, kDecodeArrays, decode},
    {WorkerCall::kDecide, "decide", sizeof(mri_tier_req), sizeof(mri_tier_rsp),
     offsetof(mri_tier_rsp, actions), 16, kDecideArrays, decide},
    {WorkerCall::kPairsMax,
     "pairs_max",
     sizeof(PairsRequest),
     sizeof(PairsResponse),
     0,
     0,
     {},
     pairs_max},
    {WorkerCall::kMake, "make", sizeof(MakeReq), sizeof(MakeRsp), offsetof(MakeRsp, k), kMakeKept,
     kMakeArrays, make},
    {WorkerCall::kNextStep, "next_step", sizeof(mri_batch_req), sizeof(mri_batch_rsp),
     offsetof(mri_batch_rsp, picks), 16, kNextStepArrays, next_step}};
static_assert(offsetof(mri_tier_rsp, n_actions) == offsetof(mri_tier_rsp, actions) + 16);
static_assert(offsetof(mri_batch_rsp, n_picks) == offsetof(mri_batch_rsp, picks) + 16);

// Moves *at past `bytes` more, aligned; false when a payload has no such place.
bool advance(uint64_t bytes, uint64_t* at) {
  if (bytes > kWorkerPayloadBytes - *at) return false;
  *at = std::min((*at + bytes + 63) / 64 * 64, kWorkerPayloadBytes);
  return true;
}

}  // namespace

const CallRule* call_rule(WorkerCall call) {
  const auto* rule = std::find_if(std::begin(kRules), std::end(kRules),
                                  [&](const CallRule& r) { return r.call == call; });
  return rule == std::end(kRules) ? nullptr : rule;
}

uint64_t pointer_in(const ArrayRule& rule, const void* req, const void* rsp) {
  uint64_t pointer = 0;
  const auto* base = static_cast<const char*>(rule.is_in_response ? rsp : req);
  std::memcpy(&pointer, base + rule.pointer_offset, sizeof(pointer));
  return pointer;
}

bool lay_out(const CallRule& rule, const CallArgs& args, CallLayout* layout) {
  const auto room = [](const void* sized, uint32_t bytes) {
    uint32_t struct_size = 0;  // the first member of both headers
    std::memcpy(&struct_size, sized, sizeof(struct_size));
    return uint64_t{std::max(struct_size, bytes)};
  };
  uint64_t at = 0;
  const uint64_t req_room = room(args.req, rule.req_bytes);
  if (req_room > kWorkerStructBytesMax || !advance(req_room, &at)) return false;
  if (rule.rsp_bytes > 0) {
    layout->rsp = at;
    const uint64_t rsp_room = room(args.rsp, rule.rsp_bytes);
    if (rsp_room > kWorkerStructBytesMax || !advance(rsp_room, &at)) return false;
  }
  for (size_t i = 0; i < rule.arrays.size(); ++i) {
    const ArrayRule& array = rule.arrays[i];
    if (pointer_in(array, args.req, args.rsp) == 0) continue;
    layout->arrays[i] = at;
    layout->array_bytes[i] = array.bytes(args);
    if (!advance(layout->array_bytes[i], &at)) return false;
  }
  layout->total = at;
  return true;
}

}  // namespace varve
