#include "adapters/light/kv/backing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

#include "mri/sdk/error.hpp"

namespace varve::light {
namespace {

class BackingTest : public testing::TestWithParam<BackingKind> {};

TEST_P(BackingTest, GivesBackWhatWasPut) {
  Backing backing(GetParam(), testing::TempDir(), 5000, 0);
  std::vector<const uint8_t*> slots;
  for (int i = 0; i < 70; ++i)
    slots.push_back(backing.put(std::vector<uint8_t>(5000, static_cast<uint8_t>(i)).data()));
  EXPECT_EQ(backing.used_bytes(), 70u * 5000u);
  for (int i = 0; i < 70; ++i) {
    EXPECT_EQ(slots[i][0], i);
    EXPECT_EQ(slots[i][4999], i);
  }
  backing.release(slots[3]);
  const uint8_t* again = backing.put(std::vector<uint8_t>(5000, 200).data());
  EXPECT_EQ(again, slots[3]);
  EXPECT_EQ(again[17], 200);
  backing.prewarm(again);
}

TEST_P(BackingTest, SaysWhenItsLimitIsReached) {
  Backing backing(GetParam(), testing::TempDir(), 100, 250);
  const std::vector<uint8_t> data(100);
  backing.put(data.data());
  backing.put(data.data());
  try {
    backing.put(data.data());
    FAIL() << "no error";
  } catch (const mri::Error& e) {
    EXPECT_EQ(e.status(), MRI_E_NOMEM);
    EXPECT_THAT(e.what(), testing::HasSubstr("250"));
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, BackingTest,
                         testing::Values(BackingKind::kRam, BackingKind::kFile));

TEST(BackingTest, AReleasedSlotInRamTakesNoMemory) {
  constexpr size_t kBytes = 64 * 4096;
  Backing backing(BackingKind::kRam, "", kBytes, 0);
  const uint8_t* slot = backing.put(std::vector<uint8_t>(kBytes, 1).data());
  const auto resident = [slot] {
    unsigned char pages[kBytes / 4096] = {};
    EXPECT_EQ(mincore(const_cast<uint8_t*>(slot), kBytes, pages), 0);
    return std::count_if(std::begin(pages), std::end(pages), [](auto p) { return (p & 1) != 0; });
  };
  EXPECT_EQ(resident(), 64);
  backing.release(slot);
  EXPECT_EQ(resident(), 0);
}

TEST(BackingTest, NamesADirectoryThatDoesNotExist) {
  try {
    Backing backing(BackingKind::kFile, "/nonexistent/place", 100, 0);
    FAIL() << "no error";
  } catch (const mri::Error& e) {
    EXPECT_EQ(e.status(), MRI_E_DEVICE);
    EXPECT_THAT(e.what(), testing::HasSubstr("/nonexistent/place"));
  }
}

}  // namespace
}  // namespace varve::light
