#include "kernels/attend.h"

namespace varve::kernels::cpu {
namespace {

// Above this, unpacking pages for a matrix product pays (measured with 64 pages of 64 channels).
constexpr size_t kMaxRows = 16;

}  // namespace

void attend(const QueryTile& tile, const KvPage* pages, size_t n_pages, float* o, size_t o_stride,
            float* lse, size_t lse_stride) {
  const bool few = size_t{tile.n_queries} * tile.group <= kMaxRows;
  (few ? attend_rows : attend_tile)(tile, pages, n_pages, o, o_stride, lse, lse_stride);
}

}  // namespace varve::kernels::cpu
