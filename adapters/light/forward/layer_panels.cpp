// One transformer layer for the rows of a serving step: answers of many contexts and a piece of a
// prompt. Weights are resident bf16 panels; threads share out a matrix's rows, so that each is read
// from memory once.
#include <algorithm>

#include "adapters/light/forward/forward.h"
#include "adapters/light/forward/linear.h"
#include "adapters/light/forward/workspace.h"
#include "kernels/convert.h"
#include "kernels/norm.h"
#include "kernels/panel_gemm.h"
#include "kernels/swiglu.h"

namespace varve::light {

// f(first, end) for shares of the rows.
template <class F>
void Forward::share_rows(size_t rows, F&& f) const {
  const uint64_t parts = host_.concurrency();
  host_.parallel_for(parts,
                     [&](uint64_t i, uint32_t) { f(rows * i / parts, rows * (i + 1) / parts); });
}

// f(n0, n1) for shares of n output rows, in pairs of panels.
template <class F>
void Forward::share_panels(size_t n, F&& f) const {
  constexpr size_t kPair = 2 * kernels::kPanelRows;
  const uint64_t parts = 2 * host_.concurrency(), pairs = (n + kPair - 1) / kPair;
  host_.parallel_for(parts, [&](uint64_t i, uint32_t) {
    const size_t n0 = pairs * i / parts * kPair, n1 = std::min(n, pairs * (i + 1) / parts * kPair);
    if (n0 < n1) f(n0, n1);
  });
}

void Forward::layer_panels(uint32_t layer, std::span<const ForwardSeq> seqs,
                           Workspace& work) const {
  const Model::Layer& weights = model_.layers[layer];
  const ResidentWeights::Layer& resident = resident_->layers[layer];
  const size_t m = work.rows, embd = config_.n_embd, ff = config_.n_ff, q_rows = config_.q_rows();
  float* x = work.x.data();
  uint16_t* in = work.in.data();
  const auto norm = [&](const std::vector<float>& w) {
    share_rows(m, [&](size_t first, size_t end) {
      for (size_t r = first; r < end; ++r)
        kernels::cpu::rms_norm_bf16(x + r * embd, w.data(), config_.norm_eps, in + r * embd, embd);
    });
  };
  const auto multiply = kernels::cpu::panel_gemm;
  norm(weights.attn_norm);
  share_panels(work.qkv_stride, [&](size_t n0, size_t n1) {
    multiply(resident.wqkv, in, m, embd, work.qkv.data() + n0, work.qkv_stride, n0, n1, false);
  });
  finish_qkv(layer, work, 0, work.rows);
  write_kv(layer, seqs, work);
  attend(layer, seqs, work);
  share_rows(m, [&](size_t first, size_t end) {
    kernels::cpu::bf16_from_f32(work.o.data() + first * q_rows, in + first * q_rows,
                                (end - first) * q_rows);
  });
  share_panels(embd, [&](size_t n0, size_t n1) {
    multiply(resident.wo, in, m, q_rows, x + n0, embd, n0, n1, true);
  });
  norm(weights.ffn_norm);
  float* gate = work.gate_up.data();
  float* up = gate + m * ff;
  uint16_t* act = work.act_bf16.data();
  share_panels(ff, [&](size_t n0, size_t n1) {
    multiply(resident.w_gate, in, m, embd, gate + n0, ff, n0, n1, false);
    multiply(resident.w_up, in, m, embd, up + n0, ff, n0, n1, false);
    for (size_t r = 0; r < m; ++r) {
      const size_t at = r * ff + n0;
      kernels::cpu::swiglu_bf16(gate + at, up + at, act + at, n1 - n0);
    }
  });
  share_panels(embd, [&](size_t n0, size_t n1) {
    multiply(resident.w_down, act, m, ff, x + n0, embd, n0, n1, true);
  });
}

// Logits of m rows, normed and rounded.
void Forward::head_panels(const uint16_t* norm, size_t m, std::span<float* const> outs) const {
  constexpr size_t kPiece = 1024;
  const uint64_t pieces = (config_.vocab + kPiece - 1) / kPiece;
  host_.parallel_for(pieces, [&](uint64_t i, uint32_t) {
    const size_t n0 = i * kPiece, n1 = std::min<size_t>(config_.vocab, n0 + kPiece);
    thread_local std::vector<float> out;
    out.resize(m * kPiece);
    kernels::cpu::panel_gemm(resident_->output, norm, m, config_.n_embd, out.data(), kPiece, n0, n1,
                             false);
    for (size_t r = 0; r < m; ++r) std::copy_n(out.data() + r * kPiece, n1 - n0, outs[r] + n0);
  });
}

}  // namespace varve::light
