#include "core/route/experiment.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include <array>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"

namespace varve {
namespace {

constexpr uint64_t kKey0 = 0x0706050403020100, kKey1 = 0x0f0e0d0c0b0a0908;

// From the reference implementation's vectors: key 00 01 … 0f, messages 00, 00 01, ….
TEST(SipHash, GivesThePublishedVectors) {
  const std::map<size_t, uint64_t> vectors = {
      {0, 0x726fdb47dd0e0e31}, {1, 0x74f839c593dc67fd}, {2, 0x0d6c8009d9a94f5a},
      {3, 0x85676696d7fb7e2d}, {4, 0xcf2794e0277187b7}, {5, 0x18765564cd99a68d},
      {6, 0xcbc9466e58fee3ce}, {7, 0xab0200f58b01d137}, {8, 0x93f5f5799a932462},
      {9, 0x9e0082df0ba9e4b0}, {15, 0xa129ca6149be45e5}};
  std::string message(64, '\0');
  std::iota(message.begin(), message.end(), '\0');
  for (const auto& [size, hash] : vectors)
    EXPECT_EQ(sip_hash(kKey0, kKey1, std::string_view(message).substr(0, size)), hash) << size;
}

uint64_t openssl_sip_hash(const std::array<unsigned char, 16>& key, const std::string& data) {
  EVP_MAC* mac = EVP_MAC_fetch(nullptr, "SIPHASH", nullptr);
  EVP_MAC_CTX* context = EVP_MAC_CTX_new(mac);
  size_t size = 8;
  const OSSL_PARAM params[] = {OSSL_PARAM_construct_size_t("size", &size),
                               OSSL_PARAM_construct_end()};
  unsigned char out[8] = {};
  EVP_MAC_init(context, key.data(), key.size(), params);
  EVP_MAC_update(context, reinterpret_cast<const unsigned char*>(data.data()), data.size());
  EVP_MAC_final(context, out, &size, sizeof out);
  EVP_MAC_CTX_free(context);
  EVP_MAC_free(mac);
  uint64_t hash = 0;
  for (int i = 7; i >= 0; --i) hash = hash << 8 | out[i];
  return hash;
}

TEST(SipHash, AgreesWithAnotherImplementation) {
  std::mt19937_64 random(1);
  for (size_t size = 0; size < 300; ++size) {
    const uint64_t key0 = random(), key1 = random();
    std::array<unsigned char, 16> key;
    for (size_t i = 0; i < 8; ++i) {
      key[i] = static_cast<unsigned char>(key0 >> 8 * i);
      key[8 + i] = static_cast<unsigned char>(key1 >> 8 * i);
    }
    std::string data(size, '\0');
    for (char& c : data) c = static_cast<char>(random());
    ASSERT_EQ(sip_hash(key0, key1, data), openssl_sip_hash(key, data)) << size;
  }
}

ExperimentConfig experiment(std::vector<double> weights,
                            std::string salt = "a salt of an experiment") {
  ExperimentConfig config;
  config.name = "x";
  config.salt = std::move(salt);
  for (size_t i = 0; i < weights.size(); ++i)
    config.arms.push_back({absl::StrCat("stack", i), weights[i]});
  return config;
}

std::string unit(size_t i) { return experiment_unit("tenant", absl::StrCat("conversation ", i)); }

std::vector<size_t> arms_of(const ExperimentConfig& config, size_t n) {
  std::vector<size_t> arms;
  for (size_t i = 0; i < n; ++i) arms.push_back(assign(config, unit(i), absl::Now()).arm);
  return arms;
}

TEST(Unit, NoTwoPairsLookAlike) {
  EXPECT_NE(experiment_unit("a", "bc"), experiment_unit("ab", "c"));
  EXPECT_NE(experiment_unit("a", "1:b"), experiment_unit("a1:", "b"));
  EXPECT_NE(experiment_unit("", "a"), experiment_unit("a", ""));
}

TEST(Assign, IsStableAndOfTheUnitAlone) {
  const ExperimentConfig config = experiment({50, 50});
  const Assignment first = assign(config, unit(1), absl::UnixEpoch());
  const Assignment again = assign(config, unit(1), absl::Now());
  EXPECT_EQ(first.arm, again.arm);
  EXPECT_EQ(first.unit_hash, again.unit_hash);
  EXPECT_NE(first.unit_hash, assign(config, unit(2), absl::Now()).unit_hash);
}

// Chi-square of 256 cells of the hash: 330 is the 0.1 % point of 255 degrees of freedom.
TEST(Assign, SpreadsUnitsEvenly) {
  const ExperimentConfig config = experiment({50, 50});
  constexpr size_t kUnits = 100000;
  std::array<double, 256> cells{};
  for (size_t i = 0; i < kUnits; ++i) ++cells[assign(config, unit(i), absl::Now()).unit_hash >> 56];
  double chi_square = 0;
  const double expected = kUnits / 256.0;
  for (const double n : cells) chi_square += (n - expected) * (n - expected) / expected;
  EXPECT_LT(chi_square, 330);
  EXPECT_GT(chi_square, 190);  // 0.1 %: nor too even
}

TEST(Assign, GivesEachArmItsShare) {
  constexpr size_t kUnits = 100000;
  std::array<double, 3> n{};
  for (const size_t arm : arms_of(experiment({70, 20, 10}), kUnits)) ++n[arm];
  EXPECT_NEAR(n[0] / kUnits, 0.7, 0.006);
  EXPECT_NEAR(n[1] / kUnits, 0.2, 0.006);
  EXPECT_NEAR(n[2] / kUnits, 0.1, 0.006);
}

TEST(Assign, RampMovesOnlyTheAddedShare) {
  constexpr size_t kUnits = 20000;
  std::vector<size_t> before = arms_of(experiment({100, 0}), kUnits);
  for (double weight = 0; weight <= 100; weight += 5) {
    const std::vector<size_t> after = arms_of(experiment({100 - weight, weight}), kUnits);
    size_t moved = 0;
    for (size_t i = 0; i < kUnits; ++i) {
      ASSERT_GE(after[i], before[i]) << "a unit went back to the control";
      moved += after[i] != before[i] ? 1 : 0;
    }
    EXPECT_NEAR(static_cast<double>(moved) / kUnits, weight == 0 ? 0 : 0.05, 0.01);
    before = after;
  }
  EXPECT_EQ(before, std::vector<size_t>(kUnits, 1));
}

TEST(Assign, RampAndStopOfOneOfThreeArmsLeaveTheOtherAlone) {
  constexpr size_t kUnits = 20000;
  const std::vector<size_t> before = arms_of(experiment({80, 10, 10}), kUnits);
  const std::vector<size_t> ramped = arms_of(experiment({70, 10, 20}), kUnits);
  const std::vector<size_t> stopped_last = arms_of(experiment({90, 10, 0}), kUnits);
  const std::vector<size_t> stopped_middle = arms_of(experiment({90, 0, 10}), kUnits);
  for (size_t i = 0; i < kUnits; ++i) {
    if (before[i] != ramped[i]) {
      ASSERT_EQ(before[i], 0u);
      ASSERT_EQ(ramped[i], 2u);
    }
    ASSERT_EQ(stopped_last[i], before[i] == 2 ? 0 : before[i]);
    ASSERT_EQ(stopped_middle[i], before[i] == 1 ? 0 : before[i]);
  }
}

// Under another salt a unit's arm says nothing of its arm here: chi-square of the 2 x 2 table, of
// which 10.8 is the 0.1 % point.
TEST(Assign, ExperimentsAreIndependent) {
  constexpr size_t kUnits = 50000;
  const std::vector<size_t> a = arms_of(experiment({50, 50}, "the salt of one"), kUnits);
  const std::vector<size_t> b = arms_of(experiment({50, 50}, "the salt of another"), kUnits);
  double n[2][2] = {};
  for (size_t i = 0; i < kUnits; ++i) ++n[a[i]][b[i]];
  double chi_square = 0;
  for (size_t i = 0; i < 2; ++i) {
    for (size_t j = 0; j < 2; ++j) {
      const double expected = (n[i][0] + n[i][1]) * (n[0][j] + n[1][j]) / kUnits;
      chi_square += (n[i][j] - expected) * (n[i][j] - expected) / expected;
    }
  }
  EXPECT_LT(chi_square, 10.8);
}

// A tenant who found the ids of an arm under one salt (or with no key at all) has nothing under
// the next.
TEST(Assign, IdsChosenWithoutTheKeyAreWorthNothing) {
  const ExperimentConfig guessed = experiment({90, 10}, "what the tenant guessed");
  const ExperimentConfig real = experiment({90, 10}, "what the server has");
  size_t chosen = 0, hits = 0;
  for (size_t i = 0; chosen < 3000; ++i) {
    if (assign(guessed, unit(i), absl::Now()).arm != 1) continue;
    ++chosen;
    hits += assign(real, unit(i), absl::Now()).arm;
  }
  EXPECT_NEAR(static_cast<double>(hits) / static_cast<double>(chosen), 0.1, 0.02);
}

TEST(Assign, AaSplitsLikeUnits) {
  ExperimentConfig aa = experiment({50, 50});
  const std::vector<size_t> arms = arms_of(aa, 1000);
  aa.mode = "aa";
  aa.arms[1].stack = aa.arms[0].stack;
  EXPECT_EQ(arms_of(aa, 1000), arms);
}

ExperimentConfig switchback() {
  ExperimentConfig config = experiment({50, 50});
  config.mode = "switchback";
  config.block = absl::Seconds(60);
  config.burn_in = absl::Seconds(10);
  return config;
}

absl::Time in_block(int64_t block, double seconds) {
  return absl::UnixEpoch() + block * absl::Seconds(60) + absl::Seconds(seconds);
}

TEST(Switchback, AllUnitsOfABlockShareAnArm) {
  const ExperimentConfig config = switchback();
  for (int64_t block = 1000; block < 1020; ++block) {
    const Assignment first = assign(config, unit(0), in_block(block, 0));
    EXPECT_EQ(first.block, static_cast<uint64_t>(block));
    for (size_t i = 1; i < 50; ++i) {
      const Assignment other = assign(config, unit(i), in_block(block, 59.9));
      EXPECT_EQ(other.arm, first.arm);
      EXPECT_EQ(other.block, first.block);
    }
  }
}

TEST(Switchback, EachPairHasBothArmsInADrawnOrder) {
  const ExperimentConfig config = switchback();
  size_t control_first = 0;
  for (int64_t pair = 0; pair < 1000; ++pair) {
    const size_t first = assign(config, unit(0), in_block(2 * pair, 30)).arm;
    const size_t second = assign(config, unit(0), in_block(2 * pair + 1, 30)).arm;
    ASSERT_NE(first, second);
    control_first += first == 0 ? 1 : 0;
  }
  EXPECT_GT(control_first, 440u);
  EXPECT_LT(control_first, 560u);
}

TEST(Switchback, ThreeArmsShareTheirGroup) {
  ExperimentConfig config = experiment({34, 33, 33});
  config.mode = "switchback";
  config.block = absl::Seconds(60);
  for (int64_t group = 0; group < 100; ++group) {
    std::set<size_t> arms;
    for (int64_t i = 0; i < 3; ++i) arms.insert(assign(config, "", in_block(3 * group + i, 1)).arm);
    EXPECT_EQ(arms.size(), 3u);
  }
}

TEST(Switchback, BurnInFollowsASwitchOnly) {
  const ExperimentConfig config = switchback();
  size_t switches = 0;
  for (int64_t block = 500; block < 600; ++block) {
    const bool switched = assign(config, "", in_block(block - 1, 30)).arm !=
                          assign(config, "", in_block(block, 30)).arm;
    switches += switched ? 1 : 0;
    EXPECT_EQ(assign(config, "", in_block(block, 9.9)).burn_in, switched);
    EXPECT_FALSE(assign(config, "", in_block(block, 10)).burn_in);
  }
  EXPECT_GT(switches, 50u);
  EXPECT_LT(switches, 100u);
}

TEST(Switchback, AStoppedArmHasNoTime) {
  ExperimentConfig config = switchback();
  config.arms[0].weight = 100;
  config.arms[1].weight = 0;
  for (int64_t block = 0; block < 100; ++block) {
    EXPECT_EQ(assign(config, "", in_block(block, 0)).arm, 0u);
    EXPECT_FALSE(assign(config, "", in_block(block, 0)).burn_in);
  }
}

TEST(Switchback, AnyClockWillDo) {
  ExperimentConfig config = switchback();
  for (const absl::Time now : {absl::InfinitePast(), absl::InfiniteFuture(), absl::UnixEpoch(),
                               absl::UnixEpoch() - absl::Seconds(90)}) {
    EXPECT_LT(assign(config, unit(0), now).arm, 2u);
  }
  config.block = absl::ZeroDuration();
  EXPECT_LT(assign(config, unit(0), absl::Now()).arm, 2u);
}

}  // namespace
}  // namespace varve
