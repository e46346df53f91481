#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <span>

#include "kernels/attend.h"
#include "kernels/cpu/attend_tile_steps.h"
#include "kernels/cpu_target.h"

namespace varve::kernels::cpu {
namespace tile {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr size_t kSums = 16;  // partial sums of a row
constexpr size_t kChannelStep = 32;

template <typename T>
class Buffer {
 public:
  T* at_least(size_t n) {
    if (n > size_) {
      data_.reset();
      size_ = 0;
      data_ = hwy::AllocateAligned<T>(n);
      if (!data_) throw std::bad_alloc();
      size_ = n;
    }
    return data_.get();
  }

 private:
  hwy::AlignedFreeUniquePtr<T[]> data_;
  size_t size_ = 0;
};

struct Scratch {
  Buffer<float> q, o, max, sum, bias, s, page;
  Buffer<uint16_t> q_packed, p;
  Buffer<int32_t> position;
  Buffer<uint8_t> k, v;
};

Work prepare(Scratch& scratch, const Steps& steps, const QueryTile& tile) {
  Work w{};
  w.rope = tile.rope;
  w.head_dim = tile.rope->head_dim;
  w.o_dim = (w.head_dim + kChannelStep - 1) / kChannelStep * kChannelStep;
  const size_t rows = static_cast<size_t>(tile.n_queries) * tile.group;
  w.rows = (rows + steps.rows - 1) / steps.rows * steps.rows;
  w.q = scratch.q.at_least(w.rows * w.head_dim);
  w.q_packed = scratch.q_packed.at_least(w.rows * w.head_dim);
  w.o = scratch.o.at_least(w.rows * w.o_dim);
  w.max = scratch.max.at_least(w.rows);
  w.sum = scratch.sum.at_least(w.rows * kSums);
  w.bias = scratch.bias.at_least(steps.slots * kBlockTokens);
  w.s = scratch.s.at_least(steps.rows * steps.slots * kBlockTokens);
  w.p = scratch.p.at_least(steps.rows * steps.slots * kBlockTokens);
  w.page = scratch.page.at_least(2 * kBlockTokens * w.o_dim);
  w.v_width = steps.v_width != 0 ? steps.v_width : w.o_dim;
  const size_t k_bytes = kBlockTokens * w.head_dim * steps.value_bytes;
  const size_t v_bytes = kBlockTokens * w.v_width * steps.value_bytes;
  w.v_block_bytes = steps.slots * v_bytes;
  uint8_t* k = scratch.k.at_least(steps.slots * k_bytes);
  uint8_t* v = scratch.v.at_least(w.o_dim / w.v_width * w.v_block_bytes);
  for (size_t i = 0; i < steps.slots; ++i) {
    w.k[i] = k + i * k_bytes;
    w.v[i] = v + i * v_bytes;
  }
  std::fill_n(w.o, w.rows * w.o_dim, 0.0f);
  std::fill_n(w.max, w.rows, -kInfinity);
  std::fill_n(w.sum, w.rows * kSums, 0.0f);
  int32_t* position = scratch.position.at_least(w.rows);
  for (size_t r = 0; r < w.rows; ++r) {
    position[r] = static_cast<int32_t>(tile.offset + std::min(r, rows - 1) / tile.group);
  }
  w.position = position;
  return w;
}

void load_queries(const QueryTile& tile, const Work& w) {
  const size_t half = w.rope->rotary_dim / 2;
  const float factor = tile.scale * kLog2E;
  float* out = w.q;
  for (size_t i = 0; i < tile.n_queries; ++i) {
    const float* cos = w.rope->fine_cos + (tile.offset + i) * half;
    const float* sin = w.rope->fine_sin + (tile.offset + i) * half;
    for (size_t g = 0; g < tile.group; ++g, out += w.head_dim) {
      const float* in = tile.q + i * tile.q_stride + g * w.head_dim;
      for (size_t c = 0; c < half; ++c) {
        out[c] = factor * (in[c] * cos[c] - in[c + half] * sin[c]);
        out[c + half] = factor * (in[c + half] * cos[c] + in[c] * sin[c]);
      }
      for (size_t c = 2 * half; c < w.head_dim; ++c) out[c] = factor * in[c];
    }
  }
  std::fill(out, w.q + w.rows * w.head_dim, 0.0f);
}

void load_page(const Steps& steps, Work& w, const KvPage& page, size_t slot) {
  float* bias = w.bias + slot * kBlockTokens;
  for (size_t t = 0; t < kBlockTokens; ++t) {
    const float logit = page.log_weight + (page.bias ? page.bias[t] : 0.0f);
    bias[t] = page.live_mask >> t & 1 ? logit * kLog2E : -kInfinity;
  }
  w.start[slot] = page.bias ? std::numeric_limits<int64_t>::min()
                            : -static_cast<int64_t>(page.distance) * int64_t{kBlockTokens};
  steps.unpack(w, page, slot);
}

// Pages to come, fetched little by little while rows are computed: all at once would wait for
// memory instead.
class Ahead {
 public:
  Ahead(std::span<const KvPage> pages, size_t head_dim, size_t n_shares) : pages_(pages) {
    if (pages.empty()) return;
    const size_t bytes = body_bytes(pages[0].format, head_dim) + kLine;
    share_bytes_ = (pages.size() * bytes + n_shares - 1) / n_shares;
    head_dim_ = head_dim;
  }

  void fetch_share() {
    for (size_t done = 0; page_ < pages_.size() && done < share_bytes_; done += kLine) {
      const KvPage& page = pages_[page_];
      if (at_ == 0) {
        index_bytes_ = page.format == KvFormat::kInt8 ? index_bytes(head_dim_) : 0;
        end_ = page.live_mask != 0 ? index_bytes_ + body_bytes(page.format, head_dim_) : 0;
      }
      if (at_ < end_)
        __builtin_prefetch(at_ < index_bytes_ ? page.index + at_ : page.body + (at_ - index_bytes_),
                           0, 2);
      at_ += kLine;
      if (at_ >= end_) {
        at_ = 0;
        ++page_;
      }
    }
  }

 private:
  static constexpr size_t kLine = 64;
  const std::span<const KvPage> pages_;
  size_t share_bytes_ = 0, head_dim_ = 0, page_ = 0, at_ = 0, end_ = 0, index_bytes_ = 0;
};

// Adds a group of pages to all rows. Slots outside [begin, end) hold only keys after every query of
// the block.
void update_rows(const Steps& steps, const Work& w, size_t n_slots, Ahead ahead) {
  for (size_t row = 0; row < w.rows; row += steps.rows) {
    ahead.fetch_share();
    const int64_t last = w.position[row + steps.rows - 1];
    size_t begin = 0, end = n_slots;
    while (end > begin && w.start[end - 1] > last) --end;
    while (begin < end && w.start[begin] > last) ++begin;
    if (begin < end) steps.update(w, row, begin, end);
  }
}

void store_row(const Work& w, size_t row, float* o, float* lse) {
  float sum = 0;
  for (size_t i = 0; i < kSums; ++i) sum += w.sum[row * kSums + i];
  const bool empty = w.max[row] == -kInfinity;
  const float factor = empty ? 0.0f : 1.0f / sum;
  for (size_t c = 0; c < w.head_dim; ++c) o[c] = factor * w.o[row * w.o_dim + c];
  *lse = empty ? -kInfinity : (w.max[row] + std::log2(sum)) / kLog2E;
}

const Steps& best_steps(const QueryTile& tile) {
  const CpuFeatures cpu = cpu_features();
  const bool bf16 = tile.compute == Compute::kBf16 && cpu.avx512_bf16 &&
                    cpu_target() == CpuTarget::kAvx512Vnni && tile.rope->rotary_dim % 4 == 0;
  if (!bf16) return f32_steps();
  return tile.rope->head_dim % 64 == 0 && matmul_has_amx() ? matmul_steps() : bf16_steps();
}

}  // namespace

void mask_later_keys(const Work& w, size_t row, size_t n_rows, size_t slot, float* s,
                     size_t s_stride) {
  for (size_t i = 0; i < n_rows; ++i) {
    const int64_t visible = std::max<int64_t>(w.position[row + i] - w.start[slot] + 1, 0);
    for (size_t t = static_cast<size_t>(visible); t < kBlockTokens; ++t) {
      s[i * s_stride + t] = -kInfinity;
    }
  }
}

void attend_with(const Steps& steps, const QueryTile& tile, const KvPage* pages, size_t n_pages,
                 float* o, size_t o_stride, float* lse, size_t lse_stride) {
  if (tile.n_queries == 0 || tile.group == 0) return;
  thread_local Scratch scratch;
  Work w = prepare(scratch, steps, tile);
  load_queries(tile, w);
  steps.pack_queries(w);
  for (size_t first = 0; first < n_pages; first += steps.slots) {
    const size_t n = std::min(steps.slots, n_pages - first);
    for (size_t i = 0; i < n; ++i) load_page(steps, w, pages[first + i], i);
    const std::span<const KvPage> next(pages + first + n,
                                       std::min(steps.slots, n_pages - first - n));
    update_rows(steps, w, n, Ahead(next, w.head_dim, w.rows / steps.rows));
  }
  for (size_t i = 0; i < tile.n_queries; ++i) {
    for (size_t g = 0; g < tile.group; ++g) {
      store_row(w, i * tile.group + g, o + i * o_stride + g * w.head_dim, lse + i * lse_stride + g);
    }
  }
}

}  // namespace tile

void attend_tile(const QueryTile& tile, const KvPage* pages, size_t n_pages, float* o,
                 size_t o_stride, float* lse, size_t lse_stride) {
  tile::attend_with(tile::best_steps(tile), tile, pages, n_pages, o, o_stride, lse, lse_stride);
}

}  // namespace varve::kernels::cpu
