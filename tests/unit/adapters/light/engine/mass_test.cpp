// What the engine tells a kv_tier of the attention that blocks received, against the exact shares.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "adapters/light/engine.h"
#include "adapters/light/kernel_table.h"
#include "adapters/light/model/shared_model.h"
#include "mri/ext/stack.h"
#include "tests/support/tiny_models.h"

namespace varve::light {
namespace {

constexpr uint32_t kBlock = MRI_BLOCK_TOKENS;
constexpr uint32_t kPromptStep = 8;  // of a prompt's queries the engine looks at each eighth

// A stack of two: a kv_tier that remembers what it was told, and dense attention that adds up the
// shares of all blocks before the query's own.
class MassDouble {
 public:
  MassDouble() : host_{sizeof(mri_host), MRI_1_1, MRI_1_0, MRI_1_1, "", "", this, interface} {}
  MassDouble(const MassDouble&) = delete;
  MassDouble& operator=(const MassDouble&) = delete;

  const mri_host* host() const { return &host_; }
  std::vector<float> told;  // at the last decision
  std::vector<double> received = std::vector<double>(64);

 private:
  static MassDouble& of(void* self) { return *static_cast<MassDouble*>(self); }

  static mri_status decide(void* self, const mri_tier_req* req, mri_tier_rsp* rsp, mri_error*) {
    of(self).told.clear();
    for (uint64_t i = 0; i < req->n_blocks; ++i) of(self).told.push_back(req->blocks[i].mass);
    rsp->n_actions = 0;
    return MRI_OK;
  }

  // Items of at most a block's queries. The engine asks again with the room that is needed.
  static mri_status plan(void*, const mri_attn_req* req, mri_attn_plan* plan, mri_error*) {
    plan->n_items = plan->n_entries = 0;
    const mri_attn_seq& seq = req->seqs[0];
    for (uint32_t query = 0; query < seq.n_queries;) {
      const uint32_t own = (seq.position + query) / kBlock;
      const uint32_t n = std::min(kBlock - (seq.position + query) % kBlock, seq.n_queries - query);
      for (uint32_t head = 0; head < req->n_kv_heads; ++head) {
        plan->items[plan->n_items++] = {0, head, query, n, static_cast<uint32_t>(plan->n_entries),
                                        1, 0,    0};
        plan->entries[plan->n_entries++] = {MRI_ATTN_BLOCKS, 0, own + 1, static_cast<int32_t>(own),
                                            0.f};
      }
      query += n;
    }
    return MRI_OK;
  }

  static mri_status run(void* self, const mri_attn_req* req, const mri_attn_plan* plan,
                        mri_error*) {
    const mri_kernels_v1& kernels = *kernel_table();
    const uint32_t group = req->n_heads / req->n_kv_heads, dim = req->head_dim;
    for (uint64_t i = 0; i < plan->n_items; ++i) {
      const mri_attn_item& item = plan->items[i];
      const mri_attn_entry& all = plan->entries[item.first_entry];
      const size_t head = size_t{item.first_query} * req->n_heads + size_t{item.kv_head} * group;
      kernels.attend(nullptr, req, &item, &all, 1, req->o + head * dim, size_t{req->n_heads} * dim,
                     req->lse + head, req->n_heads);
      of(self).add_shares(*req, item, all);
    }
    return MRI_OK;
  }

  void add_shares(const mri_attn_req& req, const mri_attn_item& item, const mri_attn_entry& all) {
    const uint32_t n_before = all.count - 1, group = req.n_heads / req.n_kv_heads;
    const mri_attn_entry before = {MRI_ATTN_BLOCKS, 0, n_before, all.distance, 0.f};
    const std::vector<float> whole = lse(req, item, before);
    const uint32_t step = item.n_queries > 1 ? kPromptStep : 1;
    const uint32_t rows = (item.n_queries + step - 1) / step * group;
    for (uint32_t block = 0; block < n_before; ++block) {
      const auto distance = all.distance - static_cast<int32_t>(block);
      const std::vector<float> part = lse(req, item, {MRI_ATTN_BLOCKS, block, 1, distance, 0.f});
      double sum = 0;
      for (uint32_t row = 0; row < whole.size(); ++row) {
        if (row / group % step == 0)
          sum += std::exp(static_cast<double>(part[row]) - static_cast<double>(whole[row]));
      }
      received[block] += sum / rows * item.n_queries;
    }
  }

  static std::vector<float> lse(const mri_attn_req& req, const mri_attn_item& item,
                                const mri_attn_entry& entry) {
    const uint32_t group = req.n_heads / req.n_kv_heads;
    std::vector<float> o(size_t{item.n_queries} * group * req.head_dim);
    std::vector<float> sums(size_t{item.n_queries} * group);
    kernel_table()->attend(nullptr, &req, &item, &entry, 1, o.data(), size_t{group} * req.head_dim,
                           sums.data(), group);
    return sums;
  }

  static const void* find(const mri_host* host, const char* id, uint32_t, void** self) {
    static constexpr mri_kv_tier_v1 kTier = {sizeof(mri_kv_tier_v1), 0, decide};
    static constexpr mri_attention_v1 kAttention = {sizeof(mri_attention_v1), 0, plan, run};
    *self = host->self;
    if (std::strcmp(id, MRI_KV_TIER) == 0) return &kTier;
    return std::strcmp(id, MRI_ATTENTION) == 0 ? &kAttention : nullptr;
  }
  static const void* interface(const mri_host*, const char* id) {
    static constexpr mri_host_stack_v1 kStack = {sizeof(mri_host_stack_v1), 0, find};
    return std::strcmp(id, MRI_HOST_STACK) == 0 ? &kStack : nullptr;
  }

  mri_host host_;
};

// A prompt in chunks, then single tokens up to the end of a block.
std::vector<float> told_after_a_text(MassDouble& stack, uint32_t mass_tokens,
                                     uint32_t chunk_tokens = 64) {
  const test::TempDir folder;
  const std::string path = folder.path("model.gguf");
  test::write_gguf(test::tiny_model(Architecture::kLlama), path);
  EngineOptions options;
  options.compute = kernels::Compute::kF32;
  options.kv.hot_format = kernels::KvFormat::kF32;
  options.kv.mass_tokens = mass_tokens;
  options.chunk_tokens = chunk_tokens;
  options.max_tokens = 512;
  options.warm_up = false;
  Engine engine(share_model(path), options, mri::Host(stack.host()));

  std::vector<int32_t> tokens(5 * kBlock);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * i % 251);
  mri_init_req init{};
  init.hdr.struct_size = sizeof(init);
  init.tokens = tokens.data();
  init.n_tokens = 4 * kBlock;
  mri_init_rsp made{};
  made.hdr.struct_size = sizeof(made);
  engine.init_context(init, made);
  for (size_t i = 4 * kBlock; i < tokens.size(); ++i) {
    mri_step_seq seq{};
    seq.ctx = made.ctx;
    seq.tokens = &tokens[i];
    seq.n_tokens = 1;
    mri_step_req req{};
    req.hdr.struct_size = sizeof(req);
    req.seqs = &seq;
    req.n_seqs = 1;
    mri_step_rsp rsp{};
    rsp.hdr.struct_size = sizeof(rsp);
    engine.forward_step(req, rsp, nullptr);
  }
  engine.release_context(made.ctx);
  return stack.told;
}

TEST(MassTest, TellsThePolicyWhatBlocksReceived) {
  MassDouble stack;
  const std::vector<float> told = told_after_a_text(stack, 1 << 30);
  ASSERT_EQ(told.size(), 5u);
  double all = 0;
  for (size_t block = 0; block < 4; ++block) {
    const double share = stack.received[block] / (5.0 * kBlock * 2 * 2);  // layers, KV heads
    EXPECT_NEAR(told[block], share, 0.1 * share) << block;                // of sketches
    all += static_cast<double>(told[block]);
  }
  EXPECT_NEAR(all, 0.8, 1e-3);  // the first block's queries have nothing before them
  EXPECT_EQ(told[4], 0.f);
}

TEST(MassTest, OlderAttentionCountsLess) {
  MassDouble all, late;
  const std::vector<float> evenly = told_after_a_text(all, 1 << 30);
  const std::vector<float> lately = told_after_a_text(late, 8);
  // The last 32 queries are the first to see block 3.
  EXPECT_GT(lately[3], 2 * evenly[3]);
  EXPECT_LT(lately[0], evenly[0]);
}

TEST(MassTest, DoesNotDependOnChunks) {
  MassDouble four, one;
  const std::vector<float> pieces = told_after_a_text(four, 50, 32);
  const std::vector<float> whole = told_after_a_text(one, 50, 128);
  for (size_t block = 0; block < pieces.size(); ++block)
    EXPECT_NEAR(pieces[block], whole[block], 1e-4f) << block;
}

TEST(MassTest, IsNotMeasuredUnasked) {
  MassDouble stack;
  EXPECT_EQ(told_after_a_text(stack, 0), std::vector<float>(5));
}

}  // namespace
}  // namespace varve::light
