// Proxies of what a runtime may offer: sampling, memory, timings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "core/plugin/proxy.h"

namespace varve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <class T>
T sized() {
  T value{};
  value.hdr.struct_size = sizeof(T);
  return value;
}

// A runtime whose answers a test sets.
struct Fake {
  uint64_t number = 0;  // of the sampler or context that it hands out
  uint64_t n_tokens = 0;
  int32_t token = 0;
  mri_status status = MRI_OK;
  std::function<void()> inside;  // called by keep, shrink, enable and read
  std::vector<uint64_t> released;

  static Fake& of(void* self) { return *static_cast<Fake*>(self); }
  mri_status enter() {
    if (inside) inside();
    return status;
  }
};

const mri_sampling_v1 kSampling = {
    sizeof(mri_sampling_v1),
    0,
    [](void* self, const mri_sampler_req*, uint64_t* sampler, mri_error*) {
      *sampler = Fake::of(self).number;
      return Fake::of(self).status;
    },
    [](void* self, uint64_t, const float*, int32_t* token, mri_error*) {
      *token = Fake::of(self).token;
      return Fake::of(self).status;
    },
    [](void*, uint64_t, const int32_t*, uint64_t, mri_error*) -> mri_status { throw 5; },
    [](void*, uint64_t) { throw 5; }};

const mri_memory_v1 kMemory = {
    sizeof(mri_memory_v1),
    0,
    [](void* self, const mri_reuse_req* req, mri_reuse_rsp* rsp, mri_error*) {
      rsp->ctx = Fake::of(self).number;
      rsp->n_tokens = Fake::of(self).n_tokens;
      rsp->hdr.written = sizeof(*rsp);
      rsp->hdr.req_seen = sizeof(*req);
      return Fake::of(self).status;
    },
    [](void* self, uint64_t, const mri_prefix_key*, uint64_t, uint32_t, mri_error*) {
      return Fake::of(self).enter();
    },
    [](void* self, const mri_prefix_key*, mri_error*) { return Fake::of(self).status; },
    [](void* self, uint64_t, uint64_t wanted, uint64_t* freed, mri_error*) {
      *freed = wanted;
      return Fake::of(self).enter();
    },
    [](void*, mri_memory_usage* out, mri_error*) -> mri_status {
      out->hdr.written = out->hdr.struct_size + 8;
      return MRI_OK;
    }};

const mri_timings_v1 kTimings = {
    sizeof(mri_timings_v1), 0,
    [](void* self, uint64_t, uint32_t, mri_error*) { return Fake::of(self).enter(); },
    [](void* self, uint64_t, mri_timings* out, mri_error*) {
      out->hdr.written = out->hdr.req_seen = sizeof(*out);
      return Fake::of(self).enter();
    }};

mri_runtime_v1 releasing_runtime() {
  mri_runtime_v1 table{};
  table.struct_size = sizeof(table);
  table.release_context = [](void* self, uint64_t ctx) { Fake::of(self).released.push_back(ctx); };
  return table;
}

class OptionalProxyTest : public testing::Test {
 protected:
  OptionalProxyTest() : port_("runtime-fake", {}) {
    port_.self = &fake_;
    port_.table = &runtime_;
    port_.sampling = &kSampling;
    port_.memory = &kMemory;
    port_.timings = &kTimings;
    port_.guard.set_state(PluginState::kActive);
    err_.struct_size = sizeof(err_);
  }

  mri_status reuse(uint64_t ctx, uint64_t n_tokens, uint64_t n_keys = 4) {
    fake_.number = ctx;
    fake_.n_tokens = n_tokens;
    const std::vector<mri_prefix_key> keys(n_keys);
    auto req = sized<mri_reuse_req>();
    req.keys = keys.data();
    req.n_keys = n_keys;
    rsp_ = sized<mri_reuse_rsp>();
    return kMemoryProxy.reuse(&port_, &req, &rsp_, &err_);
  }

  const mri_runtime_v1 runtime_ = releasing_runtime();
  Fake fake_;
  PluginPort port_;
  mri_error err_{};
  mri_reuse_rsp rsp_{};
};

TEST_F(OptionalProxyTest, SamplersHaveNumbersAndTokensAreNotNegative) {
  const auto req = sized<mri_sampler_req>();
  uint64_t sampler = 9;
  EXPECT_EQ(kSamplingProxy.create(&port_, &req, &sampler, &err_), MRI_E_INTERNAL);
  EXPECT_THAT(err_.msg, HasSubstr("sampler with number 0"));
  fake_.number = 3;
  EXPECT_EQ(kSamplingProxy.create(&port_, &req, &sampler, &err_), MRI_OK);
  EXPECT_EQ(sampler, 3u);
  fake_.status = MRI_E_ARG;
  EXPECT_EQ(kSamplingProxy.create(&port_, &req, &sampler, &err_), MRI_E_ARG);
  EXPECT_EQ(sampler, 0u);
  EXPECT_EQ(kSamplingProxy.create(&port_, nullptr, &sampler, &err_), MRI_E_ARG);
  EXPECT_EQ(kSamplingProxy.create(&port_, &req, nullptr, &err_), MRI_E_ARG);

  fake_.status = MRI_OK;
  const float logits[4] = {};
  int32_t token = 0;
  fake_.token = 2;
  EXPECT_EQ(kSamplingProxy.sample(&port_, 3, logits, &token, &err_), MRI_OK);
  EXPECT_EQ(token, 2);
  fake_.token = -2;
  EXPECT_EQ(kSamplingProxy.sample(&port_, 3, logits, &token, &err_), MRI_E_INTERNAL);
  fake_.status = MRI_E_STATE;
  EXPECT_EQ(kSamplingProxy.sample(&port_, 3, logits, &token, &err_), MRI_E_STATE);
  EXPECT_EQ(kSamplingProxy.sample(&port_, 3, nullptr, &token, &err_), MRI_E_ARG);
  EXPECT_EQ(kSamplingProxy.accept(&port_, 3, nullptr, 1, &err_), MRI_E_ARG);
}

TEST_F(OptionalProxyTest, ContainsExceptions) {
  EXPECT_EQ(kSamplingProxy.accept(&port_, 3, nullptr, 0, &err_), MRI_E_INTERNAL);
  kSamplingProxy.release(&port_, 3);
  EXPECT_EQ(port_.guard.misbehaved(), 2u);
}

TEST_F(OptionalProxyTest, ReusedPrefixesAreWholeBlocksThatWereAskedFor) {
  EXPECT_EQ(reuse(7, 128), MRI_OK);
  EXPECT_EQ(rsp_.ctx, 7u);
  EXPECT_EQ(reuse(0, 0), MRI_OK);
  EXPECT_EQ(fake_.released.size(), 0u);
  EXPECT_EQ(reuse(8, 33), MRI_E_INTERNAL);
  EXPECT_EQ(rsp_.ctx, 0u) << "nobody may go on with it";
  EXPECT_EQ(reuse(9, 160), MRI_E_INTERNAL) << "more than there are keys";
  EXPECT_EQ(reuse(10, 0), MRI_E_INTERNAL);
  EXPECT_THAT(fake_.released, ElementsAre(8, 9, 10));
  EXPECT_EQ(reuse(0, 32), MRI_E_INTERNAL);
  const auto req = sized<mri_reuse_req>();
  EXPECT_EQ(kMemoryProxy.reuse(&port_, &req, nullptr, &err_), MRI_E_ARG);
}

TEST_F(OptionalProxyTest, OneCallPerContextAtATime) {
  const mri_prefix_key key{};
  uint64_t freed = 0;
  auto timings = sized<mri_timings>();
  int n_checked = 0;
  // Inside a call on context 7, every other one on it is refused; context 8 is free.
  fake_.inside = [&] {
    if (n_checked++ > 0) return;
    EXPECT_EQ(kMemoryProxy.keep(&port_, 7, &key, 1, 0, nullptr), MRI_E_STATE);
    EXPECT_EQ(kMemoryProxy.shrink(&port_, 7, 5, &freed, nullptr), MRI_E_STATE);
    EXPECT_EQ(kTimingsProxy.enable(&port_, 7, 1, nullptr), MRI_E_STATE);
    EXPECT_EQ(kTimingsProxy.read(&port_, 7, &timings, nullptr), MRI_E_STATE);
    EXPECT_EQ(kTimingsProxy.enable(&port_, 8, 1, nullptr), MRI_OK);
    EXPECT_EQ(kMemoryProxy.shrink(&port_, 0, 5, &freed, nullptr), MRI_OK) << "of no context";
  };
  EXPECT_EQ(kMemoryProxy.keep(&port_, 7, &key, 1, 0, &err_), MRI_OK);
  n_checked = 0;
  EXPECT_EQ(kMemoryProxy.shrink(&port_, 7, 5, &freed, &err_), MRI_OK);
  EXPECT_EQ(freed, 5u);
  n_checked = 0;
  EXPECT_EQ(kTimingsProxy.enable(&port_, 7, 1, &err_), MRI_OK);
  n_checked = 0;
  EXPECT_EQ(kTimingsProxy.read(&port_, 7, &timings, &err_), MRI_OK);
  EXPECT_EQ(kTimingsProxy.read(&port_, 0, &timings, &err_), MRI_E_NOT_FOUND);
  EXPECT_EQ(kMemoryProxy.keep(&port_, 7, nullptr, 1, 0, &err_), MRI_E_ARG);
  EXPECT_EQ(kMemoryProxy.shrink(&port_, 7, 5, nullptr, &err_), MRI_E_ARG);
  EXPECT_EQ(kMemoryProxy.forget(&port_, nullptr, &err_), MRI_E_ARG);
}

TEST_F(OptionalProxyTest, ChecksSizesAndState) {
  auto usage = sized<mri_memory_usage>();
  EXPECT_EQ(kMemoryProxy.usage(&port_, &usage, &err_), MRI_E_INTERNAL);
  EXPECT_THAT(err_.msg, HasSubstr("more bytes than there are"));
  usage.hdr.struct_size = 16;
  EXPECT_EQ(kMemoryProxy.usage(&port_, &usage, &err_), MRI_E_ARG);
  port_.guard.set_state(PluginState::kDrained);
  EXPECT_EQ(reuse(7, 32), MRI_E_STATE);
  EXPECT_EQ(kTimingsProxy.enable(&port_, 7, 1, &err_), MRI_E_STATE);
}

TEST(OptionalInterfaces, AreFoundOnlyWhenComplete) {
  PluginPort port("runtime-fake", {});
  mri_timings_v1 partial = kTimings;
  partial.read = nullptr;
  for (const OptionalInterface& optional : optional_interfaces()) {
    EXPECT_FALSE(optional.is_offered(port));
    optional.accept(port, nullptr);
    EXPECT_FALSE(optional.is_offered(port));
    if (std::string_view(optional.id) != MRI_TIMINGS) continue;
    optional.accept(port, &partial);
    EXPECT_FALSE(optional.is_offered(port));
    optional.accept(port, &kTimings);
    EXPECT_TRUE(optional.is_offered(port));
    EXPECT_EQ(optional.proxy, &kTimingsProxy);
  }
}

}  // namespace
}  // namespace varve
