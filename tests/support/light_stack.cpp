#include "tests/support/light_stack.h"

#include <random>
#include <stdexcept>

namespace varve::test {
namespace {

template <class T>
T sized() {
  T value{};
  value.hdr.struct_size = sizeof(T);
  return value;
}

mri_error empty_error() {
  mri_error err{};
  err.struct_size = sizeof(err);
  return err;
}

}  // namespace

LightStack::LightStack(const LightStackOptions& options) : threads_(options.threads) {
  StackSpec spec;
  spec.plugin_directories = {VARVE_PLUGIN_DIRECTORY, VARVE_TEST_PLUGIN_DIRECTORY};
  spec.services.threads = &threads_;
  Params runtime = options.runtime_params;
  runtime.emplace_back("model_path", Value(options.model_path));
  spec.plugins = {{"runtime", options.runtime, runtime}};
  if (options.runtime == "light") {
    spec.plugins.push_back({"kv_tier", options.tier, options.tier_params});
    spec.plugins.push_back({"quantizer", options.quantizer, {}});
    spec.plugins.push_back({"attention", options.attention, options.attention_params});
  }
  if (!options.summary.empty())
    spec.plugins.push_back({"summary", options.summary, options.summary_params});
  absl::StatusOr<std::unique_ptr<Stack>> stack = load_stack(spec);
  if (!stack.ok()) throw std::runtime_error(std::string(stack.status().message()));
  stack_ = *std::move(stack);
  runtime_ = stack_->runtime();
}

LightStack::Result LightStack::init(std::span<const int32_t> tokens, uint64_t* ctx, float* logits,
                                    uint64_t budget_bytes, uint32_t chunk_tokens,
                                    const mri_token_range* pinned, mri_init_rsp* out) {
  auto req = sized<mri_init_req>();
  auto rsp = sized<mri_init_rsp>();
  req.tokens = tokens.data();
  req.n_tokens = tokens.size();
  req.logits = logits;
  req.budget_bytes = budget_bytes;
  req.chunk_tokens = chunk_tokens;
  req.pinned = pinned;
  req.n_pinned = pinned != nullptr ? 1 : 0;
  mri_error err = empty_error();
  const mri_status status = runtime_.table->init_context(runtime_.self, &req, &rsp, &err);
  *ctx = rsp.ctx;
  if (out != nullptr) *out = rsp;
  return {status, err.msg};
}

LightStack::Result LightStack::step(uint64_t ctx, std::span<const int32_t> tokens, float* logits,
                                    bool all_logits, mri_kv_usage* usage) {
  mri_step_seq seq{};
  seq.ctx = ctx;
  seq.tokens = tokens.data();
  seq.n_tokens = tokens.size();
  seq.logits = logits;
  seq.all_logits = all_logits ? 1 : 0;
  auto req = sized<mri_step_req>();
  auto rsp = sized<mri_step_rsp>();
  req.seqs = &seq;
  req.n_seqs = 1;
  mri_error err = empty_error();
  const mri_status status = runtime_.table->forward_step(runtime_.self, &req, &rsp, &err);
  if (usage != nullptr) *usage = rsp.usage;
  return {status != MRI_OK ? status : seq.status, err.msg};
}

LightStack::Result LightStack::evict(uint64_t ctx, mri_token_range range, uint32_t granularity,
                                     mri_evict_rsp* out) {
  auto req = sized<mri_evict_req>();
  *out = sized<mri_evict_rsp>();
  req.ranges = &range;
  req.n_ranges = 1;
  req.granularity = granularity;
  mri_error err = empty_error();
  return {runtime_.table->evict_kv(runtime_.self, ctx, &req, out, &err), err.msg};
}

LightStack::Result LightStack::summary(uint64_t ctx, std::vector<mri_kv_block_info>* out,
                                       mri_summary_rsp* rsp) {
  auto req = sized<mri_summary_req>();
  auto answer = sized<mri_summary_rsp>();
  out->resize(4096);
  req.out = out->data();
  req.capacity = out->size();
  mri_error err = empty_error();
  const mri_status status = runtime_.table->get_kv_summary(runtime_.self, ctx, &req, &answer, &err);
  out->resize(status == MRI_OK ? answer.n_out : 0);
  if (rsp != nullptr) *rsp = answer;
  return {status, err.msg};
}

std::vector<int32_t> random_tokens(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> tokens(n);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 256);
  return tokens;
}

}  // namespace varve::test
