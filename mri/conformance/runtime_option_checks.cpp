// What a runtime may offer besides its kind: text, sampling, shared memory, timings.
#include "mri/conformance/opened.h"
#include "mri/conformance/random.h"
#include "mri/ext/memory.h"
#include "mri/ext/sampling.h"
#include "mri/ext/text.h"
#include "mri/ext/timings.h"
#include "mri/kind/runtime.h"

namespace mri::conformance {
namespace {

// The table of an optional interface; the test ends as not supported when there is none.
template <class Table>
const Table& offered(Bench& bench, Opened& plugin, const char* id) {
  const Table* table = plugin.find<Table>(id);
  if (table != nullptr) return *table;
  bench.report->not_supported(std::string("does not offer ") + id);
  throw Stop{};
}

uint64_t vocabulary(Bench& bench, Opened& plugin) {
  const auto& text = offered<mri_text_v1>(bench, plugin, MRI_TEXT);
  mri_model_info info = sized<mri_model_info>();
  must(bench, "model_info", [&](mri_error* e) { return text.model_info(plugin.self(), &info, e); });
  bench.report->expect(info.vocab_size > 0, "model_info: vocab_size is 0");
  bench.report->expect(info.name[sizeof(info.name) - 1] == '\0',
                       "model_info: a name without an end");
  return info.vocab_size;
}

void keeps_text(Bench& bench) {
  Opened plugin(bench);
  const auto& table = offered<mri_text_v1>(bench, plugin, MRI_TEXT);
  vocabulary(bench, plugin);
  for (const std::string text :
       {"Hello, world.", "a", "  two  spaces\n", "\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80"}) {
    uint64_t n = 0;
    const mri_status none = call(bench, "tokenize without room", [&](mri_error* e) {
      return table.tokenize(plugin.self(), text.data(), text.size(), 0, 0, nullptr, 0, &n, e);
    });
    bench.report->expect(
        none == MRI_E_SPACE && n > 0,
        "tokenize without room: status " + std::to_string(none) + ", n_out " + std::to_string(n));
    Guarded<int32_t> tokens(n);
    must(bench, "tokenize", [&](mri_error* e) {
      return table.tokenize(plugin.self(), text.data(), text.size(), 0, 0, tokens.data(), n, &n, e);
    });
    std::string back(1024, '\0');
    uint64_t n_bytes = 0;
    must(bench, "detokenize", [&](mri_error* e) {
      return table.detokenize(plugin.self(), tokens.data(), n, 0, back.data(), back.size(),
                              &n_bytes, e);
    });
    back.resize(std::min<uint64_t>(n_bytes, back.size()));
    // Some vocabularies put a space before the first word.
    bench.report->expect(back == text || back == " " + text,
                         "'" + text + "' comes back as '" + back + "'");
  }
}

void draws_tokens(Bench& bench) {
  Opened plugin(bench);
  const auto& table = offered<mri_sampling_v1>(bench, plugin, MRI_SAMPLING);
  std::vector<float> logits = Random(bench.seed).normals(vocabulary(bench, plugin));
  const size_t best = logits.size() / 2;
  logits[best] = 20;
  mri_sampler_req req = sized<mri_sampler_req>();
  req.top_p = req.repetition_penalty = 1;
  uint64_t sampler = 0;
  must(bench, "create",
       [&](mri_error* e) { return table.create(plugin.self(), &req, &sampler, e); });
  int32_t token = -1;
  must(bench, "sample", [&](mri_error* e) {
    return table.sample(plugin.self(), sampler, logits.data(), &token, e);
  });
  bench.report->expect(token == static_cast<int32_t>(best),
                       "temperature 0 does not draw the likeliest token");
  table.release(plugin.self(), sampler);
  table.release(plugin.self(), sampler);
  const auto drawn = [&] {
    req.temperature = 1;
    req.seed = 42;
    std::vector<int32_t> tokens(8);
    must(bench, "create",
         [&](mri_error* e) { return table.create(plugin.self(), &req, &sampler, e); });
    for (int32_t& t : tokens) {
      must(bench, "sample", [&](mri_error* e) {
        return table.sample(plugin.self(), sampler, logits.data(), &t, e);
      });
    }
    table.release(plugin.self(), sampler);
    return tokens;
  };
  bench.report->expect(drawn() == drawn(), "the same seed draws other tokens");
  req.grammar = "root ::= (";
  const mri_status status = call(bench, "create with a grammar that has no end", [&](mri_error* e) {
    return table.create(plugin.self(), &req, &sampler, e);
  });
  bench.report->expect(status == MRI_E_ARG,
                       "a grammar that cannot be read: status " + std::to_string(status));
}

void shares_prefixes(Bench& bench) {
  Opened plugin(bench);
  const auto& table = offered<mri_memory_v1>(bench, plugin, MRI_MEMORY);
  const auto& runtime = plugin.table<mri_runtime_v1>(MRI_RUNTIME);
  std::vector<int32_t> tokens(100);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(1 + i % 90);
  mri_init_req init = sized<mri_init_req>();
  init.tokens = tokens.data();
  init.n_tokens = tokens.size();
  mri_init_rsp made = sized<mri_init_rsp>();
  must(bench, "init_context",
       [&](mri_error* e) { return runtime.init_context(plugin.self(), &init, &made, e); });
  mri_prefix_key keys[4] = {};
  for (uint8_t i = 0; i < 4; ++i) keys[i].bytes[0] = static_cast<uint8_t>(i + 1);
  must(bench, "keep",
       [&](mri_error* e) { return table.keep(plugin.self(), made.ctx, keys, 3, 0, e); });
  runtime.release_context(plugin.self(), made.ctx);
  const auto reuse = [&] {
    mri_reuse_req req = sized<mri_reuse_req>();
    req.keys = keys;
    req.n_keys = 4;
    mri_reuse_rsp rsp = sized<mri_reuse_rsp>();
    must(bench, "reuse", [&](mri_error* e) { return table.reuse(plugin.self(), &req, &rsp, e); });
    return rsp;
  };
  const mri_reuse_rsp found = reuse();
  bench.report->expect(found.ctx != 0 && found.n_tokens == 96,
                       "reuse of 3 kept blocks: ctx " + std::to_string(found.ctx) + ", " +
                           std::to_string(found.n_tokens) + " tokens");
  mri_memory_usage usage = sized<mri_memory_usage>();
  must(bench, "usage", [&](mri_error* e) { return table.usage(plugin.self(), &usage, e); });
  bench.report->expect(
      usage.kept_prefixes == 1 && usage.used_bytes >= usage.kept_bytes,
      "usage counts " + std::to_string(usage.kept_prefixes) + " kept prefixes of 1");
  runtime.release_context(plugin.self(), found.ctx);
  must(bench, "forget", [&](mri_error* e) { return table.forget(plugin.self(), &keys[2], e); });
  bench.report->expect(reuse().ctx == 0, "a forgotten prefix is still reused");
}

void tells_its_times(Bench& bench) {
  Opened plugin(bench);
  const auto& table = offered<mri_timings_v1>(bench, plugin, MRI_TIMINGS);
  const auto& runtime = plugin.table<mri_runtime_v1>(MRI_RUNTIME);
  const int32_t tokens[] = {1, 2, 3};
  mri_init_req init = sized<mri_init_req>();
  init.tokens = tokens;
  init.n_tokens = 3;
  mri_init_rsp made = sized<mri_init_rsp>();
  must(bench, "init_context",
       [&](mri_error* e) { return runtime.init_context(plugin.self(), &init, &made, e); });
  must(bench, "enable", [&](mri_error* e) { return table.enable(plugin.self(), made.ctx, 1, e); });
  mri_step_seq seq{};
  seq.ctx = made.ctx;
  seq.tokens = tokens;
  seq.n_tokens = 2;
  mri_step_req step = sized<mri_step_req>();
  step.seqs = &seq;
  step.n_seqs = 1;
  mri_step_rsp stepped = sized<mri_step_rsp>();
  must(bench, "forward_step",
       [&](mri_error* e) { return runtime.forward_step(plugin.self(), &step, &stepped, e); });
  mri_timings times = sized<mri_timings>();
  must(bench, "read", [&](mri_error* e) { return table.read(plugin.self(), made.ctx, &times, e); });
  bench.report->expect(times.n_tokens == 2,
                       "2 tokens since enable, n_tokens is " + std::to_string(times.n_tokens));
  runtime.release_context(plugin.self(), made.ctx);
}

// Rows that do not fit are counted, and the arrays of the caller stay whole.
void says_how_much_room(Bench& bench) {
  Opened plugin(bench);
  const auto& runtime = plugin.table<mri_runtime_v1>(MRI_RUNTIME);
  std::vector<int32_t> tokens(100, 1);
  mri_init_req init = sized<mri_init_req>();
  init.tokens = tokens.data();
  init.n_tokens = tokens.size();
  mri_init_rsp made = sized<mri_init_rsp>();
  must(bench, "init_context",
       [&](mri_error* e) { return runtime.init_context(plugin.self(), &init, &made, e); });
  Guarded<mri_kv_block_info> rows(2);
  mri_summary_req req = sized<mri_summary_req>();
  req.out = rows.data();
  req.capacity = 2;
  mri_summary_rsp rsp = sized<mri_summary_rsp>();
  const mri_status status = call(bench, "get_kv_summary with room for 2 rows", [&](mri_error* e) {
    return runtime.get_kv_summary(plugin.self(), made.ctx, &req, &rsp, e);
  });
  bench.report->expect(status == MRI_E_SPACE && rsp.n_out == 4 && rows.is_intact(),
                       "room for 2 of 4 rows: status " + std::to_string(status) + ", n_out " +
                           std::to_string(rsp.n_out));
  runtime.release_context(plugin.self(), made.ctx);
}

constexpr Test kTests[] = {
    {"runtime.space", "runtime", 2, MRI_1_0,
     "get_kv_summary without room: MRI_E_SPACE and the rows needed.",
     "mri::Writer counts on past the end.", says_how_much_room},
    {"runtime.text", "runtime", 3, MRI_1_0,
     "mri.text/1: text survives tokenize and detokenize; MRI_E_SPACE tells the count.",
     "n_out is the full count, also without room.", keeps_text},
    {"runtime.sampling", "runtime", 3, MRI_1_0,
     "mri.sampling/1: temperature 0 draws the likeliest token, a seed the same tokens; a bad "
     "grammar is MRI_E_ARG.",
     "Seed the generator from the request alone.", draws_tokens},
    {"runtime.memory", "runtime", 3, MRI_1_0,
     "mri.memory/1: kept blocks are reused after their context is gone, until they are forgotten.",
     "Compare keys only; a prefix ends with its last equal key.", shares_prefixes},
    {"runtime.timings", "runtime", 3, MRI_1_0, "mri.timings/1: counts the tokens since enable.",
     "Sums begin with enable.", tells_its_times},
};

}  // namespace

std::span<const Test> runtime_option_tests() { return kTests; }

}  // namespace mri::conformance
