// forward.h: the transformer: tokens in, keys and values into the caches, logits out.
//
// Per layer: norm, q k v, write keys and values, attention (the stack's plugin), output, norm,
// SwiGLU feed-forward. Few rows (decode) multiply the packed weights; many rows (prefill) unpack
// each layer once per call and use oneDNN in row tiles; with resident weights, what lies between
// multiplies those.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "adapters/light/forward/resident.h"
#include "adapters/light/forward/rope_tables.h"
#include "adapters/light/kernel_table.h"
#include "adapters/light/kv/cache.h"
#include "adapters/light/model/load_model.h"
#include "adapters/light/mutex.h"
#include "adapters/light/timings.h"
#include "mri/kind/attention.h"
#include "mri/sdk/host.hpp"

namespace varve::light {

// Rows of one call up to which packed weights are multiplied directly.
inline constexpr uint32_t kFewRowsMax = 24;
// And more than those up to which resident weights are: with few, twice the bytes cost as much as
// the unpacking saves; with many, unpacking costs nothing beside the products.
inline constexpr uint32_t kPanelRowsMax = 512;
// Rows of one call up to which keys and values are written without other threads.
inline constexpr uint32_t kSerialRowsMax = 8;

// Workspaces of either size that are kept for the next calls.
inline constexpr size_t kSpareWorkspacesMax = 4;

// One sequence's share of a call.
struct ForwardSeq {
  KvCache* cache;         // already append()ed by n_tokens
  const int32_t* tokens;  // in range
  uint32_t n_tokens;
  uint32_t flags;  // MRI_ATTN_SEQ_*
  float* logits;   // null, [vocab] or, with all_logits, [n_tokens][vocab]
  bool all_logits;
  uint64_t context = 0;  // for plugins that remember
  bool no_summaries = false;
  mri_timings* timings = nullptr;  // gets its share of the call's time; null: not asked for
};

// Thread-safe: each call takes a workspace of its own.
class Forward {
 public:
  // resident: null where there are none.
  Forward(const Model& model, const RopeTables& rope, const KvStore& store,
          kernels::Compute compute, std::shared_ptr<const ResidentWeights> resident);
  ~Forward();

  // `cancel` is polled between layers; then, and on any failure, throws mri::Error, and the caches
  // must be truncated.
  void run(std::span<const ForwardSeq> seqs, const uint32_t* cancel);

  // Makes buffers for calls of so many rows and touches them.
  void warm_up(uint32_t rows);

 private:
  struct Workspace;
  class Loan;
  enum class Path { kFew, kPanels, kMany };

  Path path_of(uint32_t rows) const;
  void run_layers(std::span<const ForwardSeq> seqs, Workspace& work, const uint32_t* cancel) const;
  void embed(std::span<const ForwardSeq> seqs, Workspace& work) const;
  void layer_few(uint32_t layer, std::span<const ForwardSeq> seqs, Workspace& work) const;
  void layer_many(uint32_t layer, std::span<const ForwardSeq> seqs, Workspace& work) const;
  void layer_panels(uint32_t layer, std::span<const ForwardSeq> seqs, Workspace& work) const;
  template <class F>
  void share_rows(size_t rows, F&& f) const;
  template <class F>
  void share_panels(size_t n, F&& f) const;
  void unpack_layer(uint32_t layer, Workspace& work) const;
  void qkv_many(uint32_t layer, Workspace& work) const;
  void feed_forward_many(uint32_t layer, Workspace& work) const;
  void finish_qkv(uint32_t layer, Workspace& work, uint32_t first_row, uint32_t n_rows) const;
  void write_kv(uint32_t layer, std::span<const ForwardSeq> seqs, Workspace& work) const;
  void attend(uint32_t layer, std::span<const ForwardSeq> seqs, Workspace& work) const;
  // Adds to work.mass what the queries of one layer give to each block.
  void measure_mass(const mri_attn_req& req, Workspace& work) const;
  void head(std::span<const ForwardSeq> seqs, Workspace& work) const;
  void head_rows(std::span<const uint32_t> rows, std::span<float* const> outs,
                 Workspace& work) const;
  void head_panels(const uint16_t* norm, size_t m, std::span<float* const> outs) const;
  void note_reads(std::span<const ForwardSeq> seqs, const Workspace& work) const;

  const Model& model_;
  const ModelConfig& config_;
  const KvStore& store_;
  const mri::Host& host_;
  const kernels::Compute
      products_;  // number format of matrix products: bf16 only where the CPU has it
  const std::shared_ptr<const ResidentWeights> resident_;
  const float scale_;
  AttentionRuntime attention_runtime_;
  mri::Peer<mri_attention_v1> attention_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> spare_[3] ABSL_GUARDED_BY(mutex_);  // by path
};

}  // namespace varve::light
