#include "kernels/attend.h"

namespace varve::kernels::cpu {

void attend(const QueryTile& tile, const KvPage* pages, size_t n_pages, float* o, size_t o_stride,
            float* lse, size_t lse_stride) {
  attend_rows(tile, pages, n_pages, o, o_stride, lse, lse_stride);
}

}  // namespace varve::kernels::cpu
