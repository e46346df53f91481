// Sizes, null pointers and error text of every call that has a growable request or response.
#include "mri/conformance/attention_batch.h"
#include "mri/conformance/opened.h"
#include "mri/kind/batching.h"
#include "mri/kind/kv_tier.h"
#include "mri/kind/quantizer.h"
#include "mri/kind/runtime.h"
#include "mri/kind/summary.h"

namespace mri::conformance {
namespace {

// Of a method that has a response alone: there is nothing that req_seen could tell.
struct NoReq {
  mri_req_hdr hdr;
};

constexpr uint32_t kGrowth[] = {0, 8, 64, 4096};  // of a caller that is newer than the plugin

// The bytes of a response that a plugin must fill when `version` was chosen.
template <class Rsp>
uint32_t size_at(uint32_t version) {
  return version >= MRI_1_1 ? sizeof(Rsp) : kSize10<Rsp>;
}

// A method with a request and a response: how to call it, and its pieces filled in as a host of
// today would. `after` undoes what a call did.
template <class Req, class Rsp>
struct Method {
  const char* name;
  Req req;
  Rsp rsp;
  std::function<mri_status(const Req*, Rsp*, mri_error*)> invoke;
  std::function<void(const Rsp&)> after = [](const Rsp&) {};
};

template <class Req, class Rsp>
mri_status invoke(Bench& bench, const Method<Req, Rsp>& m, const std::string& at, const Req* req,
                  Rsp* rsp) {
  const mri_status status = call(bench, at, [&](mri_error* e) { return m.invoke(req, rsp, e); });
  if (status == MRI_OK) {
    Rsp whole{};
    std::memcpy(&whole, rsp, std::min<uint64_t>(rsp->hdr.struct_size, sizeof(Rsp)));
    m.after(whole);
  }
  return status;
}

template <class Req, class Rsp>
void check_response(Bench& bench, const Method<Req, Rsp>& m) {
  Report& report = *bench.report;
  Sized<Req> req(m.req);
  std::vector<uint32_t> sizes{kSize10<Rsp>};
  for (const uint32_t more : kGrowth) sizes.push_back(sizeof(Rsp) + more);
  for (const uint32_t size : sizes) {
    const std::string at =
        std::string(m.name) + " with a response of " + std::to_string(size) + " bytes";
    Sized<Rsp> rsp(m.rsp, size);
    const mri_status status = invoke(bench, m, at, req.get(), rsp.get());
    report.expect(rsp.is_intact(), at + ": wrote behind struct_size");
    if (!report.expect(status == MRI_OK, at + ": status " + std::to_string(status))) continue;
    const mri_rsp_hdr& hdr = rsp->hdr;
    const uint32_t least = std::min(size, size_at<Rsp>(bench.version));
    report.expect(hdr.struct_size == size, at + ": changed struct_size");
    report.expect(hdr.written >= least && hdr.written <= size && hdr.written % 4 == 0,
                  at + ": written is " + std::to_string(hdr.written) + ", expected min(" +
                      std::to_string(size) + ", own size)");
    report.expect(hdr.req_seen >= kSize10<Req> && hdr.req_seen <= sizeof(Req),
                  at + ": req_seen is " + std::to_string(hdr.req_seen) + " of " +
                      std::to_string(sizeof(Req)));
  }
}

template <class Req, class Rsp>
void check_request(Bench& bench, const Method<Req, Rsp>& m) {
  for (const uint32_t more : kGrowth) {
    for (const unsigned char beyond : {0x00, 0xa5}) {
      const std::string at = std::string(m.name) + " with a request of " +
                             std::to_string(sizeof(Req) + more) + " bytes" +
                             (beyond != 0 ? ", unknown members set" : "");
      Sized<Req> req(m.req, static_cast<uint32_t>(sizeof(Req)) + more, beyond);
      Sized<Rsp> rsp(m.rsp);
      const mri_status status = invoke(bench, m, at, req.get(), rsp.get());
      bench.report->expect(status == MRI_OK, at + ": status " + std::to_string(status));
    }
  }
}

template <class Req, class Rsp>
void check_refusals(Bench& bench, const Method<Req, Rsp>& m) {
  Sized<Req> req(m.req), short_req(m.req, sizeof(mri_req_hdr));
  Sized<Rsp> rsp(m.rsp), short_rsp(m.rsp, sizeof(mri_rsp_hdr));
  const auto refuses = [&](const char* what, const Req* in, Rsp* out) {
    const std::string at = std::string(m.name) + " with " + what;
    const mri_status status = call(bench, at, [&](mri_error* e) { return m.invoke(in, out, e); });
    bench.report->expect(status == MRI_E_ARG,
                         at + ": status " + std::to_string(status) + ", expected MRI_E_ARG");
  };
  refuses("a request of 8 bytes", short_req.get(), rsp.get());
  refuses("a response of 16 bytes", req.get(), short_rsp.get());
  refuses("a null request", nullptr, rsp.get());
  refuses("a null response", req.get(), nullptr);
  m.invoke(nullptr, rsp.get(), nullptr);  // no place for text
  bench.report->expect(short_rsp.is_intact() && rsp.is_intact(),
                       std::string(m.name) + ": wrote behind struct_size");
}

enum class What { kResponse, kRequest, kRefusals };

template <class Req, class Rsp>
void check(Bench& bench, What what, const Method<Req, Rsp>& m) {
  if (what == What::kResponse) check_response(bench, m);
  if (what == What::kRequest) check_request(bench, m);
  if (what == What::kRefusals) check_refusals(bench, m);
}

// describe has no request of its own; encode and decode have no response.
void check_quantizer(Bench& bench, What what, Opened& plugin) {
  const auto& table = plugin.table<mri_quantizer_v1>(MRI_QUANTIZER);
  mri_quant_desc desc = sized<mri_quant_desc>();
  if (what != What::kResponse) {
    for (const auto& [name, method] :
         {std::pair(
              "encode", +[](const mri_quantizer_v1&t, void*self,
                            mri_error*e) { return t.encode(self, nullptr, e); }),
          std::pair(
              "decode", +[](const mri_quantizer_v1&t, void*self, mri_error*e) {
                return t.decode(self, nullptr, e);
              })}) {
      const std::string at = std::string(name) + " with a null request";
      const mri_status status = call(bench, at, [&, method = method](mri_error* e) {
        return method(table, plugin.self(), e);
      });
      bench.report->expect(status == MRI_E_ARG, at + ": status " + std::to_string(status));
    }
    return;
  }
  Method<NoReq, mri_quant_desc> m{"describe", {}, desc, {}};
  m.invoke = [&](const NoReq*, mri_quant_desc* out, mri_error* e) {
    const mri_status status = table.describe(plugin.self(), 64, out, e);
    if (out != nullptr) out->hdr.req_seen = sizeof(NoReq);
    return status;
  };
  check(bench, what, m);
}

void check_kv_tier(Bench& bench, What what, Opened& plugin) {
  const auto& table = plugin.table<mri_kv_tier_v1>(MRI_KV_TIER);
  mri_tier_action actions[16];
  Method<mri_tier_req, mri_tier_rsp> m{"decide", {}, {}, {}};
  m.req.budget_bytes = 1 << 20;
  m.rsp.actions = actions;
  m.rsp.capacity = 16;
  m.invoke = [&](auto* req, auto* rsp, auto* e) {
    return table.decide(plugin.self(), req, rsp, e);
  };
  check(bench, what, m);
}

void check_batching(Bench& bench, What what, Opened& plugin) {
  const auto& table = plugin.table<mri_batching_v1>(MRI_BATCHING);
  mri_batch_request request{};
  request.id = 1;
  request.prompt_tokens_left = 10;
  request.deadline_us = UINT64_MAX;
  mri_batch_pick picks[1];
  Method<mri_batch_req, mri_batch_rsp> m{"next_step", {}, {}, {}};
  m.req.requests = &request;
  m.req.n_requests = 1;
  m.req.step_tokens_max = 512;
  m.req.kv_bytes_free = 1 << 20;
  m.req.sequences_max = 4;
  m.rsp.picks = picks;
  m.rsp.capacity = 1;
  m.invoke = [&](auto* req, auto* rsp, auto* e) {
    return table.next_step(plugin.self(), req, rsp, e);
  };
  check(bench, what, m);
}

void check_summary(Bench& bench, What what, Opened& plugin) {
  constexpr uint32_t kTokens = 64, kDim = 8;
  const auto& table = plugin.table<mri_summary_v1>(MRI_SUMMARY);
  const uint32_t pairs = table.pairs_max(plugin.self(), kTokens);
  const std::vector<float> k = Random(1).normals(kTokens * kDim);
  std::vector<float> out_k(uint64_t{pairs} * kDim), out_v(out_k), log_count(pairs);
  Method<mri_summary_make_req, mri_summary_make_rsp> m{"make", {}, {}, {}};
  m.req.k = m.req.v = k.data();
  m.req.n_tokens = kTokens;
  m.req.head_dim = kDim;
  m.rsp.k = out_k.data();
  m.rsp.v = out_v.data();
  m.rsp.log_count = log_count.data();
  m.rsp.pairs_capacity = pairs;
  m.invoke = [&](auto* req, auto* rsp, auto* e) { return table.make(plugin.self(), req, rsp, e); };
  check(bench, what, m);
}

void check_attention(Bench& bench, What what, Opened& plugin) {
  const auto& table = plugin.table<mri_attention_v1>(MRI_ATTENTION);
  Random random(1);
  const AttentionBatch batch(*bench.kernels, random, {1, 1, 32}, {{40, 1, MRI_ATTN_SEQ_DECODE}});
  mri_attn_item items[64];
  mri_attn_entry entries[256];
  Method<mri_attn_req, mri_attn_plan> m{"plan", batch.req(), {}, {}};
  m.rsp.items = items;
  m.rsp.entries = entries;
  m.rsp.items_capacity = 64;
  m.rsp.entries_capacity = 256;
  m.invoke = [&](auto* req, auto* rsp, auto* e) { return table.plan(plugin.self(), req, rsp, e); };
  check(bench, what, m);
}

void check_runtime(Bench& bench, What what, Opened& plugin) {
  const auto& table = plugin.table<mri_runtime_v1>(MRI_RUNTIME);
  void* const self = plugin.self();
  const int32_t tokens[] = {1, 2, 3};
  Method<mri_init_req, mri_init_rsp> init{"init_context", {}, {}, {}};
  init.req.tokens = tokens;
  init.req.n_tokens = 3;
  init.invoke = [&](auto* req, auto* rsp, auto* e) {
    return table.init_context(self, req, rsp, e);
  };
  init.after = [&](const mri_init_rsp& rsp) { table.release_context(self, rsp.ctx); };
  check(bench, what, init);

  mri_init_req req = sized(init.req);
  mri_init_rsp made = sized<mri_init_rsp>();
  must(bench, "init_context",
       [&](mri_error* e) { return table.init_context(self, &req, &made, e); });
  Method<mri_evict_req, mri_evict_rsp> evict{"evict_kv", {}, {}, {}};
  evict.req.granularity = MRI_EVICT_BLOCK;
  evict.invoke = [&](auto* in, auto* out, auto* e) {
    return table.evict_kv(self, made.ctx, in, out, e);
  };
  check(bench, what, evict);

  mri_kv_block_info rows[8];
  Method<mri_summary_req, mri_summary_rsp> list{"get_kv_summary", {}, {}, {}};
  list.req.out = rows;
  list.req.capacity = 8;
  list.invoke = [&](auto* in, auto* out, auto* e) {
    return table.get_kv_summary(self, made.ctx, in, out, e);
  };
  check(bench, what, list);

  mri_step_seq seq{};
  seq.ctx = made.ctx;
  seq.tokens = tokens;
  seq.n_tokens = 1;
  Method<mri_step_req, mri_step_rsp> step{"forward_step", {}, {}, {}};
  step.req.seqs = &seq;
  step.req.n_seqs = 1;
  step.invoke = [&](auto* in, auto* out, auto* e) { return table.forward_step(self, in, out, e); };
  check(bench, what, step);
  table.release_context(self, made.ctx);
}

void check_kind(Bench& bench, What what) {
  Opened plugin(bench);
  const std::string kind = bench.entry->kind;
  if (kind == "quantizer") check_quantizer(bench, what, plugin);
  if (kind == "kv_tier") check_kv_tier(bench, what, plugin);
  if (kind == "batching") check_batching(bench, what, plugin);
  if (kind == "summary") check_summary(bench, what, plugin);
  if (kind == "attention") check_attention(bench, what, plugin);
  if (kind == "runtime") check_runtime(bench, what, plugin);
}

void check_caps(Bench& bench) {
  Opened plugin(bench);
  Method<NoReq, mri_caps> m{"query_caps", {}, {}, {}};
  m.invoke = [&](const NoReq*, mri_caps* out, mri_error* e) {
    const mri_status status = plugin.plugin().query_caps(plugin.self(), out, e);
    if (out != nullptr) out->hdr.req_seen = sizeof(NoReq);
    return status;
  };
  check_response(bench, m);
}

constexpr Test kTests[] = {
    {"size.caps", "any", 2, MRI_1_0, "query_caps keeps the rules of size.response.",
     "written is min(struct_size, sizeof); mri::Response does it.", check_caps},
    {"size.response", "any", 2, MRI_1_0,
     "A response of the size of 1.0, of today, or of a newer host is filled up to min(struct_size, "
     "own size), which written and req_seen tell; nothing behind it is touched.",
     "Never compare struct_size with ==; never write sizeof bytes unasked; at 1.1 fill the members "
     "of 1.1. mri::Response does it.",
     [](Bench& bench) { check_kind(bench, What::kResponse); }},
    {"size.request", "any", 2, MRI_1_0,
     "A request of a newer host is served whatever its unknown members hold.",
     "Read min(struct_size, own size) bytes; never compare with ==. mri::Request does it.",
     [](Bench& bench) { check_kind(bench, What::kRequest); }},
    {"size.refusals", "any", 2, MRI_1_0,
     "Null and too short structs are MRI_E_ARG, with and without a place for text.",
     "Check pointers and struct_size before anything else; err may be null.",
     [](Bench& bench) { check_kind(bench, What::kRefusals); }},
};

}  // namespace

std::span<const Test> size_tests() { return kTests; }

}  // namespace mri::conformance
