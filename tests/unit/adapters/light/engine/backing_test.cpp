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
  std::vector<Backing::Slot> slots;
  for (int i = 0; i < 70; ++i)
    slots.push_back(backing.put(std::vector<uint8_t>(5000, static_cast<uint8_t>(i)).data()));
  EXPECT_EQ(backing.used_bytes(), 70u * 5000u);
  for (int i = 0; i < 70; ++i) {
    EXPECT_EQ(slots[i].get()[0], i);
    EXPECT_EQ(slots[i].get()[4999], i);
  }
  const uint8_t* third = slots[3].get();
  Backing::Slot shared = slots[3];
  slots[3] = nullptr;
  EXPECT_EQ(backing.used_bytes(), 70u * 5000u);
  shared = nullptr;
  EXPECT_EQ(backing.used_bytes(), 69u * 5000u);
  const Backing::Slot again = backing.put(std::vector<uint8_t>(5000, 200).data());
  EXPECT_EQ(again.get(), third);
  EXPECT_EQ(third[17], 200);
  backing.prewarm(third);
}

TEST_P(BackingTest, SaysWhenItsLimitIsReached) {
  Backing backing(GetParam(), testing::TempDir(), 100, 250);
  const std::vector<uint8_t> data(100);
  const Backing::Slot slots[] = {backing.put(data.data()), backing.put(data.data())};
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
  Backing::Slot held = backing.put(std::vector<uint8_t>(kBytes, 1).data());
  const auto resident = [slot = held.get()] {
    unsigned char pages[kBytes / 4096] = {};
    EXPECT_EQ(mincore(const_cast<uint8_t*>(slot), kBytes, pages), 0);
    return std::count_if(std::begin(pages), std::end(pages), [](auto p) { return (p & 1) != 0; });
  };
  EXPECT_EQ(resident(), 64);
  held = nullptr;
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
