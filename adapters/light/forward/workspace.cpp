#include "adapters/light/forward/workspace.h"

#include <algorithm>

namespace varve::light {
namespace {

// Rows of a tile: its activations stay in a core's L2, and oneDNN reaches its peak.
constexpr uint32_t kTileRowsMax = 256;
constexpr uint32_t kTileRowsUnit = 32;

template <class T>
void grow(std::vector<T>& v, size_t n) {
  if (v.size() < n) v.resize(n);
}

}  // namespace

void Forward::Workspace::reshape(const ModelConfig& config, kernels::Compute compute, Path way,
                                 uint32_t n_rows, uint32_t workers) {
  path = way;
  rows = n_rows;
  qkv_stride = config.q_rows() + 2 * config.kv_rows();
  grow(x, size_t{rows} * config.n_embd);
  grow(qkv, rows * qkv_stride);
  grow(q, size_t{rows} * config.q_rows());
  grow(o, size_t{rows} * config.q_rows());
  grow(lse, size_t{rows} * config.n_heads);
  if (path == Path::kPanels) {
    grow(in, size_t{rows} * std::max(config.n_embd, config.q_rows()));
    grow(gate_up, size_t{rows} * 2 * config.n_ff);
    grow(act_bf16, size_t{rows} * config.n_ff);
    return;
  }
  if (path == Path::kFew) {
    grow(norm, size_t{rows} * config.n_embd);
    grow(gate_up, size_t{rows} * 2 * config.n_ff);
    grow(act, size_t{rows} * config.n_ff);
    return;
  }
  const uint32_t even = (rows + 2 * workers - 1) / (2 * workers);
  tile_rows = std::clamp((even + kTileRowsUnit - 1) / kTileRowsUnit * kTileRowsUnit, kTileRowsUnit,
                         kTileRowsMax);
  wqkv.reshape(qkv_stride, config.n_embd, compute);
  wo.reshape(config.n_embd, config.q_rows(), compute);
  w_gate_up.reshape(2 * size_t{config.n_ff}, config.n_embd, compute);
  w_down.reshape(config.n_embd, config.n_ff, compute);
  const size_t element = compute == kernels::Compute::kBf16 ? 2 : 4;
  tiles.resize(std::max<size_t>(tiles.size(), workers));
  for (Tile& tile : tiles) {
    grow(tile.norm, tile_rows * element * std::max(config.n_embd, config.q_rows()));
    grow(tile.gate_up, size_t{tile_rows} * 2 * config.n_ff);
    grow(tile.act, tile_rows * element * config.n_ff);
  }
}

void Forward::Workspace::lay_out(std::span<const ForwardSeq> seqs) {
  kv_spans.clear();
  attn_seqs.assign(seqs.size(), mri_attn_seq{});
  uint32_t row = 0;
  for (uint32_t s = 0; s < seqs.size(); ++s) {
    const ForwardSeq& seq = seqs[s];
    const uint32_t position = seq.cache->n_tokens() - seq.n_tokens;
    attn_seqs[s].first_row = row;
    attn_seqs[s].n_queries = seq.n_tokens;
    attn_seqs[s].position = position;
    attn_seqs[s].flags = seq.flags;
    attn_seqs[s].context = seq.context;
    for (uint32_t done = 0; done < seq.n_tokens;) {
      const uint32_t n =
          std::min(seq.n_tokens - done, MRI_BLOCK_TOKENS - (position + done) % MRI_BLOCK_TOKENS);
      kv_spans.push_back({s, position + done, n, size_t{row} + done});
      done += n;
    }
    row += seq.n_tokens;
  }
}

void Forward::Workspace::reserve_plan() {
  grow(items, std::max<uint64_t>(plan.n_items, 64));
  grow(entries, std::max<uint64_t>(plan.n_entries, 1024));
  plan = {};
  plan.hdr.struct_size = sizeof(plan);
  plan.items = items.data();
  plan.entries = entries.data();
  plan.items_capacity = items.size();
  plan.entries_capacity = entries.size();
}

}  // namespace varve::light
