// Attention: the plan names what exists and nothing after a query; running a plan gives what exact
// attention over the listed keys gives.
#include "mri/conformance/attention_batch.h"
#include "mri/conformance/breakable_kernels.h"
#include "mri/conformance/opened.h"
#include "mri/ext/threads.h"

namespace mri::conformance {
namespace {

constexpr uint32_t kBlock = MRI_BLOCK_TOKENS;
constexpr double kErrorMax = 2e-3;  // pages are f32; values and logits are of size 1 to 10

const AttentionShape kShapes[] = {{1, 1, 32}, {4, 4, 64}, {4, 2, 64}, {6, 1, 32}};

class Attention {
 public:
  explicit Attention(Bench& bench, const std::string& withheld = {})
      : bench_(bench),
        plugin_(bench, withheld),
        table_(plugin_.table<mri_attention_v1>(MRI_ATTENTION)) {}

  // One call of plan() with that much room.
  mri_status plan(const AttentionBatch& batch, uint64_t items_max, uint64_t entries_max, Plan* plan,
                  uint64_t* n_items, uint64_t* n_entries) {
    Guarded<mri_attn_item> items(items_max);
    Guarded<mri_attn_entry> entries(entries_max);
    mri_attn_plan list = sized<mri_attn_plan>();
    list.items = items.data();
    list.entries = entries.data();
    list.items_capacity = items_max;
    list.entries_capacity = entries_max;
    const mri_status status = call(bench_, "plan", [&](mri_error* e) {
      return table_.plan(plugin_.self(), &batch.req(), &list, e);
    });
    bench_.report->expect(items.is_intact() && entries.is_intact(),
                          "plan wrote outside its arrays");
    *n_items = list.n_items;
    *n_entries = list.n_entries;
    if (status != MRI_OK) return status;
    if (!bench_.report->expect(list.n_items <= items_max && list.n_entries <= entries_max,
                               "plan: success with more than there is room for"))
      throw Stop{};
    plan->items.assign(items.data(), items.data() + list.n_items);
    plan->entries.assign(entries.data(), entries.data() + list.n_entries);
    return MRI_OK;
  }

  // As a host does: without room first, then with what was asked for.
  Plan plan(const AttentionBatch& batch) {
    Plan plan;
    uint64_t n_items = 0, n_entries = 0;
    mri_status status = this->plan(batch, 0, 0, &plan, &n_items, &n_entries);
    if (status == MRI_E_SPACE) {
      status = this->plan(batch, n_items, n_entries, &plan, &n_items, &n_entries);
    }
    if (!bench_.report->expect(status == MRI_OK,
                               "plan with the room it asked for: status " + std::to_string(status)))
      throw Stop{};
    return plan;
  }

  mri_status try_run(AttentionBatch& batch, Plan& plan) {
    mri_attn_plan list = sized<mri_attn_plan>();
    list.items = plan.items.data();
    list.entries = plan.entries.data();
    list.n_items = list.items_capacity = plan.items.size();
    list.n_entries = list.entries_capacity = plan.entries.size();
    batch.clear();
    const mri_status status = call(bench_, "run", [&](mri_error* e) {
      return table_.run(plugin_.self(), &batch.req(), &list, e);
    });
    bench_.report->expect(batch.is_intact(), "run wrote outside o or lse");
    return status;
  }

  void run(AttentionBatch& batch, Plan& plan) {
    const mri_status status = try_run(batch, plan);
    if (status == MRI_OK) return;
    bench_.report->fail("run: wanted success, got status " + std::to_string(status));
    throw Stop{};
  }

  void check(const std::string& what, AttentionBatch& batch, Plan plan) {
    run(batch, plan);
    const AttentionBatch::Errors errors = batch.errors(plan);
    bench_.report->expect(errors.o <= kErrorMax && errors.lse <= kErrorMax,
                          what + ": o is off by " + std::to_string(errors.o) + ", lse by " +
                              std::to_string(errors.lse) + "; allowed " +
                              std::to_string(kErrorMax));
  }

  mri_caps caps() { return plugin_.caps(); }

 private:
  Bench& bench_;
  Opened plugin_;
  const mri_attention_v1& table_;
};

// Texts of all sorts: short, with a partial end, with holes, with evicted blocks, long prompts.
std::vector<TextSpec> texts() {
  return {{1, 1, MRI_ATTN_SEQ_PROMPT_END},
          {33, 33, MRI_ATTN_SEQ_PROMPT_END},
          {100, 1, MRI_ATTN_SEQ_DECODE},
          {200, 40, 0, 20},
          {300, 1, MRI_ATTN_SEQ_DECODE, 10, 30}};
}

// What a plan names must exist, be there, and not lie after all queries of its item.
void check_plan(Bench& bench, const AttentionBatch& batch, const Plan& plan) {
  Report& report = *bench.report;
  const mri_attn_req& req = batch.req();
  std::vector<int> covered(uint64_t{batch.rows()} * req.n_kv_heads);
  for (const mri_attn_item& item : plan.items) {
    if (!report.expect(
            item.seq < req.n_seqs && item.kv_head < req.n_kv_heads &&
                uint64_t{item.first_query} + item.n_queries <= req.seqs[item.seq].n_queries &&
                uint64_t{item.first_entry} + item.n_entries <= plan.entries.size(),
            "an item names what does not exist"))
      continue;
    const mri_attn_seq& seq = batch.seq(item.seq);
    const uint32_t last = (seq.position + item.first_query + item.n_queries - 1) / kBlock;
    for (uint32_t e = item.first_entry; e < item.first_entry + item.n_entries; ++e) {
      const mri_attn_entry& entry = plan.entries[e];
      const bool blocks = entry.what == MRI_ATTN_BLOCKS;
      if (!report.expect(
              entry.what <= MRI_ATTN_SUMMARY && entry.count > 0 &&
                  uint64_t{entry.index} + entry.count <= (blocks ? seq.n_blocks : seq.n_summaries),
              "an entry names what does not exist"))
        continue;
      if (!blocks) continue;
      report.expect(entry.index + entry.count - 1 <= last,
                    "an entry names blocks after all queries");
      for (uint32_t b = entry.index; b < entry.index + entry.count; ++b) {
        report.expect(!batch.is_gone(item.seq, b), "an entry names an evicted block");
      }
    }
    for (uint32_t q = 0; q < item.n_queries; ++q) {
      ++covered[(seq.first_row + item.first_query + q) * req.n_kv_heads + item.kv_head];
    }
  }
  report.expect(std::all_of(covered.begin(), covered.end(), [](int n) { return n > 0; }),
                "a query is in no item");
}

void plans_what_exists(Bench& bench) {
  Attention attention(bench);
  Random random(bench.seed);
  for (const AttentionShape shape : kShapes) {
    const AttentionBatch batch(*bench.kernels, random, shape, texts());
    check_plan(bench, batch, attention.plan(batch));
  }
}

void says_how_much_room(Bench& bench) {
  Attention attention(bench);
  Random random(bench.seed);
  const AttentionBatch batch(*bench.kernels, random, {4, 2, 32}, texts());
  Plan plan;
  uint64_t n_items = 0, n_entries = 0;
  const mri_status none = attention.plan(batch, 0, 0, &plan, &n_items, &n_entries);
  bench.report->expect(none == MRI_E_SPACE && n_items > 0,
                       "without room: status " + std::to_string(none) + ", n_items " +
                           std::to_string(n_items) + "; expected MRI_E_SPACE and how many");
  attention.plan(batch);
}

void runs_its_own_plans(Bench& bench) {
  Attention attention(bench);
  Random random(bench.seed);
  for (const AttentionShape shape : kShapes) {
    AttentionBatch batch(*bench.kernels, random, shape, texts());
    attention.check(std::to_string(shape.n_heads) + " heads, " + std::to_string(shape.n_kv_heads) +
                        " KV heads of " + std::to_string(shape.head_dim),
                    batch, attention.plan(batch));
  }
}

// An item for each text and KV head over all its queries, which start in one block; entries(s,
// item) adds what it reads.
template <class F>
Plan plan_of(const AttentionBatch& batch, F&& entries) {
  Plan plan;
  for (uint32_t s = 0; s < batch.req().n_seqs; ++s) {
    for (uint32_t h = 0; h < batch.req().n_kv_heads; ++h) {
      mri_attn_item item{s, h, 0, batch.seq(s).n_queries, 0, 0, 0, 0};
      item.first_entry = static_cast<uint32_t>(plan.entries.size());
      entries(s, plan.entries);
      item.n_entries = static_cast<uint32_t>(plan.entries.size()) - item.first_entry;
      plan.items.push_back(item);
    }
  }
  return plan;
}

// Every block that is there, one entry each, `shift` blocks farther than it is if before the
// queries.
void add_blocks(const AttentionBatch& batch, uint32_t s, uint32_t step, int32_t shift,
                std::vector<mri_attn_entry>& entries) {
  const auto own = static_cast<int32_t>(batch.seq(s).position / kBlock);
  for (uint32_t b = 0; b < batch.seq(s).n_blocks; b += step) {
    if (batch.is_gone(s, b)) continue;
    const int32_t distance = own - static_cast<int32_t>(b);
    entries.push_back({MRI_ATTN_BLOCKS, b, 1, distance > 0 ? distance + shift : distance, 0.f});
  }
}

void runs_any_plan(Bench& bench) {
  Attention attention(bench);
  Random random(bench.seed);
  AttentionBatch batch(*bench.kernels, random, {4, 2, 64}, texts());
  using Entries = std::vector<mri_attn_entry>;
  attention.check("all blocks", batch,
                  plan_of(batch, [&](uint32_t s, Entries& e) { add_blocks(batch, s, 1, 0, e); }));
  attention.check("every third block", batch,
                  plan_of(batch, [&](uint32_t s, Entries& e) { add_blocks(batch, s, 3, 0, e); }));
  attention.check("other distances", batch,
                  plan_of(batch, [&](uint32_t s, Entries& e) { add_blocks(batch, s, 1, 5, e); }));
  attention.check("weights", batch, plan_of(batch, [&](uint32_t s, Entries& e) {
                    add_blocks(batch, s, 1, 0, e);
                    for (size_t i = 0; i < e.size(); i += 2) e[i].log_weight = -1.5f;
                  }));
  attention.check("nothing", batch, plan_of(batch, [](uint32_t, Entries&) {}));
}

// Results over parts of the keys merge: the plan of one item cut into two gives the same.
void merges_parts(Bench& bench) {
  Attention attention(bench);
  Random random(bench.seed);
  AttentionBatch batch(*bench.kernels, random, {4, 2, 64}, texts());
  const Plan whole = plan_of(
      batch, [&](uint32_t s, std::vector<mri_attn_entry>& e) { add_blocks(batch, s, 1, 0, e); });
  for (const uint32_t parts : {2u, 3u}) {
    Plan cut;
    cut.entries = whole.entries;
    for (const mri_attn_item& item : whole.items) {
      for (uint32_t p = 0; p < parts; ++p) {
        mri_attn_item part = item;
        part.first_entry = item.first_entry + item.n_entries * p / parts;
        part.n_entries = item.first_entry + item.n_entries * (p + 1) / parts - part.first_entry;
        cut.items.push_back(part);
      }
    }
    attention.check("cut into " + std::to_string(parts), batch, cut);
  }
}

void reads_summaries(Bench& bench) {
  Attention attention(bench);
  Random random(bench.seed);
  AttentionBatch batch(*bench.kernels, random, {4, 2, 32},
                       {{2200, 1, MRI_ATTN_SEQ_DECODE, 0, 0, true}});
  attention.check("two summaries and the last blocks", batch,
                  plan_of(batch, [&](uint32_t s, std::vector<mri_attn_entry>& e) {
                    const auto own = static_cast<int32_t>(batch.seq(s).position / kBlock);
                    e.push_back({MRI_ATTN_SUMMARY, 0, 2, own, -0.7f});
                    e.push_back({MRI_ATTN_BLOCKS, 64, batch.seq(s).n_blocks - 64, own - 64, 0.f});
                  }));
  const Plan own = attention.plan(batch);
  check_plan(bench, batch, own);
  attention.check("its own plan of a text with summaries", batch, own);
}

void takes_an_empty_batch(Bench& bench) {
  Attention attention(bench);
  Random random(bench.seed);
  AttentionBatch batch(*bench.kernels, random, {4, 2, 32}, {});
  Plan plan = attention.plan(batch);
  bench.report->expect(plan.items.empty(), "items for a batch without texts");
  attention.run(batch, plan);
}

// Two batches of one seed are equal.
void is_the_same_again(Bench& bench) {
  Attention attention(bench);
  const TextSpec spec{300, 1, MRI_ATTN_SEQ_DECODE, 10};
  Random one(bench.seed), other(bench.seed);
  AttentionBatch alone(*bench.kernels, one, {4, 2, 64}, {spec});
  AttentionBatch again(*bench.kernels, other, {4, 2, 64}, {spec});
  Plan first = attention.plan(alone), second = attention.plan(again);
  attention.run(alone, first);
  attention.run(again, second);
  const std::vector<float> a = alone.o(), b = again.o();
  const bool equal = a == b && alone.lse() == again.lse();
  if (attention.caps().determinism >= 1) {
    bench.report->expect(equal, "claims determinism, but the same call gives other numbers");
  } else if (!equal) {
    bench.report->note("the same call gives other numbers; determinism 0 allows that");
  }
}

void serves_threads(Bench& bench) {
  Attention attention(bench);
  std::vector<std::unique_ptr<AttentionBatch>> batches;
  for (uint64_t i = 0; i < 4; ++i) {
    Random random(bench.seed + i);
    batches.push_back(std::make_unique<AttentionBatch>(
        *bench.kernels, random, AttentionShape{4, 2, 32},
        std::vector<TextSpec>{{200, 1, MRI_ATTN_SEQ_DECODE}, {64, 32}}));
  }
  in_four_threads(bench, 8, "results", [&](uint64_t thread) {
    AttentionBatch& batch = *batches[thread];
    Plan plan = attention.plan(batch);
    attention.run(batch, plan);
    const AttentionBatch::Errors errors = batch.errors(plan);
    return errors.o <= kErrorMax && errors.lse <= kErrorMax;
  });
}

void survives_any_batch(Bench& bench) {
  Attention attention(bench);
  Random random(bench.seed);
  for (int i = 0; i < 24; ++i) {
    const uint32_t kv_heads = 1 + random.below32(3);
    const AttentionShape shape{kv_heads * (1 + random.below32(4)), kv_heads,
                               32 * (1 + random.below32(3))};
    std::vector<TextSpec> specs;
    for (uint64_t n = 1 + random.below(4); n > 0; --n) {
      const uint32_t tokens = 1 + random.below32(400);
      const bool decodes = random.chance(50);
      specs.push_back({tokens, decodes ? 1 : 1 + random.below32(std::min(tokens, 64u)),
                       decodes ? MRI_ATTN_SEQ_DECODE : 0, random.below32(60), random.below32(60)});
    }
    AttentionBatch batch(*bench.kernels, random, shape, specs);
    const Plan plan = attention.plan(batch);
    check_plan(bench, batch, plan);
    attention.check("batch " + std::to_string(i), batch, plan);
  }
}

void tells_of_a_broken_device(Bench& bench) {
  Bench with_device = bench;
  with_device.kernels = &breakable(*bench.kernels);
  Attention attention(with_device);
  Random random(bench.seed);
  AttentionBatch batch(*bench.kernels, random, {4, 2, 64}, texts());
  Plan plan = attention.plan(batch);
  const auto is_told = [&](const char* what, auto&& call) {
    break_kernels(true);
    const mri_status status = call();
    const uint64_t n_failed = break_kernels(false);
    bench.report->expect(n_failed == 0 || status != MRI_OK,
                         std::string(what) + " succeeds although the host's kernels failed");
    return n_failed;
  };
  const uint64_t failed =
      is_told("run", [&] { return attention.try_run(batch, plan); }) + is_told("plan", [&] {
        Plan other;
        uint64_t n_items = 0, n_entries = 0;
        return attention.plan(batch, 4096, 65536, &other, &n_items, &n_entries);
      });
  attention.check("after the device came back", batch, attention.plan(batch));
  if (failed == 0) bench.report->not_supported("calls no kernel of the host that can fail");
}

void waits_for_nothing(Bench& bench) {
  Attention attention(bench, MRI_HOST_THREADS);  // a loop of the host's would wait for its threads
  if (attention.caps().sync_model != 1) {
    bench.report->not_supported("may block: sync_model is not 1");
    return;
  }
  Random random(bench.seed);
  AttentionBatch batch(*bench.kernels, random, {4, 2, 64}, texts());
  Plan plan = attention.plan(batch);
  bench.report->expect(!sleeps_each_time([&] { attention.plan(batch); }),
                       "sync_model is 1, but each plan() put the calling thread to sleep");
  bench.report->expect(!sleeps_each_time([&] { attention.run(batch, plan); }),
                       "sync_model is 1, but each run() put the calling thread to sleep");
}

constexpr Test kTests[] = {
    {"attention.space", "attention", 2, MRI_1_0,
     "Without room plan answers MRI_E_SPACE and how much it needs, which then suffices.",
     "Set n_items and n_entries to what is needed before returning MRI_E_SPACE.",
     says_how_much_room},
    {"attention.empty", "attention", 2, MRI_1_0, "A batch without texts has an empty plan.",
     "Do not read seqs[0] unasked.", takes_an_empty_batch},
    {"attention.plan", "attention", 3, MRI_1_0,
     "A plan names texts, heads, blocks and summaries that exist, none that is evicted or lies "
     "after all queries of its item; every query and KV head has an item.",
     "Skip blocks flagged MRI_BLOCK_EVICTED; end at the block of the tile's last query.",
     plans_what_exists},
    {"attention.exact", "attention", 3, MRI_1_0,
     "Running a plan gives (o, lse) of exact attention in double over the listed keys, within "
     "0.002: "
     "partial blocks, evicted tokens, several heads per KV head, prompts and single tokens.",
     "Check live_mask, the query's offset in its block, the order of heads and the scale.",
     runs_its_own_plans},
    {"attention.any-plan", "attention", 3, MRI_1_0,
     "run reads what the list says and decides nothing: subsets, other distances, weights, nothing "
     "(o = 0, lse = -inf).",
     "Take distance and log_weight from the entry, not from the block's position.", runs_any_plan},
    {"attention.merge", "attention", 3, MRI_1_0,
     "An item cut into neighbouring items of the same queries gives the same result.",
     "Merge parts by their lse: mri_kernels_v1.merge.", merges_parts},
    {"attention.summaries", "attention", 3, MRI_1_0,
     "Summaries are read with their bias, and unused slots (-inf) not at all.",
     "All pages of a summary count; its distance is that of its first token's block.",
     reads_summaries},
    {"attention.determinism", "attention", 3, MRI_1_0,
     "The same call gives the same bits if caps say so.",
     "Sum in a fixed order, whatever the number of threads.", is_the_same_again},
    {"attention.device", "attention", 3, MRI_1_0,
     "When a kernel of the host fails, so does the call; the next one works again.",
     "Return the status of mri_kernels_v1.attend and score_blocks, also from a parallel loop.",
     tells_of_a_broken_device},
    {"attention.blocking", "attention", 3, MRI_1_0,
     "With sync_model 1 plan and run do not put the calling thread to sleep.",
     "Enqueue on the device and return; or say sync_model 2: may block.", waits_for_nothing},
    {"attention.threads", "attention", 4, MRI_1_0,
     "Four threads with batches of their own get right results.",
     "plan and run are re-entrant for disjoint batches: no shared scratch memory.", serves_threads},
    {"attention.fuzz", "attention", 4, MRI_1_0,
     "Random shapes, lengths, holes and evictions are right too.",
     "Reproduce with the seed and look at the text that fails.", survives_any_batch},
};

}  // namespace

std::span<const Test> attention_tests() { return kTests; }

}  // namespace mri::conformance
