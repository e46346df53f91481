// One transformer layer, for few and for many rows, and the vocabulary head.
#include <algorithm>

#include "adapters/light/forward/forward.h"
#include "adapters/light/forward/linear.h"
#include "adapters/light/forward/workspace.h"
#include "kernels/convert.h"
#include "kernels/norm.h"
#include "kernels/swiglu.h"

namespace varve::light {
namespace {

constexpr size_t kHeadRows = 1024;  // vocabulary rows per piece of work

void norm_row(kernels::Compute compute, const float* x, const float* w, float eps, void* y,
              size_t i, size_t n) {
  if (compute == kernels::Compute::kBf16) {
    kernels::cpu::rms_norm_bf16(x, w, eps, static_cast<uint16_t*>(y) + i * n, n);
  } else {
    kernels::cpu::rms_norm(x, w, eps, static_cast<float*>(y) + i * n, n);
  }
}

void add(float* y, size_t y_stride, const float* x, size_t x_stride, size_t m, size_t n0,
         size_t n1) {
  for (size_t r = 0; r < m; ++r) {
    for (size_t c = n0; c < n1; ++c) y[r * y_stride + c] += x[r * x_stride + c];
  }
}

}  // namespace

void Forward::layer_few(uint32_t layer, std::span<const ForwardSeq> seqs, Workspace& work) const {
  const Model::Layer& weights = model_.layers[layer];
  const size_t m = work.rows, embd = config_.n_embd, ff = config_.n_ff, parts = host_.concurrency();
  float* x = work.x.data();
  float* norm = work.norm.data();
  for (size_t r = 0; r < m; ++r) {
    kernels::cpu::rms_norm(x + r * embd, weights.attn_norm.data(), config_.norm_eps,
                           norm + r * embd, embd);
  }
  host_.parallel_for(parts, [&](uint64_t i, uint32_t) {
    const auto [n0, n1] = panel_range(work.qkv_stride, i, parts);
    multiply_few(weights.wqkv, norm, m, work.qkv.data(), work.qkv_stride, n0, n1);
  });
  finish_qkv(layer, work, 0, work.rows);
  write_kv(layer, seqs, work);
  attend(layer, seqs, work);
  float* sums = work.gate_up.data();
  host_.parallel_for(parts, [&](uint64_t i, uint32_t) {
    const auto [n0, n1] = panel_range(embd, i, parts);
    multiply_few(weights.wo, work.o.data(), m, sums, embd, n0, n1);
    add(x, embd, sums, embd, m, n0, n1);
  });
  for (size_t r = 0; r < m; ++r) {
    kernels::cpu::rms_norm(x + r * embd, weights.ffn_norm.data(), config_.norm_eps, norm + r * embd,
                           embd);
  }
  host_.parallel_for(parts, [&](uint64_t i, uint32_t) {
    const auto [n0, n1] = panel_range(ff, i, parts);
    float* gate_up = work.gate_up.data();
    multiply_few(weights.w_gate_up, norm, m, gate_up, 2 * ff, n0, n1);
    multiply_few(weights.w_gate_up, norm, m, gate_up, 2 * ff, ff + n0, ff + n1);
    for (size_t r = 0; r < m; ++r) {
      const float* gate = gate_up + r * 2 * ff + n0;
      kernels::cpu::swiglu(gate, gate + ff, work.act.data() + r * ff + n0, n1 - n0);
    }
  });
  sums = norm;
  host_.parallel_for(parts, [&](uint64_t i, uint32_t) {
    const auto [n0, n1] = panel_range(embd, i, parts);
    multiply_few(weights.w_down, work.act.data(), m, sums, embd, n0, n1);
    add(x, embd, sums, embd, m, n0, n1);
  });
}

void Forward::unpack_layer(uint32_t layer, Workspace& work) const {
  const Model::Layer& weights = model_.layers[layer];
  const uint64_t parts = 2 * host_.concurrency();
  host_.parallel_for(parts, [&](uint64_t i, uint32_t) {
    const auto each = [&](PlainMatrix& to, const auto& from) {
      const auto [n0, n1] = panel_range(to.n(), i, parts);
      if (n0 < n1) to.unpack(from, n0, n1, n0);
    };
    each(work.wqkv, weights.wqkv);
    each(work.wo, weights.wo);
    each(work.w_gate_up, weights.w_gate_up);
    each(work.w_down, weights.w_down);
  });
}

void Forward::layer_many(uint32_t layer, std::span<const ForwardSeq> seqs, Workspace& work) const {
  unpack_layer(layer, work);
  qkv_many(layer, work);
  write_kv(layer, seqs, work);
  attend(layer, seqs, work);
  feed_forward_many(layer, work);
}

void Forward::qkv_many(uint32_t layer, Workspace& work) const {
  const Model::Layer& weights = model_.layers[layer];
  const size_t embd = config_.n_embd;
  const uint64_t n_tiles = (work.rows + work.tile_rows - 1) / work.tile_rows;
  host_.parallel_for(n_tiles, [&](uint64_t t, uint32_t worker) {
    Workspace::Tile& tile = work.tiles[worker];
    const size_t first = t * work.tile_rows,
                 m = std::min<size_t>(work.tile_rows, work.rows - first);
    for (size_t r = 0; r < m; ++r) {
      norm_row(products_, work.x.data() + (first + r) * embd, weights.attn_norm.data(),
               config_.norm_eps, tile.norm.data(), r, embd);
    }
    work.wqkv.multiply(tile.norm.data(), m, embd, work.qkv.data() + first * work.qkv_stride,
                       work.qkv_stride, false);
    finish_qkv(layer, work, static_cast<uint32_t>(first), static_cast<uint32_t>(m));
  });
}

void Forward::feed_forward_many(uint32_t layer, Workspace& work) const {
  const Model::Layer& weights = model_.layers[layer];
  const size_t embd = config_.n_embd, ff = config_.n_ff, q_rows = config_.q_rows();
  const uint64_t n_tiles = (work.rows + work.tile_rows - 1) / work.tile_rows;
  host_.parallel_for(n_tiles, [&](uint64_t t, uint32_t worker) {
    Workspace::Tile& tile = work.tiles[worker];
    const size_t first = t * work.tile_rows,
                 m = std::min<size_t>(work.tile_rows, work.rows - first);
    float* x = work.x.data() + first * embd;
    const float* o = work.o.data() + first * q_rows;
    const void* attended = o;
    if (products_ == kernels::Compute::kBf16) {
      kernels::cpu::bf16_from_f32(o, reinterpret_cast<uint16_t*>(tile.norm.data()), m * q_rows);
      attended = tile.norm.data();
    }
    work.wo.multiply(attended, m, q_rows, x, embd, true);
    for (size_t r = 0; r < m; ++r) {
      norm_row(products_, x + r * embd, weights.ffn_norm.data(), config_.norm_eps, tile.norm.data(),
               r, embd);
    }
    work.w_gate_up.multiply(tile.norm.data(), m, embd, tile.gate_up.data(), 2 * ff, false);
    for (size_t r = 0; r < m; ++r) {
      const float* gate = tile.gate_up.data() + r * 2 * ff;
      if (products_ == kernels::Compute::kBf16) {
        kernels::cpu::swiglu_bf16(gate, gate + ff,
                                  reinterpret_cast<uint16_t*>(tile.act.data()) + r * ff, ff);
      } else {
        kernels::cpu::swiglu(gate, gate + ff, reinterpret_cast<float*>(tile.act.data()) + r * ff,
                             ff);
      }
    }
    work.w_down.multiply(tile.act.data(), m, ff, x, embd, true);
  });
}

void Forward::head(std::span<const ForwardSeq> seqs, Workspace& work) const {
  std::vector<uint32_t> rows;
  std::vector<float*> outs;
  uint32_t row = 0;
  for (const ForwardSeq& seq : seqs) {
    if (seq.logits != nullptr && seq.all_logits) {
      for (uint32_t i = 0; i < seq.n_tokens; ++i) {
        rows.push_back(row + i);
        outs.push_back(seq.logits + size_t{i} * config_.vocab);
      }
    } else if (seq.logits != nullptr) {
      rows.push_back(row + seq.n_tokens - 1);
      outs.push_back(seq.logits);
    }
    row += seq.n_tokens;
  }
  for (size_t done = 0; done < rows.size(); done += kTileQueriesMax) {
    const size_t n = std::min<size_t>(kTileQueriesMax, rows.size() - done);
    head_rows(std::span(rows).subspan(done, n), std::span<float* const>(outs).subspan(done, n),
              work);
  }
}

// Logits of rows that may lie anywhere, into places that may lie anywhere: gathered, multiplied,
// scattered.
void Forward::head_rows(std::span<const uint32_t> rows, std::span<float* const> outs,
                        Workspace& work) const {
  const size_t m = rows.size(), embd = config_.n_embd;
  const bool few = m <= kFewRowsMax, panels = !few && resident_ != nullptr;
  std::vector<float> norm(m * embd);
  std::vector<uint16_t> norm_bf16(
      panels || (!few && products_ == kernels::Compute::kBf16) ? m * embd : 0);
  for (size_t r = 0; r < m; ++r) {
    kernels::cpu::rms_norm(work.x.data() + size_t{rows[r]} * embd, model_.output_norm.data(),
                           config_.norm_eps, norm.data() + r * embd, embd);
  }
  if (!norm_bf16.empty()) kernels::cpu::bf16_from_f32(norm.data(), norm_bf16.data(), m * embd);
  if (panels) return head_panels(norm_bf16.data(), m, outs);
  const uint64_t pieces = (config_.vocab + kHeadRows - 1) / kHeadRows;
  host_.parallel_for(pieces, [&](uint64_t i, uint32_t) {
    const size_t n0 = i * kHeadRows, n1 = std::min<size_t>(config_.vocab, n0 + kHeadRows);
    if (m == 1) {
      multiply_few(model_.output, norm.data(), 1, outs[0], config_.vocab, n0, n1);
      return;
    }
    thread_local std::vector<float> out;
    thread_local PlainMatrix plain;
    const size_t stride = few ? config_.vocab : kHeadRows;
    const size_t column = few ? n0 : 0;
    out.resize(m * stride);
    if (few) {
      multiply_few(model_.output, norm.data(), m, out.data(), stride, n0, n1);
    } else {
      plain.reshape(n1 - n0, embd, products_);
      plain.unpack(model_.output, n0, n1, 0);
      const void* a = norm_bf16.empty() ? static_cast<const void*>(norm.data()) : norm_bf16.data();
      plain.multiply(a, m, embd, out.data(), stride, false);
    }
    for (size_t r = 0; r < m; ++r)
      std::copy_n(out.data() + r * stride + column, n1 - n0, outs[r] + n0);
  });
}

}  // namespace varve::light
