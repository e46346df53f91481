// What a store accepts from a quantizer.
#include "adapters/light/kv/store.h"

#include <gmock/gmock.h>

#include "mri/sdk/error.hpp"
#include "tests/unit/adapters/light/engine/cache_fixture.h"

namespace varve::light {
namespace {

using testing::HasSubstr;

class StoreTest : public CacheFixture {
 protected:
  void expect_refusal(uint32_t format, uint64_t body_bytes) {
    double_.format = format;
    double_.body_bytes = body_bytes;
    store_.reset();
    try {
      store();
      ADD_FAILURE() << "no error for format " << format << " with " << body_bytes << " bytes";
    } catch (const mri::Error& e) {
      EXPECT_THAT(e.what(), HasSubstr("quantizer: found format " + std::to_string(format)));
    }
  }
};

TEST_F(StoreTest, RefusesAQuantizerWhosePagesKernelsWouldReadPast) {
  const uint64_t right = kernels::body_bytes(kernels::KvFormat::kInt8, kDim);
  expect_refusal(MRI_KV_INT8, right - 1);
  expect_refusal(MRI_KV_INT8, 64);
  expect_refusal(0, right);
  expect_refusal(4, right);
  expect_refusal(MRI_KV_CUSTOM - 1, right);
  expect_refusal(MRI_KV_CUSTOM, UINT64_MAX);
  expect_refusal(MRI_KV_CUSTOM, uint64_t{1} << 40);
}

TEST_F(StoreTest, PadsPagesOfAFormatOfItsOwn) {
  double_.format = MRI_KV_CUSTOM + 5;
  double_.body_bytes = 1001;
  EXPECT_EQ(store().warm_page_bytes(), 1024u);
  EXPECT_EQ(store().warm_block_bytes(), 1024u * kLayers * kHeads);
}

}  // namespace
}  // namespace varve::light
