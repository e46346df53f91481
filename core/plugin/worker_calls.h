// How the calls of each kind are laid out in a worker's memory: one table, used by both sides. The
// structs of MRI are copied flat; a pointer to an array becomes the array's offset in the payload.
#pragma once

#include <cstdint>
#include <span>

#include "mri/kind/batching.h"
#include "mri/kind/kv_tier.h"
#include "mri/kind/quantizer.h"
#include "mri/kind/summary.h"

namespace varve {

enum class WorkerCall : uint32_t {
  // The life of a plugin; packed messages (worker_messages.h).
  kLoad = 1,
  kOpen,
  kGetInterface,
  kQueryCaps,
  kActivate,
  kDrain,
  kClose,
  kMetrics,
  // The calls of kinds.
  kDescribe,
  kEncode,
  kDecode,
  kDecide,
  kPairsMax,
  kMake,
  kNextStep
};

// Requests of calls that have none in MRI.
struct DescribeRequest {
  mri_req_hdr hdr;
  uint32_t head_dim, reserved;
};
struct PairsRequest {
  mri_req_hdr hdr;
  uint32_t n_tokens, reserved;
};
struct PairsResponse {
  mri_rsp_hdr hdr;
  uint32_t n_pairs, reserved;
};

// What counts are computed from.
struct CallArgs {
  const void* req;
  const void* rsp;  // may be null
  uint64_t body_bytes;
};

// An array that a request or response points to.
struct ArrayRule {
  bool is_in_response;
  bool is_written;          // by the plugin; else it is read
  uint32_t pointer_offset;  // of the pointer in its struct
  // Bytes as the caller's counts state them; UINT64_MAX when they overflow.
  uint64_t (*bytes)(const CallArgs& args);
  // Bytes that an answer says were written; null: all.
  uint64_t (*written)(const CallArgs& args);
};

struct CallRule {
  WorkerCall call;
  const char* name;
  uint32_t req_bytes, rsp_bytes;  // today's sizes; no response: 0
  // Part of the response that is the caller's: pointers and capacities. Everything else is the
  // plugin's to fill.
  uint32_t kept_offset, kept_bytes;
  std::span<const ArrayRule> arrays;
  mri_status (*invoke)(const void* table, void* self, void* req, void* rsp, mri_error* err);
};

// nullptr for the calls of a plugin's life and for unknown numbers.
const CallRule* call_rule(WorkerCall call);

inline constexpr uint32_t kCallArraysMax = 6;

// Where things are in the payload; all 64-byte aligned. The request is at 0.
struct CallLayout {
  uint64_t rsp = 0;
  uint64_t arrays[kCallArraysMax] = {};  // 0: the pointer is null
  uint64_t array_bytes[kCallArraysMax] = {};
  uint64_t total = 0;
};

// False when the call is larger than a payload, or a struct_size is absurd. `req` and `rsp` are at
// least as long as the rule says or as their struct_size says, whichever is shorter.
bool lay_out(const CallRule& rule, const CallArgs& args, CallLayout* layout);

// The pointer at `rule` of a request or response; as a number.
uint64_t pointer_in(const ArrayRule& rule, const void* req, const void* rsp);

}  // namespace varve
