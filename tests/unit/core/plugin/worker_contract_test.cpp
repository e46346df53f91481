// A plugin in a process of its own answers as it does in the host's: bit for bit when it is sound,
// and with the same refusals and texts when it is not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "adapters/light/kernel_table.h"
#include "core/plugin/stack.h"

namespace varve {
namespace {

StackSpec spec_of(const std::string& directory, const std::string& kind, const std::string& name,
                  bool is_worker) {
  StackSpec spec;
  spec.plugin_directories = {directory};
  Isolation isolation;
  isolation.is_worker = is_worker;
  isolation.deadline_ms = 60'000;
  spec.plugins = {{kind, name, {}, isolation}};
  // The worker's own, so that the arithmetic is the same.
  spec.kernels = light::kernel_table();
  return spec;
}

class WorkerContract : public testing::TestWithParam<std::string> {
 protected:
  WorkerContract() : random_(7) {
    const std::vector<std::string> parts = absl::StrSplit(GetParam(), ':');
    kind_ = parts[0];
    for (const bool is_worker : {false, true}) {
      absl::StatusOr<std::unique_ptr<Stack>> stack =
          load_stack(spec_of(PLUGIN_DIRECTORY, kind_, parts[1], is_worker));
      EXPECT_TRUE(stack.ok()) << stack.status();
      stacks_[is_worker] = *std::move(stack);
    }
  }

  template <class T>
  std::vector<T> values(size_t n) {
    std::vector<T> out(n);
    for (T& value : out) value = static_cast<T>(random_() % 1000) / 100 - 5;
    return out;
  }

  std::mt19937 random_;
  std::string kind_;
  std::unique_ptr<Stack> stacks_[2];
};

TEST_P(WorkerContract, SaysTheSameOfItself) {
  const PluginReport here = stacks_[0]->report()[0], there = stacks_[1]->report()[0];
  EXPECT_EQ(here.info.id, there.info.id);
  EXPECT_EQ(here.info.version, there.info.version);
  EXPECT_EQ(here.info.build, there.info.build);
  EXPECT_EQ(here.info.negotiated, there.info.negotiated);
  ASSERT_EQ(here.info.params.size(), there.info.params.size());
  for (size_t i = 0; i < here.info.params.size(); ++i) {
    EXPECT_EQ(here.info.params[i].key, there.info.params[i].key);
    EXPECT_EQ(here.info.params[i].default_value, there.info.params[i].default_value);
    EXPECT_EQ(here.info.params[i].expectation(), there.info.params[i].expectation());
  }
  EXPECT_EQ(here.caps.determinism, there.caps.determinism);
  EXPECT_EQ(here.caps.feature_bits, there.caps.feature_bits);
}

std::vector<mri_tier_action> decisions(const Stack& stack, mri_tier_req req) {
  const auto peer = stack.peer<mri_kv_tier_v1>(MRI_KV_TIER);
  std::vector<mri_tier_action> actions(1000);
  mri_tier_rsp rsp{};
  rsp.hdr.struct_size = sizeof(rsp);
  rsp.actions = actions.data();
  rsp.capacity = actions.size();
  EXPECT_EQ(peer.table->decide(peer.self, &req, &rsp, nullptr), MRI_OK);
  actions.resize(rsp.n_actions);
  return actions;
}

template <class T>
void expect_same(const std::vector<T>& a, const std::vector<T>& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_TRUE(a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

TEST_P(WorkerContract, DecidesTheSame) {
  if (kind_ != "kv_tier") GTEST_SKIP() << "another kind";
  for (int round = 0; round < 200; ++round) {
    std::vector<mri_tier_block> blocks(random_() % 200);
    for (size_t i = 0; i < blocks.size(); ++i) {
      blocks[i] = {};
      blocks[i].id = 1 + i;
      blocks[i].position = static_cast<uint32_t>(32 * i);
      blocks[i].n_tokens = 32;
      blocks[i].tier = static_cast<uint32_t>(random_() % 3);
      blocks[i].idle_steps = random_() % 1000;
      blocks[i].bytes = 4096u >> blocks[i].tier;
    }
    mri_tier_req req{};
    req.hdr.struct_size = sizeof(req);
    req.blocks = blocks.data();
    req.n_blocks = blocks.size();
    req.n_tokens = 32 * blocks.size();
    req.step = static_cast<uint64_t>(round);
    req.budget_bytes = 1 << 18;
    req.used_bytes = random_() % (1 << 19);
    req.wanted_bytes = random_() % (1 << 16);
    req.why = static_cast<uint32_t>(random_() % 3);
    req.block_bytes[0] = 4096, req.block_bytes[1] = 2048, req.block_bytes[2] = 1024;
    expect_same(decisions(*stacks_[0], req), decisions(*stacks_[1], req));
  }
}

std::vector<mri_batch_pick> picks(const Stack& stack, mri_batch_req req) {
  const auto peer = stack.peer<mri_batching_v1>(MRI_BATCHING);
  std::vector<mri_batch_pick> picks(req.n_requests);
  mri_batch_rsp rsp{};
  rsp.hdr.struct_size = sizeof(rsp);
  rsp.picks = picks.data();
  rsp.capacity = picks.size();
  EXPECT_EQ(peer.table->next_step(peer.self, &req, &rsp, nullptr), MRI_OK);
  picks.resize(rsp.n_picks);
  return picks;
}

TEST_P(WorkerContract, PicksTheSame) {
  if (kind_ != "batching") GTEST_SKIP() << "another kind";
  for (int round = 0; round < 200; ++round) {
    std::vector<mri_batch_request> requests(random_() % 50);
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i] = {};
      requests[i].id = i;
      requests[i].age_us = random_() % 1'000'000;
      requests[i].prompt_tokens_left = random_() % 2 == 0 ? 0 : random_() % 4000;
      requests[i].deadline_us = UINT64_MAX;
      requests[i].priority = static_cast<uint32_t>(random_() % 4);
      requests[i].running = i > 20;
    }
    mri_batch_req req{};
    req.hdr.struct_size = sizeof(req);
    req.requests = requests.data();
    req.n_requests = requests.size();
    req.step_tokens_max = 512;
    req.kv_bytes_free = 1 << 30;
    req.sequences_max = 16;
    expect_same(picks(*stacks_[0], req), picks(*stacks_[1], req));
  }
}

TEST_P(WorkerContract, SummarisesTheSame) {
  if (kind_ != "summary") GTEST_SKIP() << "another kind";
  constexpr uint32_t kTokens = 1024, kDim = 64;
  const auto k = values<float>(kTokens * kDim), v = values<float>(kTokens * kDim);
  const auto mass = values<float>(kTokens);
  std::vector<float> out[2];
  for (const bool has_mass : {false, true}) {
    for (const bool is_worker : {false, true}) {
      const auto peer = stacks_[is_worker]->peer<mri_summary_v1>(MRI_SUMMARY);
      const uint32_t pairs = peer.table->pairs_max(peer.self, kTokens);
      ASSERT_GT(pairs, 0u);
      std::vector<float>& all = out[is_worker];
      all.assign(pairs * (2 * kDim + 1), 0);
      mri_summary_make_req req{};
      req.hdr.struct_size = sizeof(req);
      req.k = k.data(), req.v = v.data(), req.mass = has_mass ? mass.data() : nullptr;
      req.seed = 3, req.n_tokens = kTokens, req.head_dim = kDim;
      mri_summary_make_rsp rsp{};
      rsp.hdr.struct_size = sizeof(rsp);
      rsp.k = all.data(), rsp.v = rsp.k + pairs * kDim, rsp.log_count = rsp.v + pairs * kDim;
      rsp.pairs_capacity = pairs;
      EXPECT_EQ(peer.table->make(peer.self, &req, &rsp, nullptr), MRI_OK);
      all.push_back(static_cast<float>(rsp.n_pairs));
    }
    expect_same(out[0], out[1]);
  }
}

TEST_P(WorkerContract, EncodesTheSame) {
  if (kind_ != "quantizer") GTEST_SKIP() << "another kind";
  constexpr uint32_t kDim = 64;
  const auto k = values<float>(32 * kDim), v = values<float>(32 * kDim);
  const mri_kernels_v1& kernels = *light::kernel_table();
  alignas(64) uint8_t index[14 * kDim];
  kernels.make_index(nullptr, k.data(), UINT32_MAX, kDim, index);
  std::vector<uint8_t> body[2];
  std::vector<float> back[2];
  for (const bool is_worker : {false, true}) {
    const auto peer = stacks_[is_worker]->peer<mri_quantizer_v1>(MRI_QUANTIZER);
    mri_quant_desc desc{};
    desc.hdr.struct_size = sizeof(desc);
    ASSERT_EQ(peer.table->describe(peer.self, kDim, &desc, nullptr), MRI_OK);
    body[is_worker].resize(desc.body_bytes + 64);
    uint8_t* aligned = body[is_worker].data();
    aligned += (64 - reinterpret_cast<uintptr_t>(aligned) % 64) % 64;
    mri_quant_encode_req encode{};
    encode.hdr.struct_size = sizeof(encode);
    encode.k = k.data(), encode.v = v.data(), encode.index = index, encode.body = aligned;
    encode.head_dim = kDim, encode.live_mask = UINT32_MAX;
    ASSERT_EQ(peer.table->encode(peer.self, &encode, nullptr), MRI_OK);
    back[is_worker].resize(64 * kDim);
    mri_quant_decode_req decode{};
    decode.hdr.struct_size = sizeof(decode);
    decode.index = index, decode.body = aligned;
    decode.k = back[is_worker].data(), decode.v = decode.k + 32 * kDim;
    decode.head_dim = kDim, decode.live_mask = UINT32_MAX;
    ASSERT_EQ(peer.table->decode(peer.self, &decode, nullptr), MRI_OK);
    body[is_worker].assign(aligned, aligned + desc.body_bytes);
  }
  expect_same(body[0], body[1]);
  expect_same(back[0], back[1]);
}

std::vector<std::string> isolated() { return absl::StrSplit(PLUGINS, ','); }

INSTANTIATE_TEST_SUITE_P(Tree, WorkerContract, testing::ValuesIn(isolated()),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           name[name.find(':')] = '_';
                           return name;
                         });

// What a stack with the bad quantizer says: its refusal, or what each call comes to.
std::string told(const std::string& name, bool is_worker) {
  const auto stack = load_stack(spec_of(BAD_PLUGINS, "quantizer", name, is_worker));
  if (!stack.ok()) return std::string(stack.status().message());
  const auto peer = (*stack)->peer<mri_quantizer_v1>(MRI_QUANTIZER);
  mri_error err{};
  err.struct_size = sizeof(err);
  std::string text;
  const auto add = [&](mri_status status) { absl::StrAppend(&text, status, " ", err.msg, "\n"); };
  // As short as in 1.0, and as a newer caller may have it; too short last.
  constexpr uint32_t kSize = sizeof(mri_quant_desc);
  for (const uint32_t size : {kSize, kSize + 8, kSize + 64, kSize + 4096, 16u}) {
    std::vector<uint64_t> room(size / 8 + 64, 0);
    std::fill(room.begin() + size / 8, room.end(), 0xa5a5a5a5a5a5a5a5);
    auto* desc = reinterpret_cast<mri_quant_desc*>(room.data());
    desc->hdr.struct_size = size;
    add(peer.table->describe(peer.self, 64, desc, &err));
    absl::StrAppend(&text, desc->hdr.written, " ", room.back(), "\n");
  }
  if (text.rfind("0 ", 0) == 0) {  // else no page can be sent
    constexpr uint32_t kDim = 64;
    const std::vector<float> in(32 * kDim, 1);
    std::vector<float> out(64 * kDim);
    alignas(64) uint8_t index[14 * kDim] = {};
    alignas(64) uint8_t body[1024 * kDim] = {};
    mri_quant_encode_req encode{};
    encode.hdr.struct_size = sizeof(encode);
    encode.k = encode.v = in.data(), encode.index = index, encode.body = body;
    encode.head_dim = kDim, encode.live_mask = UINT32_MAX;
    add(peer.table->encode(peer.self, &encode, &err));
    mri_quant_decode_req decode{};
    decode.hdr.struct_size = sizeof(decode);
    decode.index = index, decode.body = body, decode.k = out.data(), decode.v = &out[32 * kDim];
    decode.head_dim = kDim, decode.live_mask = UINT32_MAX;
    add(peer.table->decode(peer.self, &decode, &err));
    absl::StrAppend(&text, body[0], " ", body[kDim], " ", out[0], " ", out[33 * kDim], "\n");
  }
  return absl::StrCat(text, (*stack)->report()[0].misbehaved);
}

TEST(BadPluginsInAWorker, AreCaughtAsInTheHost) {
  for (const char* name :
       {"sound",        "old_1_0",       "two_symbols",  "missing_symbol", "major_2_entry",
        "wrong_magic",  "short_struct",  "unknown_kind", "null_open",      "min_above_max",
        "major_2",      "bad_id",        "bad_params",   "refuses_open",   "null_activate",
        "no_table",     "null_in_table", "throws",       "big_written",    "zero_written",
        "endless_text", "status_12345",  "equal_size",   "any_thread"}) {
    EXPECT_EQ(told(name, true), told(name, false)) << name;
  }
}

TEST(BadPluginsInAWorker, OneThatNeverComesBackIsEnded) {
  StackSpec spec = spec_of(BAD_PLUGINS, "quantizer", "hang_in_encode", true);
  spec.plugins[0].isolation.deadline_ms = 200;
  const auto stack = load_stack(spec);
  ASSERT_TRUE(stack.ok()) << stack.status();
  const auto peer = (*stack)->peer<mri_quantizer_v1>(MRI_QUANTIZER);
  const std::vector<float> in(32 * 64, 1);
  alignas(64) uint8_t index[14 * 64] = {};
  std::vector<uint8_t> body(2 * 32 * 64 * sizeof(float));
  mri_quant_encode_req req{};
  req.hdr.struct_size = sizeof(req);
  req.k = req.v = in.data(), req.index = index, req.body = body.data();
  req.head_dim = 64, req.live_mask = UINT32_MAX;
  mri_error err{};
  err.struct_size = sizeof(err);
  EXPECT_EQ(peer.table->encode(peer.self, &req, &err), MRI_E_INTERNAL);
  EXPECT_THAT(std::string(err.msg), testing::HasSubstr("in 200 ms; the process was ended"));
}

}  // namespace
}  // namespace varve
