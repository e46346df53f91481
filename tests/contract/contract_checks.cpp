#include "tests/contract/contract_checks.h"

#include <algorithm>
#include <cstring>

#include "mri/sdk/sizes.hpp"

namespace varve::test {
namespace {

constexpr uint32_t kRoom = 8192;
constexpr unsigned char kCanary = 0xa5;

// A response in the middle of watched memory.
template <class Rsp>
class Watched {
 public:
  explicit Watched(uint32_t struct_size) : size_(struct_size) {
    std::fill(bytes_, bytes_ + kRoom, kCanary);
    std::memset(bytes_, 0, struct_size);
    rsp()->hdr.struct_size = struct_size;
  }
  Rsp* rsp() { return reinterpret_cast<Rsp*>(bytes_); }
  bool is_overrun() const {
    return std::any_of(bytes_ + size_, bytes_ + kRoom,
                       [](unsigned char b) { return b != kCanary; });
  }

 private:
  alignas(64) unsigned char bytes_[kRoom];
  uint32_t size_;
};

// Calls `call(rsp)` at every size; `prepare(rsp)` sets what the caller must.
template <class Rsp, class Prepare, class Call>
void check_sizes(const char* name, Prepare&& prepare, Call&& call,
                 std::vector<std::string>* findings) {
  constexpr uint32_t kSize = sizeof(Rsp);
  for (const uint32_t size : {mri::kSize10<Rsp>, kSize, kSize + 8, kSize + 64, kSize + 4096}) {
    Watched<Rsp> watched(size);
    prepare(watched.rsp());
    const std::string at = std::string(name) + " with struct_size " + std::to_string(size) + ": ";
    const mri_status status = call(watched.rsp());
    const mri_rsp_hdr& hdr = watched.rsp()->hdr;
    if (status != MRI_OK) findings->push_back(at + "status " + std::to_string(status));
    if (status == MRI_OK && hdr.written != std::min(size, kSize)) {
      findings->push_back(at + "written is " + std::to_string(hdr.written));
    }
    if (watched.is_overrun()) findings->push_back(at + "wrote past the end");
  }
  Watched<Rsp> watched(sizeof(mri_rsp_hdr));
  if (call(watched.rsp()) != MRI_E_ARG) findings->push_back(std::string(name) + " took 16 bytes");
}

void check_quantizer(const Stack& stack, std::vector<std::string>* findings) {
  const auto peer = stack.peer<mri_quantizer_v1>(MRI_QUANTIZER);
  check_sizes<mri_quant_desc>(
      "describe", [](mri_quant_desc*) {},
      [&](mri_quant_desc* out) { return peer.table->describe(peer.self, 64, out, nullptr); },
      findings);
}

void check_kv_tier(const Stack& stack, std::vector<std::string>* findings) {
  const auto peer = stack.peer<mri_kv_tier_v1>(MRI_KV_TIER);
  mri_tier_req req{};
  req.hdr.struct_size = sizeof(req);
  req.budget_bytes = 1 << 20;
  mri_tier_action actions[16];
  check_sizes<mri_tier_rsp>(
      "decide",
      [&](mri_tier_rsp* rsp) {
        rsp->actions = actions;
        rsp->capacity = 16;
      },
      [&](mri_tier_rsp* rsp) { return peer.table->decide(peer.self, &req, rsp, nullptr); },
      findings);
}

void check_batching(const Stack& stack, std::vector<std::string>* findings) {
  const auto peer = stack.peer<mri_batching_v1>(MRI_BATCHING);
  mri_batch_request request{};
  request.id = 1;
  request.prompt_tokens_left = 10;
  request.deadline_us = UINT64_MAX;
  mri_batch_req req{};
  req.hdr.struct_size = sizeof(req);
  req.requests = &request;
  req.n_requests = 1;
  req.step_tokens_max = 512;
  req.kv_bytes_free = 1 << 20;
  req.sequences_max = 4;
  mri_batch_pick picks[1];
  check_sizes<mri_batch_rsp>(
      "next_step",
      [&](mri_batch_rsp* rsp) {
        rsp->picks = picks;
        rsp->capacity = 1;
      },
      [&](mri_batch_rsp* rsp) { return peer.table->next_step(peer.self, &req, rsp, nullptr); },
      findings);
}

void check_summary(const Stack& stack, std::vector<std::string>* findings) {
  const auto peer = stack.peer<mri_summary_v1>(MRI_SUMMARY);
  constexpr uint32_t kTokens = 64, kDim = 8;
  std::vector<float> k(kTokens * kDim), v(kTokens * kDim);
  for (uint32_t i = 0; i < k.size(); ++i) k[i] = v[i] = static_cast<float>(i % 13) - 6;
  const uint32_t pairs = peer.table->pairs_max(peer.self, kTokens);
  std::vector<float> out_k(pairs * kDim), out_v(pairs * kDim), log_count(pairs);
  mri_summary_make_req req{};
  req.hdr.struct_size = sizeof(req);
  req.k = k.data();
  req.v = v.data();
  req.n_tokens = kTokens;
  req.head_dim = kDim;
  check_sizes<mri_summary_make_rsp>(
      "make",
      [&](mri_summary_make_rsp* rsp) {
        rsp->k = out_k.data();
        rsp->v = out_v.data();
        rsp->log_count = log_count.data();
        rsp->pairs_capacity = pairs;
      },
      [&](mri_summary_make_rsp* rsp) { return peer.table->make(peer.self, &req, rsp, nullptr); },
      findings);
}

void check_attention(const Stack& stack, std::vector<std::string>* findings) {
  const auto peer = stack.peer<mri_attention_v1>(MRI_ATTENTION);
  mri_attn_req req{};  // an empty batch
  req.hdr.struct_size = sizeof(req);
  req.n_heads = req.n_kv_heads = 1;
  req.head_dim = 8;
  req.scale = 1;
  req.trained_tokens = 8192;
  mri_attn_item items[1];
  mri_attn_entry entries[1];
  check_sizes<mri_attn_plan>(
      "plan",
      [&](mri_attn_plan* plan) {
        plan->items = items;
        plan->entries = entries;
        plan->items_capacity = plan->entries_capacity = 1;
      },
      [&](mri_attn_plan* plan) { return peer.table->plan(peer.self, &req, plan, nullptr); },
      findings);
}

}  // namespace

std::vector<std::string> size_findings(const Stack& stack, const std::string& kind) {
  std::vector<std::string> findings;
  if (kind == "quantizer") check_quantizer(stack, &findings);
  if (kind == "kv_tier") check_kv_tier(stack, &findings);
  if (kind == "batching") check_batching(stack, &findings);
  if (kind == "summary") check_summary(stack, &findings);
  if (kind == "attention") check_attention(stack, &findings);
  return findings;
}

}  // namespace varve::test
