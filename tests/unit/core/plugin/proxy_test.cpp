#include "core/plugin/proxy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

namespace varve {
namespace {

using testing::HasSubstr;

template <class T>
T sized() {
  T value{};
  value.hdr.struct_size = sizeof(T);
  return value;
}

mri_error error() {
  mri_error err{};
  err.struct_size = sizeof(err);
  return err;
}

// A runtime, attention and text plugin whose answers a test sets.
struct Fake {
  std::function<mri_status(const mri_step_req&, mri_step_rsp&)> step;
  std::string step_text;  // raw: without an end when it fills the room
  std::function<mri_status(mri_evict_rsp&)> evict;
  std::function<void()> release = [] { throw 5; };
  std::function<mri_status(mri_attn_plan&)> plan;
  std::function<mri_status(uint64_t* n_out)> tokenize;

  static Fake& of(void* self) { return *static_cast<Fake*>(self); }
};

const mri_runtime_v1 kRuntime = {
    sizeof(mri_runtime_v1),
    0,
    [](void*, const mri_init_req* req, mri_init_rsp* rsp, mri_error*) -> mri_status {
      rsp->ctx = req->seed;
      rsp->hdr.written = sizeof(*rsp);
      rsp->hdr.req_seen = sizeof(*req);
      return MRI_OK;
    },
    [](void* self, const mri_step_req* req, mri_step_rsp* rsp, mri_error* err) {
      std::memcpy(err->msg, Fake::of(self).step_text.data(), Fake::of(self).step_text.size());
      rsp->hdr.written = sizeof(*rsp);
      rsp->hdr.req_seen = sizeof(*req);
      return Fake::of(self).step(*req, *rsp);
    },
    [](void*, uint64_t, const mri_summary_req* req, mri_summary_rsp* rsp,
       mri_error*) -> mri_status {
      rsp->hdr.written = sizeof(*rsp);
      rsp->hdr.req_seen = sizeof(*req);
      rsp->n_out = 5;
      return MRI_OK;
    },
    [](void* self, uint64_t, const mri_evict_req* req, mri_evict_rsp* rsp, mri_error*) {
      rsp->hdr.req_seen = sizeof(*req);
      return Fake::of(self).evict(*rsp);
    },
    [](void* self, uint64_t) { Fake::of(self).release(); }};

const mri_attention_v1 kAttention = {
    sizeof(mri_attention_v1), 0,
    [](void* self, const mri_attn_req* req, mri_attn_plan* plan, mri_error*) {
      plan->hdr.written = sizeof(*plan);
      plan->hdr.req_seen = sizeof(*req);
      return Fake::of(self).plan(*plan);
    },
    [](void*, const mri_attn_req*, const mri_attn_plan*, mri_error*) -> mri_status {
      return MRI_OK;
    }};

const mri_text_v1 kText = {
    sizeof(mri_text_v1),
    0,
    nullptr,
    [](void* self, const char*, uint64_t, uint32_t, uint32_t, int32_t*, uint64_t, uint64_t* n_out,
       mri_error*) { return Fake::of(self).tokenize(n_out); },
    nullptr,
    nullptr,
    nullptr};

class ProxyTest : public testing::Test {
 protected:
  ProxyTest() : port_("runtime-fake", {}) {
    port_.self = &fake_;
    port_.table = &kRuntime;
    port_.text = &kText;
    port_.negotiated = MRI_1_1;
    port_.guard.set_state(PluginState::kActive);
  }

  mri_status step(std::vector<mri_step_seq> seqs, mri_error* err) {
    auto req = sized<mri_step_req>();
    auto rsp = sized<mri_step_rsp>();
    req.seqs = seqs.data();
    req.n_seqs = seqs.size();
    return kRuntimeProxy.forward_step(&port_, &req, &rsp, err);
  }

  Fake fake_;
  PluginPort port_;
};

mri_step_seq seq(uint64_t ctx) {
  mri_step_seq seq{};
  seq.ctx = ctx;
  return seq;
}

TEST_F(ProxyTest, RefusesCallsBeforeActivateAndAfterDrain) {
  fake_.step = [](auto&, auto&) -> mri_status { return MRI_OK; };
  mri_error err = error();
  EXPECT_EQ(step({seq(1)}, &err), MRI_OK);
  port_.guard.set_state(PluginState::kDrained);
  EXPECT_EQ(step({seq(1)}, &err), MRI_E_STATE);
  EXPECT_THAT(err.msg, HasSubstr("runtime-fake: called after drain"));
  port_.guard.set_state(PluginState::kOpened);
  EXPECT_EQ(step({seq(1)}, &err), MRI_E_STATE);
  EXPECT_THAT(err.msg, HasSubstr("before activate"));
  EXPECT_EQ(port_.guard.misbehaved(), 0u) << "the caller's fault";
}

TEST_F(ProxyTest, AllowsOneStepPerContextAtATime) {
  std::atomic<int> inside{0};
  std::atomic<bool> go{false};
  fake_.step = [&](auto&, auto&) -> mri_status {
    inside.fetch_add(1);
    while (!go) std::this_thread::yield();
    return MRI_OK;
  };
  mri_status first = -1, other = -1;
  std::thread one([&] { first = step({seq(7), seq(8)}, nullptr); });
  while (inside < 1) std::this_thread::yield();

  mri_error err = error();
  EXPECT_EQ(step({seq(9), seq(8)}, &err), MRI_E_STATE);
  EXPECT_THAT(err.msg, HasSubstr("context 8"));
  auto req = sized<mri_summary_req>();
  auto rsp = sized<mri_summary_rsp>();
  req.capacity = 5;
  EXPECT_EQ(kRuntimeProxy.get_kv_summary(&port_, 7, &req, &rsp, &err), MRI_E_STATE);
  EXPECT_EQ(kRuntimeProxy.get_kv_summary(&port_, 9, &req, &rsp, &err), MRI_OK);

  std::thread two([&] { other = step({seq(9)}, nullptr); });  // another context is free to run
  while (inside < 2) std::this_thread::yield();
  go = true;
  one.join();
  two.join();
  EXPECT_EQ(first, MRI_OK);
  EXPECT_EQ(other, MRI_OK);
  EXPECT_EQ(step({seq(7), seq(8), seq(9)}, &err), MRI_OK) << "all are free again";
  EXPECT_EQ(step({seq(7), seq(7)}, &err), MRI_E_STATE) << "named twice";
  EXPECT_EQ(step({seq(0)}, &err), MRI_E_NOT_FOUND);
}

TEST_F(ProxyTest, ForgetsAContextEvenWhenThePluginRewritesTheRequest) {
  fake_.step = [](const mri_step_req& req, auto&) -> mri_status {
    req.seqs[0].ctx = 99;
    return MRI_OK;
  };
  mri_error err = error();
  EXPECT_EQ(step({seq(7)}, &err), MRI_OK);
  EXPECT_EQ(step({seq(7)}, &err), MRI_OK) << err.msg;
}

TEST_F(ProxyTest, ContainsExceptionsAndCountsThem) {
  fake_.step = [](auto&, auto&) -> mri_status { throw std::runtime_error("lost \xff weight"); };
  mri_error err = error();
  EXPECT_EQ(step({seq(1)}, &err), MRI_E_INTERNAL);
  EXPECT_STREQ(err.msg, "runtime-fake: lost ? weight");
  kRuntimeProxy.release_context(&port_, 1);
  EXPECT_EQ(port_.guard.misbehaved(), 2u);
  fake_.step = [](auto&, auto&) -> mri_status { return MRI_OK; };
  EXPECT_EQ(step({seq(1)}, &err), MRI_OK) << "the context was released";
}

TEST_F(ProxyTest, ReplacesUnknownStatusOfASequence) {
  fake_.step = [](const mri_step_req& req, auto&) -> mri_status {
    req.seqs[0].status = 4242;
    return MRI_OK;
  };
  std::vector<mri_step_seq> seqs = {seq(1)};
  auto req = sized<mri_step_req>();
  auto rsp = sized<mri_step_rsp>();
  req.seqs = seqs.data();
  req.n_seqs = 1;
  EXPECT_EQ(kRuntimeProxy.forward_step(&port_, &req, &rsp, nullptr), MRI_E_INTERNAL);
  EXPECT_EQ(seqs[0].status, MRI_E_INTERNAL);
}

TEST_F(ProxyTest, CleansTheTextOfASequenceThatFailed) {
  fake_.step = [](const mri_step_req& req, auto&) -> mri_status {
    req.seqs[0].status = MRI_E_DEVICE;
    return MRI_OK;
  };
  mri_error err = error();
  fake_.step_text = std::string(sizeof(err.msg), '\xff');
  EXPECT_EQ(step({seq(1), seq(2)}, &err), MRI_OK);
  EXPECT_EQ(std::string(err.msg, strnlen(err.msg, sizeof(err.msg))),
            std::string(sizeof(err.msg) - 1, '?'));
  EXPECT_EQ(err.status, MRI_OK);
}

TEST_F(ProxyTest, RefusesNullAndShortStructs) {
  mri_error err = error();
  auto req = sized<mri_step_req>();
  auto rsp = sized<mri_step_rsp>();
  EXPECT_EQ(kRuntimeProxy.forward_step(&port_, nullptr, &rsp, &err), MRI_E_ARG);
  EXPECT_EQ(kRuntimeProxy.forward_step(&port_, &req, nullptr, &err), MRI_E_ARG);
  EXPECT_EQ(kRuntimeProxy.forward_step(&port_, &req, &rsp, &err), MRI_E_ARG) << "no sequences";
  rsp.hdr.struct_size = 16;
  EXPECT_EQ(kRuntimeProxy.forward_step(&port_, &req, &rsp, &err), MRI_E_ARG);
  auto init = sized<mri_init_req>();
  auto made = sized<mri_init_rsp>();
  EXPECT_EQ(kRuntimeProxy.init_context(&port_, &init, &made, &err), MRI_E_INTERNAL) << "ctx 0";
}

// What the host may believe about an eviction (rows of the table in mri/README.md).
class ConfirmationTest : public ProxyTest {
 protected:
  ConfirmationTest() { make_context(); }

  // Context 1, of 32 tokens.
  void make_context() {
    auto req = sized<mri_init_req>();
    req.seed = 1;
    req.n_tokens = 32;
    auto rsp = sized<mri_init_rsp>();
    EXPECT_EQ(kRuntimeProxy.init_context(&port_, &req, &rsp, nullptr), MRI_OK);
  }

  mri_evict_rsp evict(uint32_t written, uint32_t state) {
    fake_.evict = [=](mri_evict_rsp& rsp) -> mri_status {
      size_seen_ = rsp.hdr.struct_size;
      rsp.n_evicted = 32;
      if (written > MRI_EVICT_RSP_SIZE_1_0) {
        rsp.confirm_state = state;
        rsp.confirm_epoch = 9;
      }
      rsp.hdr.written = written;
      return MRI_OK;
    };
    auto req = sized<mri_evict_req>();
    req.ranges = &range_;
    req.n_ranges = 1;
    auto rsp = sized<mri_evict_rsp>();
    status_ = kRuntimeProxy.evict_kv(&port_, 1, &req, &rsp, nullptr);
    return rsp;
  }
  const mri_token_range range_{0, 32};
  static inline uint32_t size_seen_;
  mri_status status_;
};

TEST_F(ConfirmationTest, ANumberMayBeUsedAgainAtOnce) {
  fake_.release = [this] { make_context(); };  // another thread's, before release_context returns
  kRuntimeProxy.release_context(&port_, 1);
  evict(MRI_EVICT_RSP_SIZE_1_1, MRI_CONFIRM_DONE);
  EXPECT_EQ(status_, MRI_OK);
}

TEST_F(ConfirmationTest, IsBelievedWhenWritten) {
  const mri_evict_rsp rsp = evict(MRI_EVICT_RSP_SIZE_1_1, MRI_CONFIRM_DONE);
  EXPECT_EQ(status_, MRI_OK);
  EXPECT_EQ(rsp.confirm_state, MRI_CONFIRM_DONE);
  EXPECT_EQ(rsp.confirm_epoch, 9u);
}

TEST_F(ConfirmationTest, IsUnknownWhenAbsentWhateverTheMemoryHolds) {
  fake_.evict = [](mri_evict_rsp& rsp) -> mri_status {
    rsp.confirm_state = MRI_CONFIRM_DONE;  // behind what it says it wrote
    rsp.hdr.written = MRI_EVICT_RSP_SIZE_1_0;
    return MRI_OK;
  };
  auto req = sized<mri_evict_req>();
  auto rsp = sized<mri_evict_rsp>();
  EXPECT_EQ(kRuntimeProxy.evict_kv(&port_, 1, &req, &rsp, nullptr), MRI_OK);
  EXPECT_EQ(rsp.confirm_state, MRI_CONFIRM_UNKNOWN);
}

TEST_F(ConfirmationTest, IsUnknownFromAPluginOf10WhichSeesTheOldSize) {
  port_.negotiated = MRI_1_0;
  const mri_evict_rsp rsp = evict(MRI_EVICT_RSP_SIZE_1_0, 0);
  EXPECT_EQ(size_seen_, MRI_EVICT_RSP_SIZE_1_0);
  EXPECT_EQ(rsp.hdr.struct_size, sizeof(mri_evict_rsp)) << "the caller's size is restored";
  EXPECT_EQ(rsp.n_evicted, 32u);
  EXPECT_EQ(rsp.confirm_state, MRI_CONFIRM_UNKNOWN);
}

TEST_F(ConfirmationTest, IsUnknownForAnUnknownValue) {
  EXPECT_EQ(evict(MRI_EVICT_RSP_SIZE_1_1, 17).confirm_state, MRI_CONFIRM_UNKNOWN);
}

TEST(ContextLengths, TellWhatAnEvictionCanTake) {
  const auto evictable = [](const ContextLengths& lengths, std::vector<mri_token_range> ranges) {
    return lengths.evictable(7, ranges);
  };
  ContextLengths lengths;
  lengths.grow(7, 100);
  EXPECT_EQ(evictable(lengths, {{0, 100}}), 0u) << "there is no such context";
  lengths.begin(7, 2000);
  EXPECT_EQ(evictable(lengths, {}), 0u);
  EXPECT_EQ(evictable(lengths, {{0, 0}, {2000, 1}, {UINT64_MAX, UINT64_MAX}}), 0u);
  EXPECT_EQ(evictable(lengths, {{1030, 1}}), 2000u - 1024u) << "a segment, as far as there is one";
  EXPECT_EQ(evictable(lengths, {{1000, 100}}), 2000u);
  EXPECT_EQ(evictable(lengths, {{1999, UINT64_MAX}, {0, 1}}), 2000u);
  lengths.grow(7, 100);
  EXPECT_EQ(evictable(lengths, {{2048, 1}}), 52u);
  lengths.end(7);
  EXPECT_EQ(evictable(lengths, {{0, 100}}), 0u);
}

TEST_F(ProxyTest, ChecksEveryNumberOfAPlan) {
  port_.table = &kAttention;
  mri_attn_seq sequence{};
  sequence.n_blocks = 4;
  sequence.n_queries = 2;
  auto req = sized<mri_attn_req>();
  req.seqs = &sequence;
  req.n_seqs = 1;
  req.n_kv_heads = 3;
  mri_attn_item item;
  mri_attn_entry entry;
  const auto plan_with = [&](mri_attn_item i, mri_attn_entry e, uint64_t n_entries) {
    auto plan = sized<mri_attn_plan>();
    plan.items = &item;
    plan.entries = &entry;
    plan.items_capacity = plan.entries_capacity = 1;
    fake_.plan = [&](mri_attn_plan& out) -> mri_status {
      out.items[0] = i;
      out.entries[0] = e;
      out.n_items = 1;
      out.n_entries = n_entries;
      return MRI_OK;
    };
    return kAttentionProxy.plan(&port_, &req, &plan, nullptr);
  };
  const mri_attn_item good_item{0, 2, 0, 2, 0, 1, 0, 0};
  const mri_attn_entry good_entry{MRI_ATTN_BLOCKS, 1, 3, 0, 0};
  EXPECT_EQ(plan_with(good_item, good_entry, 1), MRI_OK);
  EXPECT_EQ(plan_with(good_item, good_entry, 2), MRI_E_INTERNAL) << "more than the arrays hold";
  EXPECT_EQ(plan_with({1, 2, 0, 2, 0, 1, 0, 0}, good_entry, 1), MRI_E_INTERNAL) << "sequence";
  EXPECT_EQ(plan_with({0, 3, 0, 2, 0, 1, 0, 0}, good_entry, 1), MRI_E_INTERNAL) << "KV head";
  EXPECT_EQ(plan_with({0, 2, 1, 2, 0, 1, 0, 0}, good_entry, 1), MRI_E_INTERNAL) << "query";
  EXPECT_EQ(plan_with({0, 2, 0, 2, 1, 1, 0, 0}, good_entry, 1), MRI_E_INTERNAL) << "entry";
  EXPECT_EQ(plan_with(good_item, {MRI_ATTN_BLOCKS, 2, 3, 0, 0}, 1), MRI_E_INTERNAL) << "block";
  EXPECT_EQ(plan_with(good_item, {MRI_ATTN_BLOCKS, UINT32_MAX, 3, 0, 0}, 1), MRI_E_INTERNAL);
  EXPECT_EQ(plan_with(good_item, {MRI_ATTN_SUMMARY, 0, 1, 0, 0}, 1), MRI_E_INTERNAL) << "summary";
  EXPECT_EQ(plan_with(good_item, {7, 0, 1, 0, 0}, 1), MRI_E_INTERNAL) << "unknown entry";
}

TEST_F(ProxyTest, ChecksTheCountOfTextFunctions) {
  uint64_t n = 0;
  mri_error err = error();
  fake_.tokenize = [](uint64_t* n_out) -> mri_status { return *n_out = 9, MRI_OK; };
  EXPECT_EQ(kTextProxy.tokenize(&port_, "", 0, 0, 0, nullptr, 8, &n, &err), MRI_E_INTERNAL);
  EXPECT_EQ(n, 0u);
  fake_.tokenize = [](uint64_t* n_out) -> mri_status { return *n_out = 9, MRI_E_SPACE; };
  EXPECT_EQ(kTextProxy.tokenize(&port_, "", 0, 0, 0, nullptr, 8, &n, &err), MRI_E_SPACE);
  EXPECT_EQ(n, 9u);
  EXPECT_EQ(kTextProxy.tokenize(&port_, "", 0, 0, 0, nullptr, 8, nullptr, &err), MRI_E_ARG);
}

TEST(IsComplete, WantsSizeAndEveryFunction) {
  mri_attention_v1 table = kAttention;
  EXPECT_TRUE(is_complete(&table, sizeof(table), 8));
  table.run = nullptr;
  EXPECT_FALSE(is_complete(&table, sizeof(table), 8));
  table = kAttention;
  table.struct_size = sizeof(table) - 1;
  EXPECT_FALSE(is_complete(&table, sizeof(table), 8));
  EXPECT_FALSE(is_complete(nullptr, sizeof(table), 8));
}

}  // namespace
}  // namespace varve
