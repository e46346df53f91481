#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "mri/sdk/batching.hpp"
#include "mri/sdk/runtime.hpp"

namespace {

mri_error error() {
  mri_error err{};
  err.struct_size = sizeof(err);
  return err;
}

TEST(Guard, TurnsExceptionsIntoStatusAndText) {
  mri_error err = error();
  EXPECT_EQ(mri::guard(&err, [] {}), MRI_OK);
  EXPECT_EQ(mri::guard(&err, [] { return MRI_E_BUSY; }), MRI_E_BUSY);
  EXPECT_EQ(mri::guard(&err, [] { throw mri::Error(MRI_E_DEVICE, "disk"); }), MRI_E_DEVICE);
  EXPECT_STREQ(err.msg, "disk");
  EXPECT_EQ(err.status, MRI_E_DEVICE);
  EXPECT_EQ(err.msg_len, 4u);
  EXPECT_EQ(mri::guard(&err, [] { throw std::bad_alloc(); }), MRI_E_NOMEM);
  EXPECT_EQ(mri::guard(&err, [] { throw std::out_of_range("row 9"); }), MRI_E_INTERNAL);
  EXPECT_STREQ(err.msg, "row 9");
  EXPECT_EQ(mri::guard(nullptr, [] { throw 1; }), MRI_E_INTERNAL);
}

TEST(SetError, CutsBetweenCharacters) {
  mri_error err = error();
  mri::set_error(&err, MRI_E_ARG, std::string(238, 'x') + "é");
  EXPECT_EQ(err.msg_len, 238u);
  EXPECT_STREQ(err.msg, std::string(238, 'x').c_str());
  mri::set_error(&err, MRI_E_ARG, std::string(239, 'x'));
  EXPECT_EQ(err.msg_len, 239u);
  err.struct_size = 8;
  EXPECT_EQ(mri::set_error(&err, MRI_E_BUSY, "not written"), MRI_E_BUSY);
  EXPECT_EQ(err.status, MRI_E_ARG);
}

TEST(Sizes, RequestReadsZeroBehindTheCallersEnd) {
  mri_evict_req raw{};
  raw.hdr.struct_size = sizeof(raw);
  raw.reason = 2;
  EXPECT_EQ((*mri::Request(&raw)).reason, 2u);
  EXPECT_EQ(mri::Request(&raw).seen(), sizeof(raw));
  raw.hdr.struct_size = sizeof(raw) + 4096;
  EXPECT_EQ(mri::Request(&raw).seen(), sizeof(raw));
  raw.hdr.struct_size = sizeof(raw) - 1;
  EXPECT_THROW(mri::Request<mri_evict_req>{&raw}, mri::Error);
  const mri_evict_req* volatile none = nullptr;  // volatile: gcc warns of what is tested here
  EXPECT_THROW(mri::Request<mri_evict_req>{none}, mri::Error);
}

TEST(Sizes, ResponseToA10CallerStaysInItsBytes) {
  std::array<mri_evict_rsp, 2> memory;
  std::memset(memory.data(), 0xa5, sizeof(memory));
  std::memset(memory.data(), 0, MRI_EVICT_RSP_SIZE_1_0);
  mri_evict_rsp* raw = memory.data();
  raw->hdr.struct_size = MRI_EVICT_RSP_SIZE_1_0;
  {
    mri::Response<mri_evict_rsp> out(raw, 24);
    (*out).n_evicted = 3;
    (*out).confirm_state = MRI_CONFIRM_DONE;
    (*out).confirm_epoch = 1;
  }
  EXPECT_EQ(raw->n_evicted, 3u);
  EXPECT_EQ(raw->hdr.written, MRI_EVICT_RSP_SIZE_1_0);
  EXPECT_EQ(raw->hdr.req_seen, 24u);
  EXPECT_EQ(raw->confirm_state, 0xa5a5a5a5u) << "not the caller's promise to have";
  EXPECT_FALSE(mri::has(*raw, &mri_evict_rsp::confirm_state));
  EXPECT_TRUE(mri::has(*raw, &mri_evict_rsp::bytes_freed));
}

TEST(Sizes, ResponseKeepsWhatTheCallerSetInIt) {
  mri_batch_pick pick{};
  mri_batch_rsp raw{};
  raw.hdr.struct_size = sizeof(raw);
  raw.picks = &pick;
  raw.capacity = 1;
  { mri::Response<mri_batch_rsp> out(&raw, 8); }
  EXPECT_EQ(raw.picks, &pick);
  EXPECT_EQ(raw.capacity, 1u);
}

TEST(Writer, CountsPastTheEnd) {
  std::array<int, 2> room{};
  uint64_t n = 99;
  mri::Writer<int> writer(room.data(), room.size(), &n);
  for (const int value : {5, 6, 7}) writer.push(value);
  EXPECT_EQ(writer.status(), MRI_E_SPACE);
  EXPECT_EQ(n, 3u);
  EXPECT_EQ(room[1], 6);
}

constexpr mri_param_desc kKnown[] = {
    mri::param_int("depth", 4, 0, 8, ""), mri::param_float("rate", 0.5, 0, 1, ""),
    mri::param_bool("fast", true, ""), mri::param_string("mode", "a", "a|b", "")};

mri_param value(const char* key, uint32_t type) {
  mri_param param{};
  param.key = key;
  param.type = type;
  return param;
}

TEST(Params, GivesDefaultsAndValues) {
  const mri::Params defaults(kKnown, nullptr, 0);
  EXPECT_EQ(defaults.get<int>("depth"), 4);
  EXPECT_EQ(defaults.get<float>("rate"), 0.5f);
  EXPECT_TRUE(defaults.get<bool>("fast"));
  EXPECT_EQ(defaults.get<std::string>("mode"), "a");
  EXPECT_THROW(defaults.get<int>("deepness"), mri::Error);
  EXPECT_THROW(defaults.get<bool>("depth"), mri::Error);

  mri_param depth = value("depth", MRI_PARAM_INT), mode = value("mode", MRI_PARAM_STRING);
  depth.int_value = 7;
  mode.string_value = "b";
  const mri_param given[] = {depth, mode};
  const mri::Params params(kKnown, given, 2);
  EXPECT_EQ(params.get<uint32_t>("depth"), 7u);
  EXPECT_EQ(params.get<std::string>("mode"), "b");
}

TEST(Params, RefusesWhatAHostShouldHaveCaught) {
  mri_param depth = value("depth", MRI_PARAM_INT);
  depth.int_value = 9;
  EXPECT_THROW(mri::Params(kKnown, &depth, 1), mri::Error);
  mri_param rate = value("rate", MRI_PARAM_FLOAT);
  rate.float_value = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(mri::Params(kKnown, &rate, 1), mri::Error);
  const mri_param wrong_type = value("depth", MRI_PARAM_BOOL);
  EXPECT_THROW(mri::Params(kKnown, &wrong_type, 1), mri::Error);
  const mri_param unknown = value("width", MRI_PARAM_INT), no_key = value(nullptr, MRI_PARAM_INT);
  EXPECT_THROW(mri::Params(kKnown, &unknown, 1), mri::Error);
  EXPECT_THROW(mri::Params(kKnown, &no_key, 1), mri::Error);
  EXPECT_THROW(mri::Params(kKnown, nullptr, 1), mri::Error);
}

TEST(Host, DoesWithoutAnyService) {
  mri_host raw{};
  raw.get_interface = [](const mri_host*, const char*) -> const void* { return nullptr; };
  const mri::Host host(&raw);
  host.log(MRI_LOG_ERROR, "to nobody");
  host.record(host.define_metric(MRI_METRIC_COUNTER, "x", ""), 1);
  EXPECT_EQ(host.concurrency(), 1u);
  uint64_t sum = 0;
  host.parallel_for(5, [&](uint64_t i, uint32_t worker) { sum += i + worker; });
  EXPECT_EQ(sum, 10u);
  EXPECT_THROW(host.kernels(), mri::Error);
  EXPECT_FALSE(host.peer<mri_batching_v1>(MRI_BATCHING));
}

// The whole glue around a class, called as a host would.
class Counting {
 public:
  static inline int alive = 0;
  Counting(mri::Host, const mri::Params&) { ++alive; }
  ~Counting() { --alive; }
  mri_status next_step(const mri_batch_req&, mri_batch_rsp&) { return MRI_OK; }
  static void caps(mri_caps& caps) { caps.determinism = 3; }
};
using CountingPlugin = mri::Plugin<Counting, mri::kind::batching<Counting>, mri::kNoParams>;

TEST(Plugin, FollowsTheLifecycle) {
  mri_host host{};
  host.get_interface = [](const mri_host*, const char*) -> const void* { return nullptr; };
  mri_plugin* plugin = nullptr;
  mri_error err = error();
  EXPECT_EQ(CountingPlugin::open(&host, MRI_1_1, nullptr, &err), MRI_E_ARG);
  ASSERT_EQ(CountingPlugin::open(&host, MRI_1_1, &plugin, &err), MRI_OK);
  const auto* table =
      static_cast<const mri_batching_v1*>(plugin->get_interface(plugin->self, MRI_BATCHING));
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(plugin->get_interface(plugin->self, "mri.batching/2"), nullptr);

  mri_batch_req req{};
  req.hdr.struct_size = sizeof(req);
  mri_batch_rsp rsp{};
  rsp.hdr.struct_size = sizeof(rsp);
  EXPECT_EQ(table->next_step(plugin->self, &req, &rsp, &err), MRI_E_STATE) << "before activate";
  EXPECT_EQ(plugin->activate(plugin->self, nullptr, 0, &err), MRI_OK);
  EXPECT_EQ(plugin->activate(plugin->self, nullptr, 0, &err), MRI_E_STATE) << "twice";
  EXPECT_EQ(table->next_step(plugin->self, &req, &rsp, &err), MRI_OK);
  EXPECT_EQ(rsp.hdr.written, sizeof(rsp));
  EXPECT_EQ(rsp.hdr.req_seen, sizeof(req));

  mri_caps caps{};
  caps.hdr.struct_size = sizeof(caps);
  EXPECT_EQ(plugin->query_caps(plugin->self, &caps, &err), MRI_OK);
  EXPECT_EQ(caps.determinism, 3u);
  EXPECT_EQ(caps.thread_model, 2u);
  EXPECT_EQ(plugin->drain(plugin->self, 1, &err), MRI_OK);
  EXPECT_EQ(Counting::alive, 1);
  plugin->close(plugin->self);
  EXPECT_EQ(Counting::alive, 0);
}

}  // namespace
