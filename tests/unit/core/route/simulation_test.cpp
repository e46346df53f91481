// Proves the statistics by playing experiments: with heavy tails, dependent requests and somebody
// who looks all the time and stops as soon as he likes what he sees. Seeds are fixed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "core/route/statistics/confidence.h"
#include "core/route/statistics/gates.h"
#include "core/route/statistics/units.h"

namespace varve::statistics {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kShare = 20;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr int kShare = 20;
#else
constexpr int kShare = 1;
#endif
#else
constexpr int kShare = 1;
#endif

struct World {
  double slowdown = 1;        // of the treatment
  double control_part = 0.5;  // of the units
  double drift = 1;           // both arms get so many times slower, from the middle on
  int n_units = 400;
};

// Conversations of one or more requests that overlap in time. A conversation's own factor makes its
// requests alike; one request in thirty is Pareto-slow.
class Traffic {
 public:
  Traffic(const World& world, uint64_t seed) : world_(world), random_(seed) {}

  // The next request to end; false after the last.
  bool next(Exposure& row) {
    if (open_.size() < kOverlap && n_units_ < world_.n_units) {
      ++n_units_;
      Open unit;
      unit.hash = random_();
      unit.is_treatment = uniform_(random_) >= world_.control_part;
      unit.factor = std::exp(0.4 * normal_(random_));
      unit.n_left = 1 + static_cast<int>(3 * uniform_(random_));
      open_.push_back(unit);
    }
    if (open_.empty()) return false;
    const size_t at = random_() % open_.size();
    Open& unit = open_[at];
    row.arm = unit.is_treatment ? "new" : "old";
    row.unit_hash = unit.hash;
    double ttft = 200 * unit.factor * std::exp(0.3 * normal_(random_));
    if (uniform_(random_) < 1.0 / 30) ttft *= std::pow(uniform_(random_), -1 / 1.5);
    if (unit.is_treatment) ttft *= world_.slowdown;
    if (2 * n_units_ > world_.n_units) ttft *= world_.drift;
    row.ttft_ms = ttft;
    row.gap_p50_ms = row.gap_p99_ms = ttft / 10;
    if (--unit.n_left == 0) {
      open_[at] = open_.back();
      open_.pop_back();
    }
    return true;
  }

 private:
  static constexpr size_t kOverlap = 20;
  struct Open {
    uint64_t hash = 0;
    bool is_treatment = false;
    double factor = 1;
    int n_left = 1;
  };
  const World world_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> uniform_;
  std::vector<Open> open_;
  int n_units_ = 0;
};

struct Outcome {
  bool more = false, no_more = false;    // ever claimed
  uint64_t more_at = 0, no_more_at = 0;  // units at the first claim
};

void look(const Units& units, double control_part, double p, double margin, double enough,
          Outcome& outcome) {
  const uint64_t n = units.arms()[0].units + units.arms()[1].units;
  const Values control = ascending(units.arms()[0].metric[kTtft]);
  const Values treatment = ascending(units.arms()[1].metric[kTtft]);
  if (!outcome.more &&
      log_evidence_of_more(control, treatment, p, 1 + margin, control_part) >= enough) {
    outcome.more = true;
    outcome.more_at = n;
  }
  if (!outcome.no_more &&
      log_evidence_of_no_more(control, treatment, p, 1 + margin, control_part) >= enough) {
    outcome.no_more = true;
    outcome.no_more_at = n;
  }
}

// Looks every `step` units (first requests), from the first ones on.
Outcome play(const World& world, uint64_t seed, double p, double margin, double alpha,
             uint64_t step) {
  Traffic traffic(world, seed);
  Units units({"old", "new"});
  Outcome outcome;
  Exposure row;
  uint64_t looked = 0;
  const double enough = std::log(1 / alpha);
  while (traffic.next(row)) {
    units.add(row);
    const uint64_t n = units.arms()[0].units + units.arms()[1].units;
    if (n < looked + step) continue;
    looked = n;
    look(units, world.control_part, p, margin, enough, outcome);
  }
  return outcome;
}

struct Rates {
  double more = 0, no_more = 0;
};

Rates rates(const World& world, int runs, double p, double margin, double alpha, uint64_t step) {
  runs = std::max(10, runs / kShare);
  Rates sum;
  for (int run = 0; run < runs; ++run) {
    const Outcome outcome = play(world, 1000 + static_cast<uint64_t>(run), p, margin, alpha, step);
    sum.more += outcome.more;
    sum.no_more += outcome.no_more;
  }
  return {sum.more / runs, sum.no_more / runs};
}

TEST(Simulation, PeekingAtEqualArmsRaisesFewAlarms) {
  // Without a margin "worse" is a false alarm, and so is its mirror image, "not worse".
  for (const double p : {0.5, 0.95}) {
    const Rates same = rates({}, 1000, p, 0, 0.05, 10);
    std::printf("A/A, p%g: worse %.3f, not worse %.3f\n", 100 * p, same.more, same.no_more);
    EXPECT_LE(same.more, 0.05);
    EXPECT_LE(same.no_more, 0.05);
  }
}

TEST(Simulation, PeekingIsSafeUnderDriftAndUnequalWeights) {
  World world;
  world.drift = 2;
  world.control_part = 0.9;
  const Rates same = rates(world, 1000, 0.95, 0, 0.05, 20);
  EXPECT_LE(same.more, 0.05);
  EXPECT_LE(same.no_more, 0.05);
}

TEST(Simulation, ATreatmentAtTheMarginIsNeitherWorseNorGoodEnough) {
  World world;
  world.slowdown = 1.05;
  const Rates edge = rates(world, 1000, 0.5, 0.05, 0.05, 10);
  EXPECT_LE(edge.more, 0.05);
  EXPECT_LE(edge.no_more, 0.05);
}

// A tenth of the runs may need more.
uint64_t units_for_most(const std::vector<uint64_t>& at) { return at[at.size() * 9 / 10 - 1]; }

// A unit a second; requests take seconds, and some hang until their deadline.
struct HangingWorld {
  double hang_share[2] = {};     // control, treatment
  double slowdown = 1;           // of what does not hang, treatment
  uint64_t deadline_s = 100000;  // no run is so long
};

// What a log says at `now_s` of a request that would take `ttft_s`.
Exposure seen_at(Exposure row, double ttft_s, double deadline_s, double now_s) {
  const double so_far_s = now_s - row.wall_s;
  row.ttft_ms = std::nan("");
  row.total_ms = 1000 * so_far_s;
  row.finish = kRunning;
  if (ttft_s <= so_far_s && ttft_s < deadline_s) {
    row.ttft_ms = 1000 * ttft_s;
    row.finish = "stop";
  } else if (deadline_s <= so_far_s) {
    row.finish = "error";
    row.error = "DeadlineExceeded";
  }
  return row;
}

// Looks every ten units, at all that have arrived.
Outcome play_hanging(const HangingWorld& world, int n_units, uint64_t seed, double p, double margin,
                     double alpha) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  std::vector<std::pair<Exposure, double>> all;
  Outcome outcome;
  for (int i = 1; i <= n_units; ++i) {
    const bool is_treatment = random() % 2 == 0;
    Exposure row;
    row.arm = is_treatment ? "new" : "old";
    row.unit_hash = random();
    row.wall_s = i;
    double ttft_s = 5 * std::exp(0.8 * normal(random)) * (is_treatment ? world.slowdown : 1);
    if (uniform(random) < world.hang_share[is_treatment]) ttft_s = INFINITY;
    all.emplace_back(row, ttft_s);
    if (i % 10 != 0) continue;
    Units units({"old", "new"});
    for (const auto& [one, one_ttft_s] : all)
      units.add(seen_at(one, one_ttft_s, static_cast<double>(world.deadline_s), i));
    look(units, 0.5, p, margin, std::log(1 / alpha), outcome);
  }
  return outcome;
}

TEST(Simulation, AnArmOnWhichRequestsHangIsFoundWhileTheyDo) {
  HangingWorld world;
  world.hang_share[1] = 0.1;
  const int runs = std::max(10, 100 / kShare);
  std::vector<uint64_t> at;
  for (int run = 0; run < runs; ++run) {
    const Outcome outcome =
        play_hanging(world, 1000, 5 + static_cast<uint64_t>(run), 0.95, 0.05, 0.01);
    at.push_back(outcome.more ? outcome.more_at : UINT64_MAX);
    EXPECT_FALSE(outcome.no_more);
  }
  std::sort(at.begin(), at.end());
  std::printf("10 %% hang: worse after %lu units (half of the runs), %lu (nine tenths)\n",
              at[at.size() / 2], units_for_most(at));
  EXPECT_LE(units_for_most(at), 800u);
}

TEST(Simulation, AnArmThatIsFasterWhereItDoesNotHangIsNotGoodEnough) {
  // Most of its units hang, so that its median never comes; the others are quick.
  HangingWorld world;
  world.hang_share[1] = 0.6;
  world.slowdown = 0.3;
  const int runs = std::max(10, 100 / kShare);
  for (int run = 0; run < runs; ++run)
    EXPECT_FALSE(play_hanging(world, 400, static_cast<uint64_t>(run), 0.5, 0.05, 0.01).no_more);
}

TEST(Simulation, EqualArmsOnWhichRequestsHangRaiseFewAlarms) {
  const int runs = std::max(10, 1000 / kShare);
  for (const double p : {0.5, 0.95}) {
    HangingWorld world;
    world.hang_share[0] = world.hang_share[1] = 0.1;
    world.deadline_s = 200;  // some end in a run
    int more = 0, no_more = 0;
    for (int run = 0; run < runs; ++run) {
      const Outcome outcome =
          play_hanging(world, 400, 1000 + static_cast<uint64_t>(run), p, 0, 0.05);
      more += outcome.more;
      no_more += outcome.no_more;
    }
    std::printf("A/A where 10 %% hang, p%g: worse %.3f, not worse %.3f\n", 100 * p,
                more / double(runs), no_more / double(runs));
    EXPECT_LE(more, runs / 20);
    EXPECT_LE(no_more, runs / 20);
  }
}

TEST(Simulation, AnOrdinaryTestUnderPeekingFailsThis) {
  // The same game with a normal test of means of logs at 5 % at each look: the simulation is able
  // to find false alarms.
  const int runs = std::max(40, 400 / kShare);
  int alarms = 0;
  for (int run = 0; run < runs; ++run) {
    Traffic traffic({}, 1000 + static_cast<uint64_t>(run));
    Exposure row;
    double n[2] = {}, sum[2] = {}, squares[2] = {};
    bool alarm = false;
    while (traffic.next(row)) {
      const int arm = row.arm == "new";
      const double x = std::log(row.ttft_ms);
      n[arm] += 1, sum[arm] += x, squares[arm] += x * x;
      if (n[0] < 20 || n[1] < 20) continue;
      double variance = 0;
      for (int i = 0; i < 2; ++i)
        variance += (squares[i] / n[i] - sum[i] / n[i] * (sum[i] / n[i])) / n[i];
      const double z = (sum[1] / n[1] - sum[0] / n[0]) / std::sqrt(variance);
      alarm = alarm || z > 1.645;
    }
    alarms += alarm;
  }
  EXPECT_GT(alarms, runs / 5);
}

// Units at the first claim, ascending; UINT64_MAX for none.
std::vector<uint64_t> claims(double slowdown, int n_units, double p, bool more) {
  World world;
  world.slowdown = slowdown;
  world.n_units = n_units;
  std::vector<uint64_t> at;
  const int runs = std::max(10, 100 / kShare);
  for (int run = 0; run < runs; ++run) {
    const Outcome outcome = play(world, 77 + static_cast<uint64_t>(run), p, 0.05, 0.01,
                                 static_cast<uint64_t>(n_units) / 20);
    const bool claimed = more ? outcome.more : outcome.no_more;
    at.push_back(!claimed ? UINT64_MAX : more ? outcome.more_at : outcome.no_more_at);
  }
  std::sort(at.begin(), at.end());
  return at;
}

TEST(Simulation, FindsASlowDownOfAFifth) {
  // At alpha 0.01 and a margin of 5 %: in 9 of 10 runs within so many units of both arms.
  EXPECT_LE(units_for_most(claims(1.2, 4000, 0.5, true)), 3000u);
  EXPECT_LE(units_for_most(claims(1.2, 12000, 0.95, true)), 11000u);
}

TEST(Simulation, TellsThatAFasterTreatmentIsGoodEnough) {
  EXPECT_LE(units_for_most(claims(0.8, 2000, 0.5, false)), 1500u);
  EXPECT_LE(units_for_most(claims(0.8, 5000, 0.95, false)), 4000u);
}

TEST(Simulation, PowerCurve) {
  if (std::getenv("VARVE_POWER_CURVE") == nullptr) GTEST_SKIP() << "set VARVE_POWER_CURVE";
  for (const double p : {0.5, 0.95, 0.99}) {
    for (const double slowdown : {0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 2.0}) {
      const bool more = slowdown > 1.05;
      for (const int n_units : {1000, 4000, 16000, 64000}) {
        const std::vector<uint64_t> at = claims(slowdown, n_units, p, more);
        if (at[at.size() / 2] == UINT64_MAX) continue;
        std::printf("p%g, %.1f x: %s after %lu units (half of the runs), %lu (nine tenths)\n",
                    100 * p, slowdown, more ? "worse" : "good enough", at[at.size() / 2],
                    units_for_most(at));
        if (units_for_most(at) != UINT64_MAX) break;
      }
    }
  }
}

// Units until the gate speaks; 0 for never. `lost`: share of the second arm's units that vanish.
uint64_t broken_at(double second_part, double lost, uint64_t n_units, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform;
  SampleRatio ratio;
  const double weights[] = {50, 50};
  ratio.set_weights(weights);
  for (uint64_t i = 1; i <= n_units; ++i) {
    const bool second = uniform(random) < second_part;
    if (second && uniform(random) < lost) continue;
    ratio.add(second ? 1 : 0);
    if (ratio.p_value() < kGateAlpha) return i;
  }
  return 0;
}

TEST(Simulation, TheSampleRatioGateCatchesABrokenHash) {
  const uint64_t runs = static_cast<uint64_t>(std::max(3, 20 / kShare));
  uint64_t false_alarms = 0, latest_hash = 0, latest_loss = 0;
  for (uint64_t run = 0; run < 10 * runs; ++run)
    false_alarms += broken_at(0.5, 0, 10000, run) != 0 ? 1 : 0;
  for (uint64_t run = 0; run < runs; ++run) {
    const uint64_t hash = broken_at(0.48, 0, 60000, run);
    const uint64_t loss = broken_at(0.5, 0.03, 400000, run);
    EXPECT_NE(hash, 0u);
    EXPECT_NE(loss, 0u);
    latest_hash = std::max(latest_hash, hash);
    latest_loss = std::max(latest_loss, loss);
  }
  std::printf("52:48 found within %lu units, a loss of 3 %% within %lu\n", latest_hash,
              latest_loss);
  EXPECT_LE(false_alarms, 1u);
}

TEST(Simulation, IntervalsHoldAtAllLooksAtOnce) {
  const int runs = std::max(20, 1000 / kShare);
  int quantile_misses = 0, mean_misses = 0, share_misses = 0;
  const double p95 = std::exp(1.6448536), mean = std::exp(-3 + 0.5);
  for (int run = 0; run < runs; ++run) {
    std::mt19937_64 random(static_cast<uint64_t>(run));
    std::lognormal_distribution<double> latency, kld(-3, 1);
    std::vector<double> latencies, sorted, klds;
    bool quantile_missed = false, mean_missed = false, share_missed = false;
    std::uniform_real_distribution<double> uniform;
    double failures = 0;
    for (int look = 0; look < 15; ++look) {
      for (int i = 0; i < 20; ++i) {
        latencies.push_back(latency(random));
        klds.push_back(kld(random));
      }
      sorted = ascending(latencies);
      const Interval quantile = quantile_interval(sorted, 0.95, 0.05);
      quantile_missed = quantile_missed || quantile.lower > p95 || quantile.upper < p95;
      // The tail beyond 20 is clipped; what that takes from the mean is nothing to speak of.
      const Interval of_mean = mean_interval(klds, 0, 20, 0.05);
      mean_missed = mean_missed || of_mean.lower > mean || of_mean.upper < mean;
      // One in ten of the failures is not known yet.
      for (int i = 0; i < 20; ++i) failures += uniform(random) < 0.03;
      const Interval share =
          share_interval(20 * (look + 1), std::floor(0.9 * failures), failures, 0.05);
      share_missed = share_missed || share.lower > 0.03 || share.upper < 0.03;
    }
    quantile_misses += quantile_missed;
    mean_misses += mean_missed;
    share_misses += share_missed;
  }
  EXPECT_LE(quantile_misses, runs / 20);
  EXPECT_LE(mean_misses, runs / 20);
  EXPECT_LE(share_misses, runs / 20);
}

TEST(Simulation, ABlockThatMayNotBeOverDoesNotCount) {
  std::vector<Exposure> rows(3);
  for (uint64_t i = 0; i < rows.size(); ++i) {
    rows[i].block = i;
    rows[i].arm = i % 2 == 0 ? "old" : "new";
    rows[i].ttft_ms = 100;
  }
  EXPECT_EQ(block_differences(rows, "old", "new", &Exposure::ttft_ms).size(), 1u);
  // Nor do those from the first on that waits for somebody.
  rows.push_back(rows[0]);
  rows.back().ttft_ms = std::nan("");
  rows.back().finish = kWaiting;
  EXPECT_TRUE(block_differences(rows, "old", "new", &Exposure::ttft_ms).empty());
  rows.pop_back();
  rows.pop_back();
  EXPECT_TRUE(block_differences(rows, "old", "new", &Exposure::ttft_ms).empty());
}

TEST(Simulation, SwitchbackBlocksFindASlowDownAndNothingElse) {
  // Blocks of correlated load: a random walk moves both arms.
  const int runs = std::max(20, 1000 / kShare);
  int alarms = 0, found = 0;
  for (int run = 0; run < runs; ++run) {
    for (const double slowdown : {1.0, 1.2}) {
      std::mt19937_64 random(static_cast<uint64_t>(run));
      std::normal_distribution<double> normal;
      std::vector<Exposure> rows;
      double load = 0;
      bool claimed = false;
      for (uint64_t block = 0; block < 200; ++block) {
        load = 0.9 * load + 0.1 * normal(random);
        const bool is_treatment = random() % 2 == 0;
        for (int i = 0; i < 10; ++i) {
          Exposure row;
          row.arm = is_treatment ? "new" : "old";
          row.block = block;
          row.ttft_ms = 100 * std::exp(load + 0.5 * normal(random)) * (is_treatment ? slowdown : 1);
          rows.push_back(std::move(row));
        }
        if (block % 20 != 19) continue;
        const std::vector<double> differences =
            block_differences(rows, "old", "new", &Exposure::ttft_ms);
        claimed =
            claimed || mean_interval(differences, -std::log(4.0), std::log(4.0), 0.05).lower > 0;
      }
      (slowdown > 1 ? found : alarms) += claimed;
    }
  }
  std::printf("200 blocks: false alarms %.3f, 20 %% found %.3f\n", alarms / double(runs),
              found / double(runs));
  EXPECT_LE(alarms, runs / 20);
  EXPECT_GE(found, runs * 9 / 10);
}

}  // namespace
}  // namespace varve::statistics
