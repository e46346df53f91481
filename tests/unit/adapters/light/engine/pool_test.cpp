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

TEST(PoolTest, MovedFromMemoryIsEmpty) {
  Pool pool(0, 0);
  PoolMemory a = pool.allocate(100);
  PoolMemory b = std::move(a);
  EXPECT_TRUE(b);
  EXPECT_EQ(pool.used_bytes(), 100u);
}

}  // namespace
}  // namespace varve::light
