// Health and debug routes over lanes that say what the test wants.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/http/lane_watch.h"
#include "core/http/service.h"
#include "tests/unit/core/http/kept_responder.h"
#include "tests/unit/core/route/plain_fakes.h"

namespace varve::http {
namespace {

using nlohmann::json;
using Clock = LaneWatch::Clock;

LaneStatus running(uint64_t progress) {
  LaneStatus status;
  status.running = 1;
  status.progress = progress;
  return status;
}

TEST(LaneWatch, CountsFromTheFirstLookWithoutProgress) {
  LaneWatch watch;
  const Clock::time_point start{};
  const LaneStatus stuck = running(5);
  EXPECT_EQ(watch.stalled_for("main", stuck, start), Clock::duration::zero());
  EXPECT_EQ(watch.stalled_for("main", stuck, start + kStallMax), Clock::duration(kStallMax));
  EXPECT_EQ(watch.stalled_for("main", stuck, start + 2 * kStallMax),
            2 * Clock::duration(kStallMax));
}

TEST(LaneWatch, ATokenStartsAnew) {
  LaneWatch watch;
  const Clock::time_point start{};
  watch.stalled_for("main", running(5), start);
  EXPECT_EQ(watch.stalled_for("main", running(6), start + 2 * kStallMax), Clock::duration::zero());
}

TEST(LaneWatch, AnIdleLaneNeverStalls) {
  LaneWatch watch;
  const Clock::time_point start{};
  LaneStatus idle = running(5);
  idle.running = 0;
  watch.stalled_for("main", idle, start);
  EXPECT_EQ(watch.stalled_for("main", idle, start + 2 * kStallMax), Clock::duration::zero());
  // A request has come since, and has computed nothing yet.
  EXPECT_EQ(watch.stalled_for("main", running(5), start + 3 * kStallMax), Clock::duration::zero());
}

TEST(LaneWatch, LanesAreApart) {
  LaneWatch watch;
  const Clock::time_point start{};
  watch.stalled_for("a", running(5), start);
  EXPECT_EQ(watch.stalled_for("b", running(5), start + 2 * kStallMax), Clock::duration::zero());
}

class EmptyLane final : public PlainLane {
 public:
  const Stack& stack() const override { return *stack_; }

 private:
  const std::unique_ptr<Stack> stack_ = *load_stack({});
};

class HealthTest : public testing::Test {
 protected:
  HealthTest() : metrics_(Metrics::make({{"vip"}, {"main"}, {}, "tiny", "1.2.3"})) {
    service_.dispatcher = &dispatcher_;
    service_.metrics = metrics_.get();
    service_.version = "1.2.3";
    service_.model_name = "tiny";
  }

  const Route& route(const std::string& pattern) {
    if (routes_.empty()) {
      add_health_routes(service_, routes_);
      add_debug_routes(service_, routes_);
    }
    for (const Route& r : routes_) {
      if (r.pattern == pattern) return r;
    }
    ADD_FAILURE() << "no route " << pattern;
    return routes_.front();
  }
  Response get(const std::string& pattern) {
    Response response;
    route(pattern).handler({}, std::make_shared<Kept>(&response));
    return response;
  }
  json body(const std::string& pattern) { return json::parse(get(pattern).body); }

  PlainDispatcher dispatcher_;
  EmptyLane& lane_ = *dispatcher_.add_lane<EmptyLane>("main");
  std::unique_ptr<Metrics> metrics_;
  Service service_;
  std::vector<Route> routes_;
};

TEST_F(HealthTest, AllIsWell) {
  for (const char* pattern :
       {"/livez", "/readyz", "/health", "/v2/health/live", "/v2/health/ready"}) {
    EXPECT_EQ(get(pattern).status, 200) << pattern;
    EXPECT_EQ(body(pattern)["status"], "ok") << pattern;
    EXPECT_EQ(route(pattern).scope, Scope::kPublic) << pattern;
    EXPECT_TRUE(route(pattern).is_quiet) << pattern;
  }
}

TEST_F(HealthTest, WhileDrainingItIsAliveButNotReady) {
  service_.draining = true;
  EXPECT_EQ(get("/livez").status, 200);
  for (const char* pattern : {"/readyz", "/v2/health/ready"}) {
    EXPECT_EQ(get(pattern).status, 503);
    EXPECT_EQ(body(pattern)["status"], "draining");
    EXPECT_NE(body(pattern)["reason"], "");
  }
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(body("/health")["status"], "draining");
}

TEST_F(HealthTest, TellsWhatItIs) {
  const json version = body("/version");
  EXPECT_EQ(version["version"], "1.2.3");
  EXPECT_EQ(version["model"], "tiny");
  EXPECT_EQ(version["mri"], "1.1");
}

TEST_F(HealthTest, MetricsAreTextAndNeedAKeyWhereKeysAre) {
  const Response response = get("/metrics");
  EXPECT_EQ(response.content_type, "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_NE(response.body.find("varve_build_info"), std::string::npos);
  EXPECT_EQ(route("/metrics").scope, Scope::kInference);
  EXPECT_EQ(route("/livez").scope, Scope::kPublic);
}

TEST_F(HealthTest, TheBoardNeedsAnAdministrator) {
  EXPECT_EQ(route("/debug/attention").scope, Scope::kAdmin);
}

TEST_F(HealthTest, TheBoardOfAnIdleServer) {
  const json board = body("/debug/attention");
  EXPECT_EQ(board["attention"]["timed_tokens"], 0);
  EXPECT_EQ(board["attention"]["advice"], json::array());
  ASSERT_EQ(board["stacks"].size(), 1u);
  EXPECT_EQ(board["stacks"][0]["stack"], "main");
  EXPECT_EQ(board["stacks"][0]["lane"]["stalled"], false);
  EXPECT_EQ(board["draining"], false);
}

TEST_F(HealthTest, TheBoardSaysWhichRuleIsBroken) {
  RequestMetrics request;
  request.stack = "main";
  request.has_timings = true;
  request.timings.local_attn_ns = 80;
  request.timings.other_ns = 20;
  request.timings.n_tokens = 4;
  metrics_->record(request);
  lane_.now = running(5);
  lane_.now.since_progress = absl::Minutes(5);
  lane_.now.usage.hot_bytes = 77;
  const json board = body("/debug/attention");
  EXPECT_EQ(board["attention"]["timed_tokens"], 4);
  EXPECT_EQ(board["attention"]["shares"]["local"], 0.8);
  EXPECT_EQ(board["attention"]["rules"][0]["part"], "local");
  EXPECT_EQ(board["attention"]["rules"][0]["broken"], true);
  EXPECT_EQ(board["attention"]["rules"][1]["broken"], false);
  EXPECT_EQ(board["attention"]["advice"].size(), 1u);
  EXPECT_EQ(board["stacks"][0]["lane"]["stalled"], true);
  EXPECT_EQ(board["stacks"][0]["lane"]["no_progress_seconds"], 300);
  EXPECT_EQ(board["stacks"][0]["kv"]["hot_bytes"], 77);
}

}  // namespace
}  // namespace varve::http
