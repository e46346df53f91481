// Proxies of the kinds that a runtime calls for its decisions and arithmetic.
#include "core/plugin/proxy_call.h"

namespace varve {
namespace {

mri_status describe(void* self, uint32_t head_dim, mri_quant_desc* out, mri_error* err) {
  PluginPort& port = port_of(self);
  if (!is_usable(out)) return bad_caller(err);
  return answered(
      port, UINT32_MAX, out, err,
      [&](mri_error* e) {
        return table_of<mri_quantizer_v1>(port).describe(port.self, head_dim, out, e);
      },
      nothing_wrong);
}

mri_status encode(void* self, const mri_quant_encode_req* req, mri_error* err) {
  PluginPort& port = port_of(self);
  if (!is_usable(req)) return bad_caller(err);
  return plain(port, err, [&](mri_error* e) {
    return table_of<mri_quantizer_v1>(port).encode(port.self, req, e);
  });
}

mri_status decode(void* self, const mri_quant_decode_req* req, mri_error* err) {
  PluginPort& port = port_of(self);
  if (!is_usable(req)) return bad_caller(err);
  return plain(port, err, [&](mri_error* e) {
    return table_of<mri_quantizer_v1>(port).decode(port.self, req, e);
  });
}

bool fits(uint64_t first, uint64_t count, uint64_t size) {
  return first <= size && count <= size - first;
}

// Whoever executes the list must not have to check it again.
const char* wrong_in_plan(const mri_attn_req& req, const mri_attn_plan& plan) {
  if (plan.n_items > plan.items_capacity || plan.n_entries > plan.entries_capacity) {
    return "a plan larger than its arrays";
  }
  for (uint64_t i = 0; i < plan.n_items; ++i) {
    const mri_attn_item& item = plan.items[i];
    if (item.seq >= req.n_seqs || item.kv_head >= req.n_kv_heads ||
        !fits(item.first_query, item.n_queries, req.seqs[item.seq].n_queries) ||
        !fits(item.first_entry, item.n_entries, plan.n_entries)) {
      return "a plan's item names what does not exist";
    }
    const mri_attn_seq& seq = req.seqs[item.seq];
    for (uint64_t e = item.first_entry; e < uint64_t{item.first_entry} + item.n_entries; ++e) {
      const mri_attn_entry& entry = plan.entries[e];
      const uint32_t n = entry.what == MRI_ATTN_BLOCKS ? seq.n_blocks : seq.n_summaries;
      if (entry.what > MRI_ATTN_SUMMARY || !fits(entry.index, entry.count, n)) {
        return "a plan's entry names what does not exist";
      }
    }
  }
  return nullptr;
}

mri_status plan(void* self, const mri_attn_req* req, mri_attn_plan* out, mri_error* err) {
  PluginPort& port = port_of(self);
  if (!is_usable(req) || !is_usable(out)) return bad_caller(err);
  return answered(
      port, req->hdr.struct_size, out, err,
      [&](mri_error* e) { return table_of<mri_attention_v1>(port).plan(port.self, req, out, e); },
      [&] { return wrong_in_plan(*req, *out); });
}

mri_status run(void* self, const mri_attn_req* req, const mri_attn_plan* list, mri_error* err) {
  PluginPort& port = port_of(self);
  if (!is_usable(req) || !is_usable(list)) return bad_caller(err);
  return plain(port, err, [&](mri_error* e) {
    return table_of<mri_attention_v1>(port).run(port.self, req, list, e);
  });
}

mri_status decide(void* self, const mri_tier_req* req, mri_tier_rsp* rsp, mri_error* err) {
  PluginPort& port = port_of(self);
  if (!is_usable(req) || !is_usable(rsp)) return bad_caller(err);
  return answered(
      port, req->hdr.struct_size, rsp, err,
      [&](mri_error* e) { return table_of<mri_kv_tier_v1>(port).decide(port.self, req, rsp, e); },
      [&] { return rsp->n_actions > rsp->capacity ? "more actions than room" : nullptr; });
}

uint32_t pairs_max(void* self, uint32_t n_tokens) {
  PluginPort& port = port_of(self);
  uint32_t pairs = 0;
  plain(port, nullptr, [&](mri_error*) {
    pairs = table_of<mri_summary_v1>(port).pairs_max(port.self, n_tokens);
    return MRI_OK;
  });
  return pairs;
}

mri_status make(void* self, const mri_summary_make_req* req, mri_summary_make_rsp* rsp,
                mri_error* err) {
  PluginPort& port = port_of(self);
  if (!is_usable(req) || !is_usable(rsp)) return bad_caller(err);
  return answered(
      port, req->hdr.struct_size, rsp, err,
      [&](mri_error* e) { return table_of<mri_summary_v1>(port).make(port.self, req, rsp, e); },
      [&] { return rsp->n_pairs > rsp->pairs_capacity ? "more pairs than room" : nullptr; });
}

const char* wrong_in_picks(const mri_batch_req& req, const mri_batch_rsp& rsp) {
  if (rsp.n_picks > rsp.capacity) return "more picks than room";
  for (uint64_t i = 0; i < rsp.n_picks; ++i) {
    if (rsp.picks[i].request >= req.n_requests) return "a pick of a request that does not exist";
  }
  return nullptr;
}

mri_status next_step(void* self, const mri_batch_req* req, mri_batch_rsp* rsp, mri_error* err) {
  PluginPort& port = port_of(self);
  if (!is_usable(req) || !is_usable(rsp)) return bad_caller(err);
  return answered(
      port, req->hdr.struct_size, rsp, err,
      [&](mri_error* e) {
        return table_of<mri_batching_v1>(port).next_step(port.self, req, rsp, e);
      },
      [&] { return wrong_in_picks(*req, *rsp); });
}

}  // namespace

const mri_quantizer_v1 kQuantizerProxy = {sizeof(mri_quantizer_v1), 0, describe, encode, decode};
const mri_attention_v1 kAttentionProxy = {sizeof(mri_attention_v1), 0, plan, run};
const mri_kv_tier_v1 kKvTierProxy = {sizeof(mri_kv_tier_v1), 0, decide};
const mri_summary_v1 kSummaryProxy = {sizeof(mri_summary_v1), 0, pairs_max, make};
const mri_batching_v1 kBatchingProxy = {sizeof(mri_batching_v1), 0, next_step};

}  // namespace varve
