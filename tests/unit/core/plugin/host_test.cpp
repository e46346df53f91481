#include "core/plugin/host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "mri/sdk/host.hpp"
#include "mri/version.h"

namespace varve {
namespace {

struct Line {
  LogLevel level;
  std::string who, text;
};

class PluginHostTest : public testing::Test {
 protected:
  PluginHost make() {
    services_.log = [this](LogLevel level, std::string_view who, std::string_view text) {
      lines_.push_back({level, std::string(who), std::string(text)});
    };
    return PluginHost("quantizer-x", MRI_1_1, services_, {}, {});
  }
  template <class Table>
  const Table* find(const PluginHost& host, const char* id) {
    return static_cast<const Table*>(host.abi()->get_interface(host.abi(), id));
  }

  HostServices services_;
  std::vector<Line> lines_;
};

TEST_F(PluginHostTest, LogsWithThePluginsNameAndCleanText) {
  const PluginHost host = make();
  mri::Host(host.abi()).log(MRI_LOG_WARNING, "odd \xff scale");
  mri::Host(host.abi()).log(12345, "unknown level");
  ASSERT_EQ(lines_.size(), 2u);
  EXPECT_EQ(lines_[0].level, LogLevel::kWarning);
  EXPECT_EQ(lines_[0].who, "quantizer-x");
  EXPECT_EQ(lines_[0].text, "odd ? scale");
  EXPECT_EQ(lines_[1].level, LogLevel::kError);
}

TEST_F(PluginHostTest, LimitsLogLines) {
  const PluginHost host = make();
  for (int i = 0; i < 5000; ++i) mri::Host(host.abi()).log(MRI_LOG_INFO, "again");
  EXPECT_LT(lines_.size(), 5000u);
  EXPECT_THAT(lines_[kLogLinesPerSecondMax].text, testing::HasSubstr("too many"));
}

TEST_F(PluginHostTest, CountsMetrics) {
  const PluginHost host = make();
  const mri::Host plugin(host.abi());
  const uint32_t counter = plugin.define_metric(MRI_METRIC_COUNTER, "pages", "pages encoded");
  const uint32_t gauge = plugin.define_metric(MRI_METRIC_GAUGE, "level", "");
  EXPECT_GT(counter, 0u);
  EXPECT_EQ(plugin.define_metric(MRI_METRIC_COUNTER, "pages", ""), counter);
  EXPECT_EQ(plugin.define_metric(MRI_METRIC_GAUGE, "pages", ""), 0u) << "known as a counter";
  EXPECT_EQ(plugin.define_metric(MRI_METRIC_GAUGE, "Bad-Name", ""), 0u);
  EXPECT_EQ(plugin.define_metric(99, "kindless", ""), 0u);
  plugin.record(counter, 2);
  plugin.record(counter, 3);
  plugin.record(counter, -1);
  plugin.record(gauge, 7);
  plugin.record(gauge, 6);
  plugin.record(0, 1);
  plugin.record(4711, 1);
  const std::vector<MetricSample> samples = host.metrics();
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].value, 5);
  EXPECT_EQ(samples[0].count, 2u);
  EXPECT_EQ(samples[1].value, 6);
}

TEST_F(PluginHostTest, LimitsMetricsPerPlugin) {
  const PluginHost host = make();
  uint32_t defined = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::string name = absl::StrCat("m", i);
    defined += mri::Host(host.abi()).define_metric(MRI_METRIC_GAUGE, name.c_str(), "") != 0;
  }
  EXPECT_EQ(defined, kMetricsPerPluginMax);
}

TEST_F(PluginHostTest, BuffersAreAlignedZeroedAndWithinTheBudget) {
  services_.buffer_bytes_max = 10000;
  const PluginHost host = make();
  const auto* buffer = find<mri_host_buffer_v1>(host, MRI_HOST_BUFFER);
  for (const uint64_t align : {1, 2, 64, 4096}) {
    auto* p = static_cast<unsigned char*>(buffer->alloc(host.abi(), 1000, align, "test"));
    ASSERT_NE(p, nullptr) << align;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % align, 0u);
    for (int i = 0; i < 1000; ++i) ASSERT_EQ(p[i], 0);
    std::fill(p, p + 1000, 0xee);
    EXPECT_EQ(host.buffer_bytes(), 1000u);
    buffer->release(host.abi(), p);
    EXPECT_EQ(host.buffer_bytes(), 0u);
  }
  EXPECT_EQ(buffer->alloc(host.abi(), 10001, 64, "test"), nullptr);
  EXPECT_EQ(buffer->alloc(host.abi(), UINT64_MAX, 64, "test"), nullptr);
  EXPECT_EQ(buffer->alloc(host.abi(), UINT64_MAX - 100, 64, "test"), nullptr);
  EXPECT_EQ(buffer->alloc(host.abi(), 8, 3, "test"), nullptr);
  EXPECT_EQ(buffer->alloc(host.abi(), 8, 8192, "test"), nullptr);
  EXPECT_EQ(host.buffer_bytes(), 0u);
  buffer->release(host.abi(), nullptr);
}

TEST_F(PluginHostTest, RunsLoopsOnThePoolAndBringsBackExceptions) {
  ThreadPool pool(3);
  services_.threads = &pool;
  const PluginHost host = make();
  const mri::Host plugin(host.abi());
  EXPECT_EQ(plugin.concurrency(), 3u);
  std::atomic<uint64_t> sum{0};
  plugin.parallel_for(100, [&](uint64_t i, uint32_t) { sum += i; });
  EXPECT_EQ(sum.load(), 4950u);
  EXPECT_THROW(plugin.parallel_for(100,
                                   [](uint64_t i, uint32_t) {
                                     if (i == 50) throw mri::Error(MRI_E_NOMEM, "no room");
                                   }),
               mri::Error);
}

TEST_F(PluginHostTest, AnswersNullForWhatItDoesNotOffer) {
  services_.withheld = {MRI_HOST_METRICS};
  const PluginHost host = make();
  EXPECT_EQ(find<void>(host, "mri.host.time_travel/1"), nullptr);
  EXPECT_EQ(find<void>(host, nullptr), nullptr);
  EXPECT_EQ(find<void>(host, MRI_HOST_THREADS), nullptr) << "no pool given";
  EXPECT_EQ(find<void>(host, MRI_HOST_METRICS), nullptr) << "withheld";
  EXPECT_EQ(find<void>(host, MRI_HOST_STACK), nullptr) << "for runtimes only";
  EXPECT_EQ(mri::Host(host.abi()).define_metric(MRI_METRIC_GAUGE, "x", ""), 0u);
}

}  // namespace
}  // namespace varve
