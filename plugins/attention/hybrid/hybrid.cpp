// Hybrid attention: per KV head, sinks, a window and the blocks that matter most are read exactly,
// summaries stand for the rest. choose.cpp decides for one tile; this file spreads tiles over cores
// and runs the list.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "choose.h"
#include "memory.h"
#include "mri/sdk/attention.hpp"
#include "times.h"

namespace hybrid {
namespace {

constexpr uint32_t kPartBlocks = 32;  // a shorter part costs more to merge than it saves
// A list is cut when it is more than this part of what a thread has to do: one thread must not
// read a prompt alone while the others have only answers.
constexpr double kPartsPerThread = 2;
constexpr uint32_t kPageQueries = 6;  // to bring a page near costs as much as so many queries

// One list to choose: a KV head's tile; its entries start at `at` in the shared array.
struct Choice {
  uint32_t seq, kv_head;
  Tile tile;
  uint64_t at;
  Chosen chosen;
  uint64_t n_pages = 0;  // to be read
};

// Memory that plan() keeps from step to step in each calling thread.
struct PlanScratch {
  std::vector<Live> live;
  std::vector<std::shared_ptr<Memory::Shortlists>> remembered;  // by sequence; null: chosen anew
  std::vector<Choice> choices;
  std::vector<mri_attn_entry> entries;
};

class Hybrid {
 public:
  Hybrid(const mri::Host& host, const mri::Params& params) : host_(host), kernels_(host.kernels()) {
    const auto blocks = [&](const char* key) {
      return (params.get<uint32_t>(key) + kBlock - 1) / kBlock;
    };
    const auto positions = params.get<std::string>("positions");
    options_.window_blocks = blocks("window_tokens");
    options_.top_k = params.get<uint32_t>("top_k_blocks");
    options_.sink_blocks = blocks("sink_tokens");
    options_.dense_below_tokens = params.get<uint32_t>("dense_below_tokens");
    options_.dense_prompt_tokens = params.get<uint32_t>("dense_prompt_tokens");
    options_.candidates_percent = params.get<uint32_t>("candidates_percent");
    options_.query_step = params.get<uint32_t>("query_step");
    options_.reuse_steps = params.get<uint32_t>("reuse_steps");
    options_.tile_queries = params.get<uint32_t>("tile_queries") / kBlock * kBlock;
    options_.summary_weight = params.get<float>("summary_weight");
    options_.dense_last_tile = params.get<bool>("dense_last_tile");
    options_.positions = positions == "true"      ? Positions::kTrue
                         : positions == "compact" ? Positions::kCompact
                                                  : Positions::kAuto;
  }

  mri_status plan(const mri_attn_req& req, mri_attn_plan& plan) const {
    if (req.n_kv_heads == 0) throw mri::Error(MRI_E_ARG, "hybrid: n_kv_heads is 0");
    mri_attn_times* const times = asked(req);
    const uint64_t start_ns = times != nullptr ? now_ns() : 0;
    thread_local PlanScratch kept;
    PlanScratch& scratch = kept;  // the loop's tasks run in other threads
    const uint64_t room = list_choices(req, scratch);
    const uint32_t parts = host_.concurrency();
    // Asked for up front: an answer that did not fit would be chosen twice.
    plan.n_items = scratch.choices.size() * parts;
    plan.n_entries = room + plan.n_items;
    if (plan.n_items > plan.items_capacity || plan.n_entries > plan.entries_capacity) {
      return MRI_E_SPACE;
    }
    scratch.entries.resize(room);
    host_.parallel_for(scratch.choices.size(), [&](uint64_t i, uint32_t) {
      thread_local Scratch own;
      Choice& c = scratch.choices[i];
      c.chosen = choose(options_, kernels_, req, c.seq, c.kv_head, c.tile, scratch.live[c.seq],
                        remembered(req, c, scratch), own, &scratch.entries[c.at]);
    });
    plan.n_items = plan.n_entries = 0;
    double all = 1;
    for (Choice& c : scratch.choices) {
      c.n_pages = count_pages(req.seqs[c.seq], &scratch.entries[c.at], c.chosen.n_entries);
      all += cost(c);
    }
    for (const Choice& c : scratch.choices) {
      const auto share = static_cast<uint64_t>(std::ceil(cost(c) * kPartsPerThread * parts / all));
      add_items(req.seqs[c.seq], c, &scratch.entries[c.at], std::clamp<uint64_t>(share, 1, parts),
                plan);
    }
    if (times != nullptr) note_choices(req, scratch.choices, now_ns() - start_ns, *times);
    return MRI_OK;
  }

  mri_status run(const mri_attn_req& req, const mri_attn_plan& plan) const {
    mri_attn_times* const times = asked(req);
    if (times == nullptr) return run_items(req, plan, nullptr);
    thread_local std::vector<Parts> kept;
    kept.assign(plan.n_items, Parts{});
    const uint64_t start_ns = now_ns();
    const mri_status status = run_items(req, plan, &kept);
    add_divided(kept, now_ns() - start_ns, *times);
    return status;
  }

 private:
  // `parts`: by item, or null when time does not matter.
  mri_status run_items(const mri_attn_req& req, const mri_attn_plan& plan,
                       std::vector<Parts>* parts) const {
    const uint64_t group = req.n_heads / req.n_kv_heads, row = group * (req.head_dim + 1);
    // Parts of one item: the first writes the result, the others write scratch, which is then
    // merged.
    thread_local std::vector<uint64_t> at_kept;
    thread_local std::vector<float> parts_kept;
    auto& scratch_at = at_kept;
    auto& scratch = parts_kept;
    scratch_at.resize(plan.n_items);
    uint64_t size = 0;
    for (uint64_t i = 0; i < plan.n_items; ++i) {
      scratch_at[i] = size;
      if (continues(plan, i)) size += plan.items[i].n_queries * row;
    }
    if (scratch.size() < size) scratch.resize(size);
    std::atomic<mri_status> status{MRI_OK};
    host_.parallel_for(plan.n_items, [&](uint64_t i, uint32_t) {
      const mri_attn_item& item = plan.items[i];
      const bool part = continues(plan, i);
      float* o = part ? scratch.data() + scratch_at[i] : out(req, item, 0);
      float* lse = part ? o + item.n_queries * group * req.head_dim : out_lse(req, item, 0);
      const uint64_t start_ns = parts != nullptr ? now_ns() : 0;
      const mri_status code = kernels_.attend(
          kernels_.self, &req, &item, plan.entries + item.first_entry, item.n_entries, o,
          (part ? group : req.n_heads) * req.head_dim, lse, part ? group : req.n_heads);
      if (code != MRI_OK) status = code;
      if (parts != nullptr) (*parts)[i] = divide_item(req, plan, i, now_ns() - start_ns);
    });
    for (uint64_t i = 0; i < plan.n_items; ++i) {
      if (!continues(plan, i)) continue;
      const mri_attn_item& item = plan.items[i];
      const float* o = scratch.data() + scratch_at[i];
      const float* lse = o + item.n_queries * group * req.head_dim;
      for (uint32_t q = 0; q < item.n_queries; ++q) {
        kernels_.merge(kernels_.self, group, req.head_dim, out(req, item, q), out_lse(req, item, q),
                       o + q * group * req.head_dim, lse + q * group);
      }
    }
    return status;
  }

  Parts divide_item(const mri_attn_req& req, const mri_attn_plan& plan, uint64_t i,
                    uint64_t ns) const {
    const mri_attn_item& item = plan.items[i];
    const mri_attn_seq& seq = req.seqs[item.seq];
    const uint32_t own = (seq.position + item.first_query) / kBlock;
    return divide(seq, item, plan.entries, options_.sink_blocks,
                  own - std::min(own, options_.window_blocks), ns);
  }

  // Choices of a prompt's tiles are not counted: they have no time before.
  static void note_choices(const mri_attn_req& req, const std::vector<Choice>& choices, uint64_t ns,
                           mri_attn_times& times) {
    bool chose = false;
    for (const Choice& c : choices) {
      if (!c.chosen.chose) continue;
      chose = true;
      if ((req.seqs[c.seq].flags & MRI_ATTN_SEQ_DECODE) == 0) continue;
      add_choice(c.chosen.n, c.chosen.n_again, times);
    }
    (chose ? times.sparse_ns : times.local_ns) += ns;
  }

  // Fills `live` and `choices`, longest tiles first, and returns how many entries they may need
  // together.
  uint64_t list_choices(const mri_attn_req& req, PlanScratch& scratch) const {
    if (scratch.live.size() < req.n_seqs) scratch.live.resize(req.n_seqs);
    scratch.remembered.assign(req.n_seqs, nullptr);
    scratch.choices.clear();
    uint64_t room = 0;
    for (uint32_t s = 0; s < req.n_seqs; ++s) {
      const mri_attn_seq& seq = req.seqs[s];
      scratch.live[s].assign(seq, options_);
      const bool remembers = (seq.flags & MRI_ATTN_SEQ_DECODE) == 0
                                 ? is_piece(options_, seq)
                                 : options_.reuse_steps > 1 || asked(req) != nullptr;
      if (remembers && seq.context != 0) {
        const size_t slots = (size_t{req.layer} + 1) * req.n_kv_heads;
        scratch.remembered[s] = memory_.of(seq.context, slots);
      }
      const uint64_t most = entries_max(seq, scratch.live[s], options_);
      for (uint32_t end = seq.n_queries; end > 0;) {
        const Tile tile = tile_before(seq, end);
        for (uint32_t h = 0; h < req.n_kv_heads; ++h) {
          scratch.choices.push_back({s, h, tile, room, {}, 0});
          room += most;
        }
        end = tile.first;
      }
    }
    return room;
  }

  static Remembered* remembered(const mri_attn_req& req, const Choice& c, PlanScratch& scratch) {
    Memory::Shortlists* lists = scratch.remembered[c.seq].get();
    return lists == nullptr ? nullptr : &(*lists)[req.layer * req.n_kv_heads + c.kv_head];
  }

  // A tile ends at a block boundary or with the sequence, so that all but the first start at one.
  Tile tile_before(const mri_attn_seq& seq, uint32_t end) const {
    const uint32_t lead = seq.position % kBlock,
                   behind = (lead + end - 1) % options_.tile_queries + 1;
    const uint32_t n = std::min(behind, end), first = end - n;
    return {first, n, (seq.position + first) / kBlock, (seq.position + end - 1) / kBlock};
  }

  // Copies the chosen entries to the plan as one item, or as parts of about equal work.
  static void add_items(const mri_attn_seq& seq, const Choice& c, const mri_attn_entry* entries,
                        uint64_t parts, mri_attn_plan& plan) {
    const uint64_t n_parts = std::clamp<uint64_t>(c.n_pages / kPartBlocks, 1, parts);
    const uint64_t target = (c.n_pages + n_parts - 1) / n_parts;
    open_item(c, plan);
    uint64_t done = 0;
    for (uint64_t i = 0; i < c.chosen.n_entries; ++i) {
      mri_attn_entry rest = entries[i];
      const uint64_t each = pages(seq, rest);
      while (rest.count > 0) {
        if (done >= target) {
          open_item(c, plan);
          done = 0;
        }
        mri_attn_entry piece = rest;
        piece.count = static_cast<uint32_t>(
            std::min<uint64_t>(rest.count, (target - done + each - 1) / each));
        plan.entries[plan.n_entries++] = piece;
        ++plan.items[plan.n_items - 1].n_entries;
        const uint32_t step = rest.what == MRI_ATTN_BLOCKS ? 1 : MRI_SEGMENT_TOKENS / kBlock;
        rest.index += piece.count;
        rest.count -= piece.count;
        rest.distance -= static_cast<int32_t>(step * piece.count);
        done += each * piece.count;
      }
    }
  }

  static uint64_t count_pages(const mri_attn_seq& seq, const mri_attn_entry* entries, uint64_t n) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n; ++i) sum += pages(seq, entries[i]) * entries[i].count;
    return sum;
  }

  static double cost(const Choice& c) {
    return static_cast<double>(c.n_pages) * (kPageQueries + c.tile.n);
  }

  static uint64_t pages(const mri_attn_seq& seq, const mri_attn_entry& entry) {
    return entry.what == MRI_ATTN_BLOCKS ? 1 : seq.summaries[entry.index].n_pages;
  }

  static void open_item(const Choice& c, mri_attn_plan& plan) {
    plan.items[plan.n_items++] = {c.seq,
                                  c.kv_head,
                                  c.tile.first,
                                  c.tile.n,
                                  static_cast<uint32_t>(plan.n_entries),
                                  0,
                                  c.chosen.chose ? kItemChose : 0,
                                  0};
  }

  static bool continues(const mri_attn_plan& plan, uint64_t i) {
    if (i == 0) return false;
    const mri_attn_item &a = plan.items[i - 1], &b = plan.items[i];
    return a.seq == b.seq && a.kv_head == b.kv_head && a.first_query == b.first_query;
  }

  static uint64_t head_row(const mri_attn_req& req, const mri_attn_item& item, uint32_t query) {
    const uint64_t row = uint64_t{req.seqs[item.seq].first_row} + item.first_query + query;
    return row * req.n_heads + item.kv_head * (req.n_heads / req.n_kv_heads);
  }
  static float* out(const mri_attn_req& req, const mri_attn_item& item, uint32_t query) {
    return req.o + head_row(req, item, query) * req.head_dim;
  }
  static float* out_lse(const mri_attn_req& req, const mri_attn_item& item, uint32_t query) {
    return req.lse + head_row(req, item, query);
  }

  mri::Host host_;
  const mri_kernels_v1& kernels_;
  Options options_;
  mutable Memory memory_;
};

constexpr mri_param_desc kParams[] = {
    mri::param_int(
        "window_tokens", 256, 0, 1 << 20,
        "tokens before the query that are always read exactly; reading time grows with it"),
    mri::param_int("top_k_blocks", 64, 0, 4096,
                   "blocks of 32 tokens that each KV head reads beside window and sinks; reading "
                   "time grows with it"),
    mri::param_int("sink_tokens", 32, 0, 4096, "first tokens of the text, always read exactly"),
    mri::param_float("summary_weight", 0.7, 0, 1,
                     "weight of the summaries that stand for blocks not read; 0 leaves them out "
                     "and saves their time"),
    mri::param_int(
        "dense_below_tokens", 3072, 0, INT32_MAX,
        "up to this context length everything is read: choosing would cost more than it saves"),
    mri::param_int("dense_prompt_tokens", 8192, 0, INT32_MAX,
                   "the part of a prompt up to here is read in full: keys and values that later "
                   "tokens build on stay exact; costs prefill time"),
    mri::param_bool("dense_last_tile", true,
                    "the last tile of a prompt, which holds the question, reads everything (inside "
                    "the trained length)"),
    mri::param_int("candidates_percent", 12, 1, 100,
                   "share of blocks that a prompt's tile ranks by the key sketch, the cheap bound "
                   "having chosen them, and that an answer goes on ranking for reuse_steps tokens, "
                   "percent; at least 128 blocks and 2 top_k_blocks"),
    mri::param_int("tile_queries", 128, 32, 256,
                   "prompt tokens that share one choice; rounded down to a multiple of 32"),
    mri::param_int("query_step", 16, 1, 4096,
                   "every n-th query of a tile takes part in choosing, at least 8 of them; of a "
                   "question all"),
    mri::param_int("reuse_steps", 4, 1, 256,
                   "tokens of an answer for which the share of blocks stays; the sketch ranks it "
                   "anew for each"),
    mri::param_string("positions", "auto", "auto|true|compact",
                      "auto: true ones inside the trained length, compact ones (no gaps between "
                      "what is read) beyond"),
};

}  // namespace
}  // namespace hybrid

MRI_PLUGIN(attention, "dev.varve.attention.hybrid", "0.1.0", hybrid::kParams, hybrid::Hybrid);
