#include "core/batch/queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace varve {
namespace {

using testing::ElementsAre;

WaitingRequest request(uint64_t id, const std::string& tenant = "t", uint32_t priority = 1,
                       uint64_t arrived_us = 0) {
  WaitingRequest r;
  r.id = id;
  r.tenant = tenant;
  r.priority = priority;
  r.arrived_us = arrived_us;
  r.cost_tokens = 10;
  return r;
}

std::vector<uint64_t> order(const WaitQueue& queue, uint64_t now_us = 0, size_t n = 1000) {
  std::vector<uint64_t> ids;
  for (const WaitingRequest* r : queue.next(now_us, n)) ids.push_back(r->id);
  return ids;
}

TEST(WaitQueue, ServesByPriorityThenArrival) {
  WaitQueue queue({10, 0});
  queue.push(request(1, "t", 1, 5));
  queue.push(request(2, "t", 9, 6));
  queue.push(request(3, "t", 1, 4));
  queue.push(request(4, "t", 9, 7));
  EXPECT_THAT(order(queue), ElementsAre(2, 4, 3, 1));
  EXPECT_THAT(order(queue, 0, 2), ElementsAre(2, 4));
}

TEST(WaitQueue, RefusesAtCapacity) {
  WaitQueue queue({2, 0});
  EXPECT_TRUE(queue.push(request(1)).accepted);
  EXPECT_TRUE(queue.push(request(2)).accepted);
  EXPECT_FALSE(queue.push(request(3)).accepted);
  EXPECT_EQ(queue.size(), 2u);
  queue.put_back(request(4));
  EXPECT_EQ(queue.size(), 3u) << "one that comes back has been accepted before";
  EXPECT_TRUE(queue.erase(1));
  EXPECT_FALSE(queue.erase(1));
  EXPECT_FALSE(queue.push(request(5)).accepted) << "still full";
  queue.set_capacity(5);
  EXPECT_TRUE(queue.push(request(5)).accepted);
}

TEST(WaitQueue, AFloodDoesNotShutTheUrgentOut) {
  WaitQueue queue({8, 0});
  for (uint64_t id = 1; id <= 8; ++id) ASSERT_TRUE(queue.push(request(id)).accepted);
  EXPECT_FALSE(queue.push(request(9)).accepted);
  EXPECT_TRUE(queue.push(request(10, "t", 2)).accepted);
  EXPECT_TRUE(queue.push(request(11, "t", 2)).accepted);
  EXPECT_FALSE(queue.push(request(12, "t", 2)).accepted) << "a quarter more is all";
  EXPECT_FALSE(queue.push(request(13, "t", 3)).accepted);
  WaitQueue urgent({2, 0});
  EXPECT_TRUE(urgent.push(request(1, "t", 9)).accepted);
  EXPECT_TRUE(urgent.push(request(2, "t", 9)).accepted);
  EXPECT_FALSE(urgent.push(request(3, "t", 9)).accepted) << "nobody less urgent waits";
}

TEST(WaitQueue, DropsTheNewestShadowForAClient) {
  WaitQueue queue({3, 0});
  WaitingRequest shadow = request(1, "t", 0, 1);
  shadow.is_shadow = true;
  queue.push(shadow);
  shadow.id = 2;
  shadow.arrived_us = 2;
  queue.push(shadow);
  queue.push(request(3, "t", 1, 3));
  EXPECT_THAT(order(queue), ElementsAre(3, 1, 2)) << "shadows last";
  const auto pushed = queue.push(request(4, "t", 1, 4));
  EXPECT_TRUE(pushed.accepted);
  EXPECT_EQ(pushed.dropped, 2u);
  shadow.id = 5;
  EXPECT_FALSE(queue.push(shadow).accepted) << "a shadow never makes room for a shadow";
  EXPECT_EQ(queue.push(request(6)).dropped, 1u);
  EXPECT_FALSE(queue.push(request(7)).accepted);
}

TEST(WaitQueue, AgeRaisesPriority) {
  WaitQueue queue({10, 1000});
  queue.push(request(1, "t", 1, 0));
  queue.push(request(2, "t", 1, 100));
  queue.push(request(3, "t", 4, 3000));
  EXPECT_THAT(order(queue, 3000), ElementsAre(3, 1, 2)) << "4 against 1 + 3: a tie";
  EXPECT_THAT(order(queue, 4000), ElementsAre(3, 1, 2)) << "the urgent one ages too";
  queue.take(3);
  queue.push(request(4, "t", 4, 4000));
  EXPECT_THAT(order(queue, 4000), ElementsAre(1, 4, 2))
      << "1 + 4 beats 4; the second waited 3.9 ms only";
}

TEST(WaitQueue, ReportsWhoIsLate) {
  WaitQueue queue({10, 0});
  for (uint64_t id = 1; id <= 4; ++id) {
    WaitingRequest r = request(id);
    r.deadline_us = id % 2 == 0 ? 100 * id : UINT64_MAX;
    queue.push(r);
  }
  EXPECT_TRUE(queue.take_expired(199).empty());
  EXPECT_THAT(queue.take_expired(200), ElementsAre(2));
  EXPECT_THAT(queue.take_expired(UINT64_MAX - 1), ElementsAre(4));
  EXPECT_EQ(queue.size(), 2u);
}

TEST(WaitQueue, SharesBetweenTenants) {
  WaitQueue queue({100, 0});
  for (uint64_t id = 1; id <= 6; ++id) queue.push(request(id, "greedy", 1, id));
  queue.push(request(7, "late", 1, 7));
  queue.push(request(8, "late", 1, 8));
  EXPECT_THAT(order(queue, 0, 5), ElementsAre(1, 7, 2, 8, 3));
}

TEST(WaitQueue, IdleTimeEarnsNothing) {
  WaitQueue queue({100, 0});
  queue.push(request(1, "old", 1, 0));
  queue.take(1);  // level: 10 for old
  for (uint64_t id = 10; id < 20; ++id) {
    queue.push(request(id, "busy", 1, id));
    queue.take(id);
  }
  queue.push(request(30, "busy", 1, 30));
  queue.push(request(31, "busy", 1, 31));
  queue.push(request(40, "old", 1, 40));
  queue.push(request(41, "old", 1, 41));
  queue.push(request(42, "old", 1, 42));
  EXPECT_THAT(order(queue, 0, 4), ElementsAre(30, 40, 31, 41)) << "from level to level";
}

TEST(WaitQueue, CountsTokensNotRequests) {
  WaitQueue queue({100, 0});
  for (uint64_t id = 1; id <= 3; ++id) {
    WaitingRequest r = request(id, "long", 1, id);
    r.cost_tokens = 100;
    queue.push(r);
  }
  for (uint64_t id = 11; id <= 16; ++id) queue.push(request(id, "short", 1, 10 + id));
  EXPECT_THAT(order(queue, 0, 5), ElementsAre(1, 11, 12, 13, 14));
  queue.take(1);
  queue.charge("short", 95);
  EXPECT_THAT(order(queue, 0, 2), ElementsAre(11, 2)) << "95, then 105 against 100";
}

TEST(WaitQueue, RemembersFewTenants) {
  WaitQueue queue({4, 0});
  for (uint64_t id = 1; id <= 20000; ++id) {
    queue.push(request(id, "tenant " + std::to_string(id), 1, id));
    queue.take(id);
    ASSERT_LE(queue.n_tenants(), 1100u);
  }
}

// A machine that serves one request per tick while more arrive than it can serve.
TEST(WaitQueue, NobodyStarvesAndTenantsGetTheirShare) {
  for (const uint64_t seed : {1u, 2u, 3u, 4u, 5u}) {
    std::mt19937_64 random(seed);
    WaitQueue queue({50, 20'000});
    std::map<std::string, uint64_t> served;
    std::set<uint64_t> waiting;
    uint64_t next_id = 0, longest_us = 0;
    for (uint64_t now_us = 0; now_us < 5'000'000; now_us += 1000) {
      for (uint64_t n = random() % 4; n > 0; --n) {
        // Tenant a floods; b and c send a little; every third request is urgent.
        const std::string tenant = random() % 10 < 8 ? "a" : random() % 2 == 0 ? "b" : "c";
        WaitingRequest r = request(++next_id, tenant, random() % 3 == 0 ? 5 : 1, now_us);
        r.cost_tokens = 1 + random() % 50;
        if (queue.push(r).accepted) waiting.insert(r.id);
        ASSERT_LE(queue.size(), 50u + 12u);
      }
      if (random() % 50 == 0 && !waiting.empty()) {
        const uint64_t id = *waiting.begin();
        ASSERT_TRUE(queue.erase(id));
        waiting.erase(id);
      }
      const auto next = queue.next(now_us, 1);
      ASSERT_EQ(next.empty(), queue.size() == 0);
      if (next.empty()) continue;
      longest_us = std::max(longest_us, now_us - next[0]->arrived_us);
      served[next[0]->tenant] += next[0]->cost_tokens;
      waiting.erase(next[0]->id);
      ASSERT_TRUE(queue.take(next[0]->id));
    }
    ASSERT_EQ(queue.size(), waiting.size());
    // Nobody waits longer than it takes to be older than all that is urgent, plus the queue ahead.
    EXPECT_LT(longest_us, 20'000u * 5 + 62 * 1000 * 8);
    EXPECT_GT(served["b"], 0u);
    EXPECT_GT(served["c"], 0u);
  }
}

TEST(WaitQueue, IsFairWithinABound) {
  WaitQueue queue({200, 0});
  std::mt19937_64 random(7);
  std::map<std::string, uint64_t> served;
  uint64_t next_id = 0;
  const auto fill = [&](const std::string& tenant, size_t n) {
    for (size_t i = 0; i < n; ++i) {
      const uint64_t id = ++next_id;
      WaitingRequest r = request(id, tenant, 1, id);
      r.cost_tokens = 1 + random() % 100;
      queue.push(r);
    }
  };
  fill("a", 90), fill("b", 5), fill("c", 5);
  for (int turn = 0; turn < 4000; ++turn) {
    const WaitingRequest next = *queue.next(0, 1)[0];
    served[next.tenant] += next.cost_tokens;
    queue.take(next.id);
    fill(next.tenant, 1);
  }
  // One turn in eight goes by age, which favours whoever has most waiting.
  const uint64_t total = served["a"] + served["b"] + served["c"];
  for (const char* tenant : {"a", "b", "c"}) EXPECT_GT(served[tenant] * 100, total * 28) << tenant;
}

}  // namespace
}  // namespace varve
