// workspace.h: the buffers of one forward call, kept from call to call.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "adapters/light/forward/forward.h"
#include "adapters/light/forward/linear.h"

namespace varve::light {

struct Forward::Workspace {
  // A run of new tokens within one block.
  struct KvSpan {
    uint32_t seq, first, n;
    size_t row;
  };
  // One thread's tile of rows in layer_many.
  struct Tile {
    std::vector<uint8_t> norm, act;  // bf16 or f32
    std::vector<float> gate_up;
  };

  Path path = Path::kFew;
  uint32_t rows = 0;
  uint32_t tile_rows = 0;
  size_t qkv_stride = 0;
  std::vector<float> x, qkv, q, o, lse;   // [rows][…]
  std::vector<float> norm, gate_up, act;  // few rows only; gate_up with resident weights too
  std::vector<uint16_t> in, act_bf16;     // with resident weights: what is multiplied
  std::vector<KvSpan> kv_spans;
  std::vector<mri_attn_seq> attn_seqs;
  std::vector<mri_attn_item> items;
  std::vector<mri_attn_entry> entries;
  mri_attn_plan plan{};
  // By sequence and block: the sum of the queries' shares of attention; empty: not measured.
  std::vector<std::vector<float>> mass;
  CallTimes* times = nullptr;               // null: nobody asked
  PlainMatrix wqkv, wo, w_gate_up, w_down;  // many rows only: the current layer
  std::vector<Tile> tiles;                  // by worker

  void reshape(const ModelConfig& config, kernels::Compute compute, Path way, uint32_t n_rows,
               uint32_t workers);
  void lay_out(std::span<const ForwardSeq> seqs);
  // Room for at least what the last plan() asked for.
  void reserve_plan();
};

}  // namespace varve::light
