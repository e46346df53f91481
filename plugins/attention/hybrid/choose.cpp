#include "choose.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "mri/sdk/error.hpp"
#include "times.h"

namespace hybrid {
namespace {

constexpr uint32_t kSegmentBlocks = MRI_SEGMENT_TOKENS / kBlock;
constexpr uint32_t kSampledQueries = 8;  // at least so many of a tile take part in choosing
constexpr uint32_t kLayerShift = kBlock / 2;
constexpr uint64_t kShortlistBlocks = 128;  // below that the bound saves nothing and misses needles

// One call of choose(): its arguments and what follows from them.
class Chooser {
 public:
  Chooser(const Options& options, const mri_kernels_v1& kernels, const mri_attn_req& req,
          const mri_attn_item& item, const Tile& tile, const Live& live, Remembered* remembered,
          Scratch& scratch)
      : options_(options),
        kernels_(kernels),
        req_(req),
        item_(item),
        seq_(req.seqs[item.seq]),
        tile_(tile),
        remembered_(remembers(options, seq_) ? remembered : nullptr),
        timed_(asked(req) != nullptr ? remembered : nullptr),
        scratch_(scratch) {
    const uint32_t end = seq_.position + tile.first + tile.n;
    true_positions_ = options.positions == Positions::kTrue ||
                      (options.positions == Positions::kAuto && end <= req.trained_tokens);
    const bool last_tile =
        (seq_.flags & MRI_ATTN_SEQ_PROMPT_END) != 0 && tile.first + tile.n == seq_.n_queries;
    const bool decoding = (seq_.flags & MRI_ATTN_SEQ_DECODE) != 0;
    read_all_ = end <= options.dense_below_tokens ||
                (!decoding && end <= options.dense_prompt_tokens) ||
                (last_tile && options.dense_last_tile && end <= req.trained_tokens);
    window_first_ = tile.block - std::min(tile.block, options.window_blocks);
    is_piece_ = !decoding && remembered_ != nullptr;
    goes_on_ = is_piece_ && !read_all_ && is_same_tile();
    if (goes_on_) window_first_ = std::min(window_first_, remembered_->window_first);
    // A short tile has few queries to sample, and every one of a question's may be the one that
    // asks.
    thorough_ = last_tile || decoding;
    query_step_ = last_tile ? 1 : std::clamp(tile.n / kSampledQueries, 1u, options.query_step);

    const std::span<const uint32_t> blocks(live.blocks);
    const auto place = [&](uint32_t block) {
      return static_cast<size_t>(std::lower_bound(blocks.begin(), blocks.end(), block) -
                                 blocks.begin());
    };
    const size_t window = place(window_first_), stop = place(tile.last + 1);
    const size_t sinks = std::min<size_t>(live.n_sinks, window);
    sinks_ = blocks.first(sinks);
    candidates_ = blocks.subspan(sinks, window - sinks);
    window_ = blocks.subspan(window, stop - window);
  }

  Chosen entries(mri_attn_entry* out) {
    pick_blocks();
    out_ = out;
    const auto far = static_cast<int32_t>(tile_.block - window_first_);
    const auto n_chosen = static_cast<int32_t>(scratch_.chosen.size());
    add_blocks(sinks_, far + n_chosen + static_cast<int32_t>(sinks_.size()));
    add_summaries(far + n_chosen / 2);
    add_blocks(scratch_.chosen, far + n_chosen);
    const auto window_distance =
        window_.empty() ? 0 : static_cast<int32_t>(tile_.block) - static_cast<int32_t>(window_[0]);
    add_blocks(window_, window_distance, /*as_in_text=*/true);
    return {n_, chose_, static_cast<uint32_t>(scratch_.chosen.size()), n_again()};
  }

 private:
  // Two stages: the bound keeps a share of the candidates, the key sketch ranks those.
  void pick_blocks() {
    auto& chosen = scratch_.chosen;
    if (read_all_ || candidates_.size() <= options_.top_k) {
      chosen.assign(candidates_.begin(), candidates_.end());
      return;
    }
    chosen.clear();
    chose_ = true;
    if (goes_on_) {
      keep_candidates(remembered_->blocks, chosen);
      return;
    }
    if (options_.top_k > 0) {
      const std::span<const uint32_t> blocks = shortlist();
      for (const uint32_t i : best(MRI_SCORE_SKETCH, blocks, options_.top_k)) {
        chosen.push_back(blocks[i]);
      }
    }
    add_hints();
    if (!is_piece_) return;
    remembered_->position = seq_.position;
    remembered_->window_first = window_first_;
    remembered_->blocks.assign(chosen.begin(), chosen.end());
  }

  // A question is chosen for by itself.
  static bool remembers(const Options& options, const mri_attn_seq& seq) {
    if ((seq.flags & MRI_ATTN_SEQ_DECODE) != 0) return options.reuse_steps > 1;
    return (seq.flags & MRI_ATTN_SEQ_PROMPT_END) == 0 && is_piece(options, seq);
  }

  // Was the choice made for an earlier piece of this tile? Each layer's tiles begin elsewhere, so
  // that no step pays for the choices of all of them.
  bool is_same_tile() const {
    if (remembered_->window_first == Remembered::kOfAnswer) return false;
    const uint64_t shift = uint64_t{kLayerShift} * req_.layer;
    return remembered_->position < seq_.position &&
           (remembered_->position + shift) / options_.tile_queries ==
               (seq_.position + shift) / options_.tile_queries;
  }

  void keep_candidates(std::span<const uint32_t> blocks, std::vector<uint32_t>& out) const {
    for (const uint32_t block : blocks) {
      if (std::binary_search(candidates_.begin(), candidates_.end(), block)) out.push_back(block);
    }
  }

  // How many of the chosen blocks the query before chose too; remembers the chosen ones.
  uint32_t n_again() const {
    if (timed_ == nullptr || !chose_) return 0;
    uint32_t n = 0;
    for (const uint32_t block : scratch_.chosen) {
      n += std::binary_search(timed_->chosen.begin(), timed_->chosen.end(), block);
    }
    timed_->chosen.assign(scratch_.chosen.begin(), scratch_.chosen.end());
    return n;
  }

  // The share of the candidates that is worth ranking. The bound picks it for the tiles of a
  // prompt, but it does not see a needle of a few tokens: a question and its answer look at the
  // sketch of every candidate. While answering, the share stays for some tokens, and layers make it
  // anew in turn, so that no step pays for all of them; a block that has left the window since is
  // not on it until then.
  std::span<const uint32_t> shortlist() {
    const uint64_t share = candidates_.size() * uint64_t{options_.candidates_percent} / 100;
    const uint64_t keep = std::max({share, 2 * uint64_t{options_.top_k}, kShortlistBlocks});
    if (keep >= candidates_.size()) return candidates_;
    scratch_.kept.clear();
    if (remembers_shortlist()) {
      keep_candidates(remembered_->blocks, scratch_.kept);
      return scratch_.kept;
    }
    if (thorough_ && remembered_ == nullptr) return candidates_;
    const uint32_t how = thorough_ ? MRI_SCORE_SKETCH : MRI_SCORE_RADIUS;
    for (const uint32_t i : best(how, candidates_, keep)) {
      scratch_.kept.push_back(candidates_[i]);
    }
    if (remembered_ != nullptr && !is_piece_) {
      remembered_->position = seq_.position;
      remembered_->window_first = Remembered::kOfAnswer;
      remembered_->blocks.assign(scratch_.kept.begin(), scratch_.kept.end());
    }
    return scratch_.kept;
  }

  bool remembers_shortlist() const {
    if (remembered_ == nullptr || remembered_->position >= seq_.position ||
        remembered_->window_first != Remembered::kOfAnswer)
      return false;
    const bool turn = (seq_.position + req_.layer) % options_.reuse_steps == 0;
    return !turn && seq_.position - remembered_->position < options_.reuse_steps;
  }

  void add_hints() {
    auto& chosen = scratch_.chosen;
    const size_t n_scored = chosen.size();
    const uint32_t n_hints =
        seq_.hints != nullptr ? std::min(seq_.n_hints, hints_max(options_)) : 0;
    for (uint32_t i = 0; i < n_hints; ++i) {
      if (std::binary_search(candidates_.begin(), candidates_.end(), seq_.hints[i])) {
        chosen.push_back(seq_.hints[i]);
      }
    }
    if (chosen.size() == n_scored) return;
    std::sort(chosen.begin(), chosen.end());
    chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  }

  // The numbers, in rising order, of the k blocks with the highest scores. Compact: all are
  // compared at the middle of the place that the chosen ones will take.
  std::span<const uint32_t> best(uint32_t how, std::span<const uint32_t> blocks, uint64_t k) {
    const auto middle = static_cast<int32_t>(options_.window_blocks + options_.top_k / 2);
    scratch_.distances.resize(blocks.size());
    for (size_t i = 0; i < blocks.size(); ++i) {
      scratch_.distances[i] = true_positions_ ? true_distance(blocks[i]) : middle;
    }
    scratch_.scores.resize(blocks.size());
    scratch_.picks.resize(std::min<uint64_t>(k, blocks.size()));
    const mri_status status = kernels_.score_blocks(
        kernels_.self, &req_, &item_, how, blocks.data(), scratch_.distances.data(), blocks.size(),
        query_step_, scratch_.scores.data());
    if (status != MRI_OK)
      throw mri::Error(status, "hybrid: the kernel table refused to score blocks");
    const uint64_t n = kernels_.top_k(kernels_.self, scratch_.scores.data(), blocks.size(), k,
                                      scratch_.picks.data());
    return std::span<const uint32_t>(scratch_.picks).first(n);
  }

  int32_t true_distance(uint32_t block) const {
    return static_cast<int32_t>(tile_.block) - static_cast<int32_t>(block);
  }

  void add_blocks(std::span<const uint32_t> blocks, int32_t compact, bool as_in_text = false) {
    for (const uint32_t block : blocks) {
      add(MRI_ATTN_BLOCKS, block, true_positions_ || as_in_text ? true_distance(block) : compact,
          0.f);
      --compact;
    }
  }

  // Pairs of a segment stand for its blocks that are not read, so their weight is the share of
  // those.
  void add_summaries(int32_t compact) {
    if (options_.summary_weight <= 0 || seq_.summaries == nullptr) return;
    for (uint32_t i = 0; i < seq_.n_summaries; ++i) {
      const mri_kv_summary& s = seq_.summaries[i];
      const uint64_t end = uint64_t{s.position} + s.n_tokens;
      if (s.n_pages == 0 || s.n_tokens == 0 || end > uint64_t{window_first_} * kBlock) continue;
      const uint32_t first = s.position / kBlock;
      const uint32_t n_blocks = (s.n_tokens + kBlock - 1) / kBlock;
      const uint32_t n_read =
          count(sinks_, first, n_blocks) + count(scratch_.chosen, first, n_blocks);
      if (n_read >= n_blocks) continue;
      const float share = static_cast<float>(n_blocks - n_read) / static_cast<float>(n_blocks);
      const int32_t nearest =
          static_cast<int32_t>(n_blocks);  // its last offsets stay before the query
      add(MRI_ATTN_SUMMARY, i, true_positions_ ? true_distance(first) : std::max(compact, nearest),
          std::log(options_.summary_weight * share));
    }
  }

  static uint32_t count(std::span<const uint32_t> blocks, uint32_t first, uint32_t n) {
    const auto begin = std::lower_bound(blocks.begin(), blocks.end(), first);
    return static_cast<uint32_t>(std::lower_bound(begin, blocks.end(), first + n) - begin);
  }

  // Appends to the last run when it goes on.
  void add(uint32_t what, uint32_t index, int32_t distance, float log_weight) {
    if (n_ > 0) {
      mri_attn_entry& run = out_[n_ - 1];
      const int32_t step = what == MRI_ATTN_BLOCKS ? 1 : static_cast<int32_t>(kSegmentBlocks);
      if (run.what == what && run.index + run.count == index && run.log_weight == log_weight &&
          run.distance - step * static_cast<int32_t>(run.count) == distance) {
        ++run.count;
        return;
      }
    }
    out_[n_++] = {what, index, 1, distance, log_weight};
  }

  static uint32_t hints_max(const Options& options) { return std::max(options.top_k, 1u); }

  const Options& options_;
  const mri_kernels_v1& kernels_;
  const mri_attn_req& req_;
  const mri_attn_item& item_;
  const mri_attn_seq& seq_;
  const Tile& tile_;
  Remembered* const remembered_;
  Remembered* const timed_;
  Scratch& scratch_;
  bool true_positions_, read_all_, thorough_;
  bool is_piece_;  // of a tile of a prompt that is remembered
  bool goes_on_;   // with what an earlier piece chose
  uint32_t window_first_, query_step_;
  std::span<const uint32_t> sinks_, candidates_, window_;
  mri_attn_entry* out_ = nullptr;
  uint64_t n_ = 0;
  bool chose_ = false;
};

}  // namespace

bool is_piece(const Options& options, const mri_attn_seq& seq) {
  return uint64_t{seq.position % kBlock} + seq.n_queries < options.tile_queries;
}

void Live::assign(const mri_attn_seq& seq, const Options& options) {
  blocks.clear();
  n_sinks = runs = 0;
  for (uint32_t i = 0; i < seq.n_blocks; ++i) {
    const mri_kv_block& block = seq.blocks[i];
    if ((block.flags & MRI_BLOCK_EVICTED) != 0 || block.live_mask == 0) continue;
    if (blocks.empty() || blocks.back() + 1 != i) ++runs;
    const bool sink = i < options.sink_blocks || (block.flags & MRI_BLOCK_SINK) != 0;
    if (sink && n_sinks == blocks.size()) ++n_sinks;
    blocks.push_back(i);
  }
}

uint64_t entries_max(const mri_attn_seq& seq, const Live& live, const Options& options) {
  // Sinks and window add at most all runs each; chosen blocks and hints may all lie alone.
  const uint64_t chosen = 2 * uint64_t{options.top_k} + 1;
  return std::min<uint64_t>(live.blocks.size(), 2 * uint64_t{live.runs} + chosen + 2) +
         seq.n_summaries;
}

Chosen choose(const Options& options, const mri_kernels_v1& kernels, const mri_attn_req& req,
              uint32_t s, uint32_t kv_head, const Tile& tile, const Live& live,
              Remembered* remembered, Scratch& scratch, mri_attn_entry* out) {
  const mri_attn_item item{s, kv_head, tile.first, tile.n, 0, 0, 0, 0};
  return Chooser(options, kernels, req, item, tile, live, remembered, scratch).entries(out);
}

}  // namespace hybrid
