#include "adapters/light/kv/pool.h"

#include <gtest/gtest.h>

namespace varve::light {
namespace {

TEST(PoolTest, KeepsItsBudgetToTheByte) {
  Pool pool(1000, 0);
  PoolMemory a = pool.allocate(600);
  ASSERT_TRUE(a);
  EXPECT_FALSE(pool.allocate(401));
  PoolMemory b = pool.allocate(400);
  ASSERT_TRUE(b);
  EXPECT_EQ(pool.used_bytes(), 1000u);
  a = PoolMemory();
  EXPECT_EQ(pool.used_bytes(), 400u);
  EXPECT_TRUE(pool.allocate(600));
}

TEST(PoolTest, RefusesMoreThanTheBudgetWithoutWrapping) {
  Pool pool(1000, 0);
  EXPECT_FALSE(pool.allocate(SIZE_MAX));
  EXPECT_EQ(pool.used_bytes(), 0u);
}

TEST(PoolTest, GivesASparePieceAgain) {
  Pool pool(0, 1 << 20);
  uint8_t* first = nullptr;
  {
    const PoolMemory memory = pool.allocate(5000);
    first = memory.data();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
  }
  EXPECT_EQ(pool.allocate(5000).data(), first);
  EXPECT_EQ(pool.used_bytes(), 0u);
}

TEST(PoolTest, ChargesAnAccountBesideItself) {
  Pool pool(1000, 0);
  PoolAccount account{500, 0, 0};
  PoolMemory a = pool.allocate(400, &account);
  ASSERT_TRUE(a);
  EXPECT_FALSE(pool.allocate(101, &account));
  PoolMemory b = pool.allocate(100, &account);
  EXPECT_TRUE(b);
  EXPECT_EQ(account.used_bytes, 500u);
  a = PoolMemory();
  EXPECT_EQ(account.used_bytes, 100u);
  EXPECT_TRUE(pool.allocate(900));
}

TEST(PoolTest, ExchangesAPieceInAFullBudget) {
  Pool pool(1000, 0);
  PoolAccount account{1000, 0, 0};
  PoolMemory old = pool.allocate(1000, &account);
  EXPECT_FALSE(pool.exchange(old, 1001));
  ASSERT_TRUE(old);
  PoolMemory smaller = pool.exchange(old, 300);
  ASSERT_TRUE(smaller);
  EXPECT_FALSE(old);
  EXPECT_EQ(smaller.size(), 300u);
  EXPECT_EQ(pool.used_bytes(), 300u);
  EXPECT_EQ(account.used_bytes, 300u);
  smaller = PoolMemory();
  EXPECT_EQ(pool.used_bytes(), 0u);
  EXPECT_EQ(account.used_bytes, 0u);
}

TEST(PoolTest, ASharedPieceStaysUntilItsLastHold) {
  Pool pool(1000, 0);
  PoolAccount first{0, 0, 0}, second{500, 0, 0};
  PoolMemory a = pool.allocate(400, &first);
  PoolMemory b = a.share(&second);
  ASSERT_TRUE(b);
  EXPECT_EQ(b.data(), a.data());
  EXPECT_FALSE(a.share(&second)) << "charged in full";
  EXPECT_FALSE(pool.exchange(a, 100)) << "others read it";
  EXPECT_EQ(pool.used_bytes(), 400u);
  EXPECT_EQ(a.reset(), 0u);
  EXPECT_EQ(first.used_bytes, 0u);
  EXPECT_EQ(first.returned_bytes, -400);
  EXPECT_EQ(pool.used_bytes(), 400u);
  EXPECT_EQ(b.reset(), 400u);
  EXPECT_EQ(second.returned_bytes, 400);
  EXPECT_EQ(pool.used_bytes(), 0u);
}

TEST(PoolTest, CountsWhatPrefixesKeepOnce) {
  Pool pool(0, 0);
  PoolAccount account;
  PoolMemory own = pool.allocate(400, &account);
  PoolMemory kept = own.keep(), again = own.keep();
  EXPECT_EQ(pool.kept_bytes(), 400u);
  EXPECT_EQ(pool.only_kept_bytes(), 0u);
  own.reset();
  EXPECT_EQ(pool.only_kept_bytes(), 400u);
  PoolMemory fork = kept.share(&account);
  EXPECT_EQ(pool.only_kept_bytes(), 0u);
  kept.reset();
  fork.reset();
  EXPECT_EQ(pool.kept_bytes(), 400u);
  EXPECT_EQ(pool.only_kept_bytes(), 400u);
  EXPECT_EQ(again.reset(), 400u);
  EXPECT_EQ(pool.kept_bytes(), 0u);
  EXPECT_EQ(pool.only_kept_bytes(), 0u);
  EXPECT_EQ(pool.used_bytes(), 0u);
}

TEST(PoolTest, SparePiecesCountAgainstTheBudget) {
  Pool pool(10000, 1 << 20);
  pool.allocate(4000);  // given back at once: spare now
  EXPECT_EQ(pool.owned_bytes(), 4000u);
  const PoolMemory large = pool.allocate(8000);
  ASSERT_TRUE(large);
  EXPECT_EQ(pool.owned_bytes(), 8000u);
}

TEST(PoolTest, GivesNoMemoryForNothing) {
  Pool pool(0, 0);
  EXPECT_FALSE(pool.allocate(0));
}

TEST(PoolTest, MovedFromMemoryIsEmpty) {
  Pool pool(0, 0);
  PoolMemory a = pool.allocate(100);
  PoolMemory b = std::move(a);
  EXPECT_TRUE(b);
  EXPECT_EQ(pool.used_bytes(), 100u);
}

}  // namespace
}  // namespace varve::light
