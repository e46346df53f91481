// A runtime: contexts grow, are listed, shrink and end as the contract says, and none of them
// notices another. The same checks run in the process and over HTTP.
#include <mutex>
#include <thread>

#include "mri/conformance/calling.h"
#include "mri/conformance/runtime_bench.h"
#include "mri/ext/threads.h"

namespace mri::conformance {
namespace {

void makes_contexts(Bench& bench) {
  Runtime runtime(bench);
  uint64_t last = 0;
  for (const uint64_t n : {0, 1, 31, 32, 33, 100}) {
    Init init;
    init.tokens = runtime.tokens(n);
    init.logits = n > 0 && runtime->vocabulary() > 0;
    const Inited made = runtime.make(init);
    const std::string at = "a prompt of " + std::to_string(n) + " tokens: ";
    runtime.report().expect(made.ctx != last, at + "the context's number is that of another");
    const uint64_t counted =
        made.usage.hot_tokens + made.usage.warm_tokens + made.usage.cold_tokens;
    runtime.report().expect(counted == n, at + "usage counts " + std::to_string(counted));
    runtime.report().expect(difference(made.logits, made.logits) == 0,
                            at + "logits that are not finite");
    last = made.ctx;
  }
}

void minds_no_chunks(Bench& bench) {
  Runtime runtime(bench);
  Init init;
  init.tokens = runtime.tokens(150);
  init.logits = runtime->vocabulary() > 0;
  const Inited whole = runtime.make(init);
  for (const uint32_t chunk : {7u, 32u, 64u, 1000u}) {
    init.chunk_tokens = chunk;
    const Inited cut = runtime.make(init);
    const double error = difference(whole.logits, cut.logits);
    runtime.report().expect(error <= kLogitErrorMax, "chunks of " + std::to_string(chunk) +
                                                         " tokens: logits differ by " +
                                                         std::to_string(error));
  }
}

void appends_tokens(Bench& bench) {
  Runtime runtime(bench);
  const std::vector<int32_t> tokens = runtime.tokens(50);
  const uint64_t one = runtime.make(part(tokens, 0, 40)), many = runtime.make(part(tokens, 0, 40));
  const Stepped at_once = runtime.step(one, part(tokens, 40, 10), true);
  runtime.report().expect(at_once.position == 40,
                          "10 tokens after 40: position " + std::to_string(at_once.position));
  const uint64_t row = runtime->vocabulary();
  for (uint64_t i = 0; i < 10; ++i) {
    const Stepped single = runtime.step(many, part(tokens, 40 + i, 1));
    runtime.report().expect(single.position == 40 + i, "the token after " + std::to_string(40 + i) +
                                                           ": position " +
                                                           std::to_string(single.position));
    if (row == 0 ||
        !runtime.report().expect(at_once.logits.size() == 10 * row, "all_logits: wrong size"))
      continue;
    const auto from = at_once.logits.begin() + static_cast<std::ptrdiff_t>(i * row);
    const double error = difference(single.logits, {from, from + static_cast<std::ptrdiff_t>(row)});
    runtime.report().expect(error <= kLogitErrorMax, "token " + std::to_string(i) +
                                                         " alone and among ten: logits differ by " +
                                                         std::to_string(error));
  }
}

void keeps_sequences_apart(Bench& bench) {
  Runtime runtime(bench);
  const std::vector<int32_t> text = runtime.tokens(60), next = runtime.tokens(1);
  const uint64_t alone = runtime.make(text), together = runtime.make(text);
  const uint64_t other = runtime.make(runtime.tokens(20));
  const Stepped wanted = runtime.step(alone, next);
  const bool logits = runtime->vocabulary() > 0;
  const SteppedAll all =
      runtime->step({{together, next, logits, false, 0}, {other, {INT32_MAX}, false, false, 0}});
  if (!runtime.report().expect(all.status == MRI_OK && all.seqs.size() == 2,
                               "a step with a faulty sequence failed as a whole: " + all.text))
    return;
  runtime.report().expect(all.seqs[0].status == MRI_OK,
                          "a sound sequence failed beside a faulty one");
  runtime.report().expect(all.seqs[1].status == MRI_E_ARG,
                          "token INT32_MAX: status " + std::to_string(all.seqs[1].status));
  runtime.report().expect(difference(wanted.logits, all.seqs[0].logits) <= kLogitErrorMax,
                          "logits differ beside other sequences");
  runtime.report().expect(runtime.step(other, next).position == 20, "a refused token was appended");
}

void knows_its_contexts(Bench& bench) {
  Runtime runtime(bench);
  const uint64_t none = uint64_t{1} << 40;
  runtime.report().expect(runtime->list(none, 0, 0).status == MRI_E_NOT_FOUND,
                          "get_kv_summary of no context: not MRI_E_NOT_FOUND");
  runtime.report().expect(runtime->evict(none, {{0, 1}}, MRI_EVICT_TOKEN).status == MRI_E_NOT_FOUND,
                          "evict_kv of no context: not MRI_E_NOT_FOUND");
  const SteppedAll all = runtime->step({{none, {1}, false, false, 0}});
  const mri_status status = all.seqs.size() == 1 ? all.seqs[0].status : all.status;
  runtime.report().expect(status == MRI_E_NOT_FOUND,
                          "a step of no context: status " + std::to_string(status));
  runtime->release(none);
  const uint64_t ctx = runtime.make(runtime.tokens(5));
  runtime->release(ctx);
  runtime->release(ctx);
  runtime.report().expect(runtime->list(ctx, 0, 0).status == MRI_E_NOT_FOUND,
                          "a released context can still be listed");
}

void refuses_bad_tokens(Bench& bench) {
  Runtime runtime(bench);
  const uint64_t vocabulary = runtime->vocabulary();
  for (const int32_t token : {-1, INT32_MIN, INT32_MAX, static_cast<int32_t>(vocabulary)}) {
    if (token == 0) continue;
    Init init;
    init.tokens = {1, token, 1};
    const mri_status status = runtime->init(init).status;
    runtime.report().expect(status == MRI_E_ARG, "a prompt with token " + std::to_string(token) +
                                                     ": status " + std::to_string(status));
  }
}

void keeps_its_longest(Bench& bench) {
  Runtime runtime(bench);
  Init init;
  init.tokens = runtime.tokens(40);
  init.max_tokens = 48;
  const uint64_t ctx = runtime.make(init).ctx;
  const SteppedAll all = runtime->step({{ctx, runtime.tokens(9), false, false, 0}});
  const mri_status status =
      all.status != MRI_OK || all.seqs.empty() ? all.status : all.seqs[0].status;
  runtime.report().expect(status == MRI_E_ARG || status == MRI_E_NOMEM,
                          "49 tokens where max_tokens is 48: status " + std::to_string(status));
  runtime.report().expect(runtime.step(ctx, runtime.tokens(8)).position == 40,
                          "a refused step changed the context");
  init.tokens = runtime.tokens(49);
  const mri_status too_long = runtime->init(init).status;
  runtime.report().expect(
      too_long == MRI_E_ARG || too_long == MRI_E_NOMEM,
      "a prompt of 49 tokens where max_tokens is 48: status " + std::to_string(too_long));
}

void lists_every_token(Bench& bench) {
  Runtime runtime(bench);
  for (const uint64_t n : {1, 32, 100}) {
    const Listed listed = runtime.list(runtime.make(runtime.tokens(n)));
    const std::string at = std::to_string(n) + " tokens: ";
    runtime.report().expect(live_tokens(listed) == n,
                            at + "the rows have " + std::to_string(live_tokens(listed)));
    runtime.report().expect(listed.n_out == (n + 31) / 32 && listed.rows.size() == listed.n_out,
                            at + std::to_string(listed.n_out) + " rows");
    uint64_t last = 0;
    for (const mri_kv_block_info& row : listed.rows) {
      runtime.report().expect(row.position % 32 == 0 && (row.position > last || row.position == 0),
                              at + "a row at position " + std::to_string(row.position));
      runtime.report().expect(row.tier <= 2, at + "tier " + std::to_string(row.tier));
      last = row.position;
    }
  }
  const uint64_t ctx = runtime.make(runtime.tokens(100));
  const Listed middle = runtime->list(ctx, 32, 32);
  runtime.report().expect(
      middle.status == MRI_OK && middle.rows.size() == 1 && middle.rows[0].position == 32,
      "tokens 32 to 63 are not one row");
}

void lists_when_it_may(Bench& bench) {
  Runtime runtime(bench);
  const uint64_t ctx = runtime.make(runtime.tokens(64));
  runtime.list(ctx);
  runtime.step(ctx, runtime.tokens(1));
  const mri_status status = runtime->list(ctx, 0, 0).status;
  runtime.report().expect(
      status == MRI_E_STATE,
      "get_kv_summary after a step: status " + std::to_string(status) + ", expected MRI_E_STATE");
  runtime.evict(ctx, {32, 32}, MRI_EVICT_BLOCK);
  runtime.list(ctx);
}

void evicts_what_is_asked(Bench& bench) {
  struct Case {
    uint32_t granularity;
    mri_token_range range;
    uint64_t most;  // tokens that may go
  };
  Runtime runtime(bench);
  for (const Case c :
       {Case{MRI_EVICT_TOKEN, {70, 10}, 10}, Case{MRI_EVICT_BLOCK, {70, 10}, 32},
        Case{MRI_EVICT_BLOCK, {60, 40}, 96}, Case{MRI_EVICT_BLOCK_AWARE, {70, 50}, 0},
        Case{MRI_EVICT_BLOCK_AWARE, {64, 64}, 64}, Case{MRI_EVICT_SEGMENT, {70, 10}, 200}}) {
    const uint64_t ctx = runtime.make(runtime.tokens(200));
    const Listed before = runtime.list(ctx);
    const Evicted evicted = runtime.evict(ctx, c.range, c.granularity);
    const Listed after = runtime.list(ctx);
    const std::string at = "granularity " + std::to_string(c.granularity) + ", tokens " +
                           std::to_string(c.range.first) + " + " + std::to_string(c.range.count) +
                           ": ";
    const uint64_t gone = live_tokens(before) - live_tokens(after);
    runtime.report().expect(evicted.n_evicted <= c.most,
                            at + std::to_string(evicted.n_evicted) + " went");
    runtime.report().expect(gone == evicted.n_evicted,
                            at + "says " + std::to_string(evicted.n_evicted) +
                                ", but the rows lost " + std::to_string(gone));
    if (c.granularity != MRI_EVICT_TOKEN) {
      for (const mri_kv_block_info& row : after.rows) {
        const bool is_whole =
            row.n_tokens == 0 || row.n_tokens == std::min<uint64_t>(32, 200 - row.position);
        runtime.report().expect(is_whole, at + "tore the block at " + std::to_string(row.position));
      }
    }
    runtime.report().expect(gone == 0 || after.kv_epoch > before.kv_epoch,
                            at + "the epoch did not rise");
    const Evicted again = runtime.evict(ctx, c.range, c.granularity);
    runtime.report().expect(again.n_evicted == 0, at + "the same tokens went twice");
    runtime.report().expect(runtime.step(ctx, runtime.tokens(1)).position == 200,
                            at + "positions moved");
  }
}

void refuses_bad_evictions(Bench& bench) {
  Runtime runtime(bench);
  const uint64_t ctx = runtime.make(runtime.tokens(100));
  const Evicted unknown = runtime->evict(ctx, {{32, 32}}, 77);
  runtime.report().expect(unknown.status == MRI_E_ARG || unknown.status == MRI_E_UNSUPPORTED,
                          "granularity 77: status " + std::to_string(unknown.status));
  for (const mri_token_range range :
       {mri_token_range{100000, 5}, {50, 0}, {UINT64_MAX / 2, UINT64_MAX / 2}}) {
    const Evicted evicted = runtime->evict(ctx, {range}, MRI_EVICT_BLOCK);
    runtime.report().expect(
        (evicted.status == MRI_OK && evicted.n_evicted == 0) || evicted.status == MRI_E_ARG,
        "a range outside the context: status " + std::to_string(evicted.status) + ", " +
            std::to_string(evicted.n_evicted) + " tokens went");
  }
  runtime.report().expect(live_tokens(runtime.list(ctx)) == 100, "a refused eviction took tokens");
}

void keeps_pinned_tokens(Bench& bench) {
  Runtime runtime(bench);
  Init init;
  init.tokens = runtime.tokens(200);
  init.pinned = {{64, 32}};
  const uint64_t ctx = runtime.make(init).ctx;
  runtime.evict(ctx, {0, 200}, MRI_EVICT_BLOCK);
  for (const mri_kv_block_info& row : runtime.list(ctx).rows) {
    if (row.position == 64 && row.n_tokens == 32) return;
  }
  bench.report->warn("a pinned block was evicted when the caller asked for it");
}

void confirms_by_version(Bench& bench) {
  Runtime runtime(bench);
  const uint64_t ctx = runtime.make(runtime.tokens(200));
  const Evicted evicted = runtime.evict(ctx, {64, 64}, MRI_EVICT_BLOCK);
  runtime.report().expect(evicted.is_confirmation_there == (bench.version >= MRI_1_1),
                          bench.version >= MRI_1_1
                              ? "1.1 was chosen, but the answer has no confirmation"
                              : "1.0 was chosen, but the answer has a confirmation");
}

void confirms_what_is_gone(Bench& bench) {
  Runtime runtime(bench);
  const uint64_t ctx = runtime.make(runtime.tokens(200));
  const Evicted evicted = runtime.evict(ctx, {64, 64}, MRI_EVICT_BLOCK);
  if (!evicted.is_confirmation_there || evicted.confirm_state != MRI_CONFIRM_DONE) {
    runtime.report().not_supported("evictions are not confirmed (state " +
                                   std::to_string(evicted.confirm_state) + ")");
    return;
  }
  const Listed listed = runtime.list(ctx);
  runtime.report().expect(listed.kv_epoch >= evicted.confirm_epoch,
                          "confirmed from epoch " + std::to_string(evicted.confirm_epoch) +
                              " on, but the summary is of epoch " +
                              std::to_string(listed.kv_epoch));
  uint64_t left = 0;
  for (const mri_kv_block_info& row : listed.rows) {
    if (row.position >= 64 && row.position < 128) left += row.n_tokens;
  }
  runtime.report().expect(left == 64 - evicted.n_evicted && (left == 0 || evicted.n_refused > 0),
                          "confirmed, but " + std::to_string(left) +
                              " tokens are still listed and " + std::to_string(evicted.n_refused) +
                              " blocks were refused");
}

void keeps_contexts_apart(Bench& bench) {
  constexpr uint64_t kContexts = 6;
  Runtime runtime(bench);
  std::vector<std::vector<int32_t>> texts;
  std::vector<uint64_t> contexts;
  std::vector<std::vector<float>> wanted;
  for (uint64_t i = 0; i < kContexts; ++i) {
    texts.push_back(runtime.tokens(40 + i));
    const uint64_t alone = runtime.make(part(texts[i], 0, 30));
    wanted.push_back(runtime.step(alone, part(texts[i], 30, 10 + i)).logits);
    runtime->release(alone);
  }
  for (uint64_t i = 0; i < kContexts; ++i) contexts.push_back(runtime.make(part(texts[i], 0, 30)));
  for (uint64_t at = 30; at < 40 + kContexts; ++at) {
    for (uint64_t i = 0; i < kContexts; ++i) {
      if (at >= texts[i].size()) continue;
      const Stepped stepped = runtime.step(contexts[i], part(texts[i], at, 1));
      if (at + 1 < texts[i].size()) continue;
      runtime.report().expect(difference(wanted[i], stepped.logits) <= kLogitErrorMax,
                              "context " + std::to_string(i) + " among others has other logits");
    }
  }
}

void stops_when_told(Bench& bench) {
  Runtime runtime(bench);
  const uint32_t cancel = 1;
  Init init;
  init.tokens = runtime.tokens(100);
  init.cancel = &cancel;
  const mri_status status = runtime->init(init).status;
  runtime.report().expect(status == MRI_E_CANCELLED,
                          "init_context with cancel set: status " + std::to_string(status));
}

void tells_its_progress(Bench& bench) {
  constexpr uint64_t kTokens = 100;
  Runtime runtime(bench);
  const std::thread::id caller = std::this_thread::get_id();
  std::mutex mutex;
  bool is_elsewhere = false, rises = true;
  uint64_t last = 0;
  Init init;
  init.tokens = runtime.tokens(kTokens);
  init.chunk_tokens = 32;
  init.progress = [&](uint64_t done, uint64_t n) {
    const std::lock_guard lock(mutex);
    is_elsewhere = is_elsewhere || std::this_thread::get_id() != caller;
    rises = rises && done > last && n == kTokens;
    last = done;
  };
  runtime.make(init);
  runtime.report().expect(!is_elsewhere, "progress was called in another thread than init_context");
  runtime.report().expect(
      rises && last == kTokens,
      "progress does not rise to the prompt's 100 tokens: the last is " + std::to_string(last));
}

void waits_for_nothing(Bench& bench) {
  Runtime runtime(bench, MRI_HOST_THREADS);  // a loop of the host's would wait for its threads
  if (runtime->caps().sync_model != 1) {
    runtime.report().not_supported("may block: sync_model is not 1");
    return;
  }
  const uint64_t ctx = runtime.make(runtime.tokens(40));
  const bool sleeps = sleeps_each_time([&] {
    runtime->step({{ctx, runtime.tokens(1), false, false, 0}});
  });  // no logits to wait for
  runtime.report().expect(!sleeps,
                          "sync_model is 1, but each forward_step put the calling thread to sleep");
}

void serves_threads(Bench& bench) {
  Runtime runtime(bench);
  std::vector<std::vector<int32_t>> texts;
  std::vector<std::vector<float>> wanted;
  for (int i = 0; i < 4; ++i) {
    texts.push_back(runtime.tokens(50));
    wanted.push_back(
        runtime.step(runtime.make(part(texts.back(), 0, 49)), part(texts.back(), 49, 1)).logits);
  }
  const bool logits = runtime->vocabulary() > 0;
  in_four_threads(bench, 4, "contexts", [&](uint64_t thread) {
    Init init;
    init.tokens = part(texts[thread], 0, 49);
    const Inited made = runtime->init(init);
    const SteppedAll all =
        runtime->step({{made.ctx, part(texts[thread], 49, 1), logits, false, 0}});
    runtime->evict(made.ctx, {{0, 32}}, MRI_EVICT_BLOCK);
    runtime->release(made.ctx);
    return made.status == MRI_OK && all.status == MRI_OK && all.seqs.size() == 1 &&
           all.seqs[0].status == MRI_OK && all.seqs[0].position == 49 &&
           difference(wanted[thread], all.seqs[0].logits) <= kLogitErrorMax;
  });
}

// Random calls against what a runtime must remember: the length of each context, and whether it may
// be listed.
void survives_any_order(Bench& bench) {
  struct Known {
    uint64_t ctx, n_tokens;
    bool may_list;
  };
  Runtime runtime(bench);
  Random random(bench.seed + 1);
  std::vector<Known> known;
  for (int i = 0; i < 120; ++i) {
    const uint64_t what = random.below(10);
    if (known.empty() || (what == 0 && known.size() < 6)) {
      const uint64_t n = random.below(80);
      known.push_back({runtime.make(runtime.tokens(n)), n, true});
      continue;
    }
    Known& one = known[random.below(known.size())];
    if (what <= 4) {
      const uint64_t n = 1 + random.below(20);
      const Stepped stepped = runtime.step(one.ctx, runtime.tokens(n));
      runtime.report().expect(
          stepped.position == one.n_tokens,
          "call " + std::to_string(i) + ": position " + std::to_string(stepped.position));
      one.n_tokens += n;
      one.may_list = false;
    } else if (what <= 6) {
      const mri_status status = runtime->list(one.ctx, random.below(100), random.below(100)).status;
      runtime.report().expect(
          status == (one.may_list ? MRI_OK : MRI_E_STATE),
          "call " + std::to_string(i) + ": get_kv_summary gives " + std::to_string(status));
    } else if (what <= 8) {
      const Evicted evicted =
          runtime.evict(one.ctx, {random.below(100), random.below(100)}, random.below32(4));
      runtime.report().expect(evicted.n_evicted <= one.n_tokens,
                              "more tokens went than there were");
      one.may_list = true;
    } else {
      runtime->release(one.ctx);
      one = known.back();
      known.pop_back();
    }
  }
}

constexpr Test kTests[] = {
    {"runtime.contexts", "runtime", 3, MRI_1_0,
     "Prompts of 0 to 100 tokens make contexts of different numbers > 0 with finite logits; usage "
     "counts every token.",
     "An empty prompt is legal; hot + warm + cold tokens are the context's.", makes_contexts, true},
    {"runtime.chunks", "runtime", 3, MRI_1_0,
     "chunk_tokens changes no logits beyond rounding (2 % of their spread).",
     "Check positions and masks at the border of two chunks.", minds_no_chunks, true},
    {"runtime.steps", "runtime", 3, MRI_1_0,
     "Steps append at the right position; ten tokens at once give the logits of ten single ones.",
     "position is where the first of these tokens stands.", appends_tokens, true},
    {"runtime.sequences", "runtime", 3, MRI_1_0,
     "A faulty sequence of a step has a status of its own and harms no other.",
     "Fail the call only as a whole; check tokens before appending any.", keeps_sequences_apart,
     true},
    {"runtime.unknown", "runtime", 3, MRI_1_0,
     "Contexts that do not exist are MRI_E_NOT_FOUND; releasing one is nothing.",
     "Never hand out a number again.", knows_its_contexts, true},
    {"runtime.bad-tokens", "runtime", 3, MRI_1_0, "Tokens outside the vocabulary are MRI_E_ARG.",
     "Compare with 0 and the vocabulary's size before looking anything up.", refuses_bad_tokens,
     true},
    {"runtime.longest", "runtime", 3, MRI_1_0,
     "A context never outgrows max_tokens, and a refused step changes nothing.",
     "Compare before computing.", keeps_its_longest, true},
    {"runtime.list", "runtime", 3, MRI_1_0,
     "get_kv_summary lists each block once, in order, with all its live tokens.",
     "One row for each 32 tokens; the range asks for the blocks that it touches.",
     lists_every_token, true},
    {"runtime.list-state", "runtime", 3, MRI_1_0,
     "get_kv_summary is legal after init_context and evict_kv, and MRI_E_STATE after a step.",
     "Do not recompute: say MRI_E_STATE.", lists_when_it_may, true},
    {"runtime.evict", "runtime", 3, MRI_1_0,
     "n_evicted is what the rows lose, within the range as the granularity widens or clips it; "
     "only token granularity tears blocks; no position moves; the epoch rises.",
     "Clip to the context; count tokens that were live before.", evicts_what_is_asked, true},
    {"runtime.evict-bad", "runtime", 3, MRI_1_0,
     "Ranges outside the context take nothing; an unknown granularity is refused.",
     "first + count overflows: compare by subtraction. Unknown values are never success.",
     refuses_bad_evictions, true},
    {"runtime.pinned", "runtime", 3, MRI_1_0, "Tells whether a pinned block survives an eviction.",
     "Pinned ranges never leave hot; count the block in n_refused.", keeps_pinned_tokens, true},
    {"runtime.version", "runtime", 3, MRI_1_0,
     "The answer to an eviction has a confirmation from 1.1 on, and none at 1.0.",
     "Write only min(struct_size, own size); set written to it.", confirms_by_version, true},
    {"runtime.confirm", "runtime", 3, MRI_1_1,
     "What is confirmed is gone: not listed any more, from confirm_epoch on.",
     "Say MRI_CONFIRM_UNKNOWN where the engine does not tell.", confirms_what_is_gone, true},
    {"runtime.apart", "runtime", 3, MRI_1_0, "Six contexts in turn have the logits of each alone.",
     "Look for state that belongs to the last context used.", keeps_contexts_apart, true},
    {"runtime.cancel", "runtime", 3, MRI_1_0,
     "init_context stops with MRI_E_CANCELLED when told so.",
     "Poll *cancel between layers or chunks.", stops_when_told},
    {"runtime.progress", "runtime", 3, MRI_1_0,
     "progress is called in the thread of init_context, and rises to the prompt's length.",
     "Call it after each chunk, before init_context returns, and never from a thread of your own.",
     tells_its_progress},
    {"runtime.blocking", "runtime", 3, MRI_1_0,
     "With sync_model 1 a step that asks for no logits does not put the calling thread to sleep.",
     "Enqueue on the device and return; or say sync_model 2: may block.", waits_for_nothing},
    {"runtime.threads", "runtime", 4, MRI_1_0,
     "Four threads with contexts of their own get right answers.",
     "init_context, evict_kv and release_context are [any].", serves_threads, true},
    {"runtime.fuzz", "runtime", 4, MRI_1_0,
     "120 calls in random order keep positions and states right.",
     "Reproduce with the seed and look at the call that is named.", survives_any_order, true},
};

}  // namespace

std::span<const Test> runtime_tests() { return kTests; }

}  // namespace mri::conformance
