#include "core/http/mri_calls.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "core/engine/mri_status.h"

namespace varve::http {
namespace {

// Between two chunks of a prompt the lanes get their turn.
constexpr uint32_t kChunkTokens = 512;

nlohmann::json usage_json(const mri_kv_usage& usage) {
  return {{"hot_bytes", usage.hot_bytes},     {"warm_bytes", usage.warm_bytes},
          {"cold_bytes", usage.cold_bytes},   {"backing_bytes", usage.backing_bytes},
          {"bf16_bytes", usage.bf16_bytes},   {"hot_tokens", usage.hot_tokens},
          {"warm_tokens", usage.warm_tokens}, {"cold_tokens", usage.cold_tokens}};
}

template <class Struct>
Struct sized() {
  Struct value{};
  value.hdr.struct_size = sizeof(value);
  return value;
}

const uint32_t* flag_of(const MriCancel& cancel) {
  return reinterpret_cast<const uint32_t*>(cancel.get());
}

struct Turn {
  Turn(Turnstile* turnstile, uint32_t p) : priority(p) {
    if (turnstile != nullptr) pass.emplace(*turnstile, p);
  }
  std::optional<Turnstile::Pass> pass;
  const uint32_t priority;
};

// Numbers that the step's logits take; kInvalidArgument when they are too many.
absl::StatusOr<uint64_t> count_logits(const MriStep& step, const MriLimits& limits,
                                      bool is_binary) {
  const uint64_t bytes_max = is_binary ? limits.logits_bytes : limits.json_logits_bytes;
  uint64_t n = 0;
  for (const MriStepSeq& seq : step.seqs) {
    if (!seq.logits) continue;
    // At most step_tokens rows of a vocabulary: far from overflow.
    n += (seq.all_logits ? seq.tokens.size() : 1) * seq.context->n_vocabulary;
  }
  if (n <= bytes_max / sizeof(float)) return n;
  return absl::InvalidArgumentError(absl::StrCat(
      "logits: found ", n, " numbers asked for; expected at most ", bytes_max / sizeof(float),
      is_binary ? "" : " (more in the binary form: Accept: application/octet-stream)",
      ": ask for fewer tokens at a time"));
}

// The step tells of all its contexts together: each has its share by its tokens.
void count_held(const MriStep& step, const std::vector<mri_step_seq>& seqs,
                const mri_kv_usage& usage) {
  const auto n_tokens = [](const mri_step_seq& seq) {
    return seq.status == MRI_OK ? static_cast<double>(seq.position + seq.n_tokens) : 0;
  };
  double n_all = 0;
  for (const mri_step_seq& seq : seqs) n_all += n_tokens(seq);
  const auto bytes = static_cast<double>(resident_bytes(usage));
  for (size_t i = 0; i < seqs.size(); ++i) {
    if (seqs[i].status != MRI_OK) continue;
    step.seqs[i].context->held.set(static_cast<uint64_t>(bytes * n_tokens(seqs[i]) / n_all));
  }
}

}  // namespace

absl::StatusOr<nlohmann::json> run_init(const MriInit& init, MriContext* context,
                                        Turnstile* turnstile, const MriCancel& cancel,
                                        MriAnswer* answer, mri_kv_usage* usage) {
  std::vector<float> logits(init.logits ? context->n_vocabulary : 0);
  auto req = sized<mri_init_req>();
  req.context_key = init.context_key;
  req.seed = init.seed;
  req.tokens = init.tokens.data();
  req.n_tokens = init.tokens.size();
  req.max_tokens = init.max_tokens;
  req.budget_bytes = init.budget_bytes;
  req.chunk_tokens =
      init.chunk_tokens == 0 ? kChunkTokens : std::min(init.chunk_tokens, kChunkTokens);
  req.n_pinned = static_cast<uint32_t>(init.pinned.size());
  req.pinned = init.pinned.data();
  req.logits = init.logits ? logits.data() : nullptr;
  req.cancel = flag_of(cancel);
  auto rsp = sized<mri_init_rsp>();
  mri_error error = empty_error();
  Turn turn(turnstile, context->priority);
  req.progress_user = &turn;
  req.progress = [](void* user, uint64_t done, uint64_t n) {
    Turn& mine = *static_cast<Turn*>(user);
    if (mine.pass && done < n) mine.pass->renew(mine.priority);
  };
  const mri::Peer<mri_runtime_v1>& runtime = context->runtime;
  const mri_status status = runtime.table->init_context(runtime.self, &req, &rsp, &error);
  if (status != MRI_OK) return to_status("init_context", status, error);
  context->ctx = rsp.ctx;
  *usage = rsp.usage;
  nlohmann::json body = {{"n_chunks", rsp.n_chunks},
                         {"n_chunks_retried", rsp.n_chunks_retried},
                         {"usage", usage_json(rsp.usage)}};
  if (init.logits) body["logits"] = answer->tensor(logits, 0, context->n_vocabulary);
  return body;
}

absl::StatusOr<nlohmann::json> run_step(const MriStep& step, const MriLimits& limits,
                                        Turnstile* turnstile, const MriCancel& cancel,
                                        MriAnswer* answer) {
  const absl::StatusOr<uint64_t> n_logits = count_logits(step, limits, answer->is_binary());
  if (!n_logits.ok()) return n_logits.status();
  std::vector<float> logits(*n_logits);
  std::vector<mri_step_seq> seqs;
  float* next = logits.data();
  uint32_t priority = 0;
  for (const MriStepSeq& from : step.seqs) {
    mri_step_seq seq{};
    seq.ctx = from.context->ctx;
    seq.tokens = from.tokens.data();
    seq.n_tokens = from.tokens.size();
    seq.logits = from.logits ? next : nullptr;
    seq.all_logits = from.all_logits ? 1 : 0;
    seq.flags = from.flags;
    if (from.logits)
      next += (from.all_logits ? from.tokens.size() : 1) * from.context->n_vocabulary;
    priority = std::max(priority, from.context->priority);
    seqs.push_back(seq);
  }
  auto req = sized<mri_step_req>();
  req.step_id = step.step_id;
  req.seqs = seqs.data();
  req.n_seqs = seqs.size();
  req.cancel = flag_of(cancel);
  auto rsp = sized<mri_step_rsp>();
  mri_error error = empty_error();
  const mri::Peer<mri_runtime_v1>& runtime = step.seqs.front().context->runtime;
  mri_status status;
  {
    const Turn turn(turnstile, priority);
    status = runtime.table->forward_step(runtime.self, &req, &rsp, &error);
  }
  if (status != MRI_OK) return to_status("forward_step", status, error);
  count_held(step, seqs, rsp.usage);
  nlohmann::json list = nlohmann::json::array();
  for (size_t i = 0; i < seqs.size(); ++i) {
    const MriStepSeq& from = step.seqs[i];
    nlohmann::json seq = {
        {"ctx", from.ctx}, {"status", seqs[i].status}, {"position", seqs[i].position}};
    if (from.logits && seqs[i].status == MRI_OK) {
      const uint64_t rows = from.all_logits ? from.tokens.size() : 0;
      const uint64_t n = std::max<uint64_t>(rows, 1) * from.context->n_vocabulary;
      seq["logits"] = answer->tensor({seqs[i].logits, n}, rows, from.context->n_vocabulary);
    }
    list.push_back(std::move(seq));
  }
  return nlohmann::json{
      {"n_tokens", rsp.n_tokens}, {"usage", usage_json(rsp.usage)}, {"seqs", std::move(list)}};
}

absl::StatusOr<nlohmann::json> run_summary(const MriSummary& summary, const MriContext& context,
                                           const MriLimits& limits) {
  auto req = sized<mri_summary_req>();
  req.first_token = summary.first_token;
  req.n_tokens = summary.n_tokens;
  req.what = summary.what;
  std::vector<mri_kv_block_info> blocks;
  auto rsp = sized<mri_summary_rsp>();
  mri_error error = empty_error();
  mri_status status = MRI_E_SPACE;
  // The first call tells how many there are.
  for (int attempt = 0; attempt < 2 && status == MRI_E_SPACE; ++attempt) {
    if (rsp.n_out > limits.blocks) {
      return absl::InvalidArgumentError(absl::StrCat("found ", rsp.n_out,
                                                     " blocks; expected at most ", limits.blocks,
                                                     ": ask for a range of tokens"));
    }
    blocks.resize(rsp.n_out);
    req.out = blocks.data();
    req.capacity = blocks.size();
    rsp = sized<mri_summary_rsp>();
    status = context.runtime.table->get_kv_summary(context.runtime.self, context.ctx, &req, &rsp,
                                                   &error);
  }
  if (status != MRI_OK) return to_status("get_kv_summary", status, error);
  blocks.resize(std::min<uint64_t>(rsp.n_out, blocks.size()));
  nlohmann::json out = nlohmann::json::array();
  for (const mri_kv_block_info& block : blocks) {
    out.push_back({{"id", block.id},
                   {"position", block.position},
                   {"n_tokens", block.n_tokens},
                   {"tier", block.tier},
                   {"bytes", block.bytes}});
  }
  return nlohmann::json{{"n_out", blocks.size()},
                        {"kv_epoch", rsp.kv_epoch},
                        {"usage", usage_json(rsp.usage)},
                        {"out", std::move(out)}};
}

absl::StatusOr<nlohmann::json> run_evict(const MriEvict& evict, MriContext& context,
                                         uint32_t served) {
  auto req = sized<mri_evict_req>();
  req.request_id = evict.request_id;
  req.ranges = evict.ranges.data();
  req.n_ranges = evict.ranges.size();
  req.granularity = evict.granularity;
  req.reason = evict.reason;
  auto rsp = sized<mri_evict_rsp>();
  if (served < MRI_1_1) rsp.hdr.struct_size = MRI_EVICT_RSP_SIZE_1_0;
  mri_error error = empty_error();
  const mri_status status =
      context.runtime.table->evict_kv(context.runtime.self, context.ctx, &req, &rsp, &error);
  if (status != MRI_OK) return to_status("evict_kv", status, error);
  context.held.set(context.held.bytes() - std::min(context.held.bytes(), rsp.bytes_freed));
  nlohmann::json body = {{"n_evicted", rsp.n_evicted}, {"bytes_freed", rsp.bytes_freed}};
  if (served >= MRI_1_1) {
    body["confirm_state"] = rsp.confirm_state;
    body["n_refused"] = rsp.n_refused;
    body["confirm_epoch"] = rsp.confirm_epoch;
  }
  return body;
}

}  // namespace varve::http
