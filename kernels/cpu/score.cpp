#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/attend.h"
#include "kernels/cpu/score_vnni.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/score.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include "kernels/cpu/page-inl.h"

HWY_BEFORE_NAMESPACE();
namespace varve::kernels::HWY_NAMESPACE {

using VF = hn::Vec<FullF>;
constexpr FullF df;
constexpr size_t kLanes = hn::MaxLanes(df);
constexpr size_t kAheadPages = 8;  // how far the index of a page is fetched before its use

// The mass of a page for one row is factor * 2^exponent.
struct Masses {
  float* exponent;  // [rows][stride]
  float* factor;    // [rows][stride]
  size_t stride;    // pages, padded to whole vectors with empty masses
};

// The centre and radius of channels c..
template <class D>
struct Ball {
  hn::Vec<D> centre, radius;
  HWY_INLINE Ball(D d, const uint8_t* index, size_t head_dim, size_t c) {
    const auto step = load_f16(d, index, head_dim + c);
    centre = hn::MulAdd(step, hn::Set(d, 127.5f), load_f16(d, index, c));
    radius = load_f16(d, index, 2 * head_dim + c);
  }
  HWY_INLINE hn::Vec<D> add_bound(hn::Vec<D> q, hn::Vec<D> sum) const {
    return hn::MulAdd(hn::Abs(q), radius, hn::MulAdd(q, centre, sum));
  }
};

// out[r] = bound of kRows rows of rotated q.
template <size_t kRows, class D>
HWY_INLINE void radius_bounds(D d, const uint8_t* index, const float* q, size_t head_dim,
                              float* out) {
  hn::Vec<D> sum[kBlockRows];
  for (auto& s : sum) s = hn::Zero(d);
  for (size_t c = 0; c < head_dim; c += hn::Lanes(d)) {
    const Ball<D> ball(d, index, head_dim, c);
    for (size_t r = 0; r < kRows; ++r) {
      sum[r] = ball.add_bound(hn::LoadU(d, q + r * head_dim + c), sum[r]);
    }
  }
  reduce_rows(d, Add(), sum, out);
}

// The same for q not yet turned to the page, where whole vectors of all channels turn.
template <size_t kRows, class D>
HWY_INLINE void turned_radius_bounds(D d, const RopeTable& rope, const KvPage& page, const float* q,
                                     float* out) {
  const size_t n = rope.head_dim, half = n / 2;
  const size_t angle = static_cast<size_t>(std::abs(page.distance)) * half;
  const auto sign = hn::Set(d, page.distance < 0 ? -1.0f : 1.0f);
  hn::Vec<D> sum[kBlockRows], more[kBlockRows];
  for (size_t r = 0; r < kBlockRows; ++r) sum[r] = more[r] = hn::Zero(d);
  for (size_t c = 0; c < half; c += hn::Lanes(d)) {
    const auto cos = hn::LoadU(d, rope.coarse_cos + angle + c);
    const auto sin = hn::Mul(hn::LoadU(d, rope.coarse_sin + angle + c), sign);
    const Ball<D> first(d, page.index, n, c), second(d, page.index, n, half + c);
    for (size_t r = 0; r < kRows; ++r) {
      const auto a = hn::LoadU(d, q + r * n + c), b = hn::LoadU(d, q + r * n + half + c);
      sum[r] = first.add_bound(hn::NegMulAdd(b, sin, hn::Mul(a, cos)), sum[r]);
      more[r] = second.add_bound(hn::MulAdd(a, sin, hn::Mul(b, cos)), more[r]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) sum[r] = hn::Add(sum[r], more[r]);
  reduce_rows(d, Add(), sum, out);
}

template <class D>
void radius_masses(D d, const RopeTable& rope, const KvPage& page, const float* q, float* q_page,
                   size_t rows, const Masses& masses, size_t p) {
  const auto n_live = static_cast<float>(std::popcount(page.live_mask));
  const bool whole = rope.rotary_dim == rope.head_dim && rope.head_dim / 2 % hn::Lanes(d) == 0;
  if (!whole) rotate_to_page(rope, q, rows, page.distance, q_page);
  for_row_blocks(rows, [&]<size_t kRows>(size_t row) {
    float bounds[kBlockRows];
    if (whole) {
      turned_radius_bounds<kRows>(d, rope, page, q + row * rope.head_dim, bounds);
    } else {
      radius_bounds<kRows>(d, page.index, q_page + row * rope.head_dim, rope.head_dim, bounds);
    }
    for (size_t r = 0; r < kRows; ++r) {
      masses.exponent[(row + r) * masses.stride + p] = bounds[r] + page.log_weight * kLog2E;
      masses.factor[(row + r) * masses.stride + p] = n_live;
    }
  });
}

#if HWY_CAP_GE256
// Rows of queries folded with an index: logit = base + unit * sum over channels of code * q.
struct FoldedQueries {
  float* folded;  // [kBlockRows][head_dim]
  int16_t* q;     // [kBlockRows][head_dim]
  float base[kBlockRows];
  float unit;
};

template <size_t kRows, class D>
HWY_INLINE void fold_queries(D d, const uint8_t* index, const float* q, size_t head_dim,
                             FoldedQueries& out) {
  hn::Vec<D> base[kBlockRows], largest = hn::Set(d, 1e-30f);
  for (auto& b : base) b = hn::Zero(d);
  for (size_t c = 0; c < head_dim; c += hn::Lanes(d)) {
    const auto step = load_f16(d, index, head_dim + c);
    const auto bucket = hn::Mul(step, hn::Set(d, 64.0f));
    const auto first = hn::MulAdd(step, hn::Set(d, 31.5f), load_f16(d, index, c));
    for (size_t r = 0; r < kRows; ++r) {
      const auto x = hn::LoadU(d, q + r * head_dim + c);
      const auto folded = hn::Mul(x, bucket);
      base[r] = hn::MulAdd(x, first, base[r]);
      largest = hn::Max(largest, hn::Abs(folded));
      hn::StoreU(folded, d, out.folded + r * head_dim + c);
    }
  }
  reduce_rows(d, Add(), base, out.base);
  const hn::Rebind<int16_t, D> d16;
  const float max = hn::GetLane(hn::MaxOfLanes(d, largest));
  const auto inverse = hn::Set(d, 32767.0f / max);
  out.unit = max / 32767.0f;
  const hn::RebindToSigned<D> di;
  const auto rounder = hn::Set(d, kRounder);
  for (size_t i = 0; i < kRows * head_dim; i += hn::Lanes(d)) {
    const auto x = hn::MulAdd(hn::LoadU(d, out.folded + i), inverse, rounder);
    const auto code = hn::Sub(hn::BitCast(di, x), hn::BitCast(di, rounder));
    hn::StoreU(hn::DemoteTo(d16, code), d16, out.q + i);
  }
}

// Where token t's two bits of a channel pair lie after pair_planes, for t = token_of(i): bits
// 2 * (i / 4).. of 32-bit word i % 4, and 16 bits higher those of the odd channel.
HWY_INLINE size_t token_of(size_t i) {
  const size_t bit = 16 * (i % 4) + 2 * (i / 4);
  return 8 * (bit % 8 / 2) + bit / 8;
}

// pairs [head_dim / 2][4]: the planes of two channels with their 16-bit words interleaved.
HWY_INLINE void pair_planes(const uint8_t* planes, size_t head_dim, uint32_t* pairs) {
  const hn::ScalableTag<uint8_t> db;
  HWY_ALIGN static constexpr uint8_t kOrder[16] = {0, 1, 8,  9,  2, 3, 10, 11,
                                                   4, 5, 12, 13, 6, 7, 14, 15};
  const auto order = hn::LoadDup128(db, kOrder);
  auto* out = reinterpret_cast<uint8_t*>(pairs);
  for (size_t i = 0; i < 8 * head_dim; i += hn::Lanes(db)) {
    hn::StoreU(hn::TableLookupBytes(hn::LoadU(db, planes + i), order), db, out + i);
  }
}

// logits [kRows][32] of the tokens token_of(0..31).
template <size_t kRows>
HWY_INLINE void sketch_logits(const uint32_t* pairs, const FoldedQueries& queries, size_t head_dim,
                              float* logits) {
  const hn::RebindToSigned<FullF> di;
  const hn::RebindToUnsigned<FullF> du;
  const hn::Repartition<int16_t, FullF> d16;
  const auto low_bits = hn::Set(du, 0x00030003u);
  const auto quarter = hn::ShiftRight<2>(hn::Iota(du, 0));
  for (size_t i = 0; i < kBlockTokens; i += 2 * kLanes) {
    const auto shift0 =
        hn::ShiftLeft<1>(hn::Add(quarter, hn::Set(du, static_cast<uint32_t>(i / 4))));
    const auto shift1 = hn::Add(shift0, hn::Set(du, static_cast<uint32_t>(kLanes / 2)));
    hn::Vec<decltype(di)> sum0[kRows], sum1[kRows], unused = hn::Zero(di);
    for (size_t r = 0; r < kRows; ++r) sum0[r] = sum1[r] = hn::Zero(di);
    for (size_t pair = 0; pair < head_dim / 2; ++pair) {
      const auto words = hn::LoadDup128(du, pairs + 4 * pair);
      const auto code0 = hn::BitCast(d16, hn::And(hn::Shr(words, shift0), low_bits));
      const auto code1 = hn::BitCast(d16, hn::And(hn::Shr(words, shift1), low_bits));
      for (size_t r = 0; r < kRows; ++r) {
        int32_t two;
        std::memcpy(&two, queries.q + r * head_dim + 2 * pair, sizeof two);
        const auto q = hn::BitCast(d16, hn::Set(di, two));
        sum0[r] = hn::ReorderWidenMulAccumulate(di, code0, q, sum0[r], unused);
        sum1[r] = hn::ReorderWidenMulAccumulate(di, code1, q, sum1[r], unused);
      }
    }
    const VF unit = hn::Set(df, queries.unit);
    for (size_t r = 0; r < kRows; ++r) {
      const VF base = hn::Set(df, queries.base[r]);
      float* to = logits + r * kBlockTokens + i;
      hn::StoreU(hn::MulAdd(hn::ConvertTo(df, sum0[r]), unit, base), df, to);
      hn::StoreU(hn::MulAdd(hn::ConvertTo(df, sum1[r]), unit, base), df, to + kLanes);
    }
  }
}

struct SketchScratch {
  std::vector<uint32_t> pairs;
  std::vector<float> folded;
  std::vector<int16_t> q;
  void resize(size_t head_dim) {
    pairs.resize(2 * head_dim);
    folded.resize(kBlockRows * head_dim);
    q.resize(kBlockRows * head_dim);
  }
  void load(const uint8_t* planes, size_t head_dim) { pair_planes(planes, head_dim, pairs.data()); }

  template <size_t kRows, class D>
  HWY_INLINE void logits(D d, const uint8_t* index, const float* x, size_t head_dim, float* out) {
    FoldedQueries queries{folded.data(), q.data(), {}, 0};
    fold_queries<kRows>(d, index, x, head_dim, queries);
    sketch_logits<kRows>(pairs.data(), queries, head_dim, out);
  }
};
#else
HWY_INLINE size_t token_of(size_t i) { return i; }

struct SketchScratch {
  std::vector<float> codes;  // [head_dim][32]
  void resize(size_t head_dim) { codes.resize(head_dim * kBlockTokens); }
  void load(const uint8_t* planes, size_t head_dim) {
    for (size_t c = 0; c < head_dim; ++c) {
      uint64_t plane;
      std::memcpy(&plane, planes + 8 * c, sizeof plane);
      for (size_t t = 0; t < kBlockTokens; ++t) {
        codes[c * kBlockTokens + t] = static_cast<float>(plane >> (8 * (t % 8) + 2 * (t / 8)) & 3);
      }
    }
  }

  template <size_t kRows, class D>
  HWY_INLINE void logits(D, const uint8_t* index, const float* x, size_t head_dim, float* out) {
    const hn::CappedTag<float, 1> d1;
    std::fill_n(out, kRows * kBlockTokens, 0.0f);
    for (size_t c = 0; c < head_dim; ++c) {
      const float k_min = hn::GetLane(load_f16(d1, index, c));
      const float k_step = hn::GetLane(load_f16(d1, index, head_dim + c));
      for (size_t r = 0; r < kRows; ++r) {
        const float q = x[r * head_dim + c];
        const float base = q * (k_min + 31.5f * k_step), bucket = q * (64 * k_step);
        for (size_t t = 0; t < kBlockTokens; ++t) {
          out[r * kBlockTokens + t] += base + bucket * codes[c * kBlockTokens + t];
        }
      }
    }
  }
};
#endif

// Each row's maximum and sum of 2^(x - maximum) over 32 numbers.
template <size_t kRows>
HWY_INLINE void exponential_sums(const float* logits, float* max, float* sum) {
  VF v[kBlockRows];
  for (auto& x : v) x = hn::Set(df, -INFINITY);
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t t = 0; t < kBlockTokens; t += kLanes) {
      v[r] = hn::Max(v[r], hn::LoadU(df, logits + r * kBlockTokens + t));
    }
  }
  reduce_rows(df, Max(), v, max);
  for (auto& x : v) x = hn::Zero(df);
  for (size_t r = 0; r < kRows; ++r) {
    const VF base = hn::Set(df, max[r]);
    for (size_t t = 0; t < kBlockTokens; t += kLanes) {
      const VF x = hn::LoadU(df, logits + r * kBlockTokens + t);
      v[r] = hn::Add(v[r], exp2_negative(df, hn::Sub(x, base)));
    }
  }
  reduce_rows(df, Add(), v, sum);
}

template <class D>
void sketch_masses(D d, const KvPage& page, const float* q, size_t rows, size_t head_dim,
                   SketchScratch& scratch, const Masses& masses, size_t p) {
  scratch.load(page.index + 6 * head_dim, head_dim);
  for_row_blocks(rows, [&]<size_t kRows>(size_t row) {
    HWY_ALIGN float logits[kBlockRows * kBlockTokens];
    float max[kBlockRows], sum[kBlockRows];
    scratch.template logits<kRows>(d, page.index, q + row * head_dim, head_dim, logits);
    for (size_t i = 0; i < kBlockTokens && page.live_mask != ~0u; ++i) {
      if ((page.live_mask >> token_of(i) & 1u) != 0) continue;
      for (size_t r = 0; r < kRows; ++r) logits[r * kBlockTokens + i] = -INFINITY;
    }
    exponential_sums<kRows>(logits, max, sum);
    for (size_t r = 0; r < kRows; ++r) {
      masses.exponent[(row + r) * masses.stride + p] = max[r] + page.log_weight * kLog2E;
      masses.factor[(row + r) * masses.stride + p] = sum[r];
    }
  });
}

// Adds the softmax of a row's masses to the scores.
HWY_INLINE void add_softmax(const float* exponent, float* factor, size_t n, float* scores) {
  VF largest = hn::Set(df, -INFINITY), sum = hn::Zero(df);
  for (size_t p = 0; p < n; p += kLanes) {
    largest = hn::Max(largest, hn::LoadU(df, exponent + p));
  }
  const float max = hn::GetLane(hn::MaxOfLanes(df, largest));
  if (!(max > -INFINITY)) return;
  for (size_t p = 0; p < n; p += kLanes) {
    const VF e = exp2_negative(df, hn::Sub(hn::LoadU(df, exponent + p), hn::Set(df, max)));
    const VF mass = hn::Mul(e, hn::LoadU(df, factor + p));
    hn::StoreU(mass, df, factor + p);
    sum = hn::Add(sum, mass);
  }
  const float inverse = 1.0f / hn::GetLane(hn::SumOfLanes(df, sum));
  for (size_t p = 0; p < n; ++p) scores[p] += factor[p] * inverse;
}

struct Scratch {
  std::vector<float> floats;
  SketchScratch sketch;
};

HWY_INLINE void prefetch_index(const uint8_t* index, Score how, size_t head_dim) {
  const size_t begin = how == Score::kRadius ? 0 : 6 * head_dim;
  const size_t end = how == Score::kRadius ? 6 * head_dim : 14 * head_dim;
  for (size_t i = begin; i < end; i += 64) hwy::Prefetch(index + i);
  if (how == Score::kSketch) {
    for (size_t i = 0; i < 4 * head_dim; i += 64) hwy::Prefetch(index + i);
  }
}

HWY_INLINE void sketch_masses_by_bytes(const RopeTable& rope, const KvPage* pages, size_t n_pages,
                                       const float* q, size_t rows, const Masses& masses) {
  for (size_t p = 0; p < n_pages; p += cpu::kSketchVnniPages) {
    const size_t ahead = p + kAheadPages;
    for (size_t i = ahead; i < std::min(ahead + cpu::kSketchVnniPages, n_pages); ++i) {
      prefetch_index(pages[i].index, Score::kSketch, rope.head_dim);
    }
    cpu::sketch_masses_vnni(rope, pages + p, std::min(cpu::kSketchVnniPages, n_pages - p), q, rows,
                            masses.exponent + p, masses.factor + p, masses.stride);
  }
}

void score_pages(const QueryTile& tile, const KvPage* pages, size_t n_pages, Score how,
                 uint32_t query_step, float* scores) {
  thread_local Scratch scratch;
  const size_t head_dim = tile.rope->head_dim, step = std::max(query_step, 1u);
  const size_t rows = (tile.n_queries + step - 1) / step * tile.group;
  const size_t stride = (n_pages + kLanes - 1) / kLanes * kLanes;
  scratch.floats.resize(rows * (2 * head_dim + 2 * stride));
  scratch.sketch.resize(head_dim);
  float* q = scratch.floats.data();
  float* q_page = q + rows * head_dim;
  const Masses masses{q_page + rows * head_dim, q_page + rows * (head_dim + stride), stride};
  std::fill_n(scores, n_pages, 0.0f);
  std::fill_n(masses.exponent, rows * stride, -INFINITY);
  std::fill_n(masses.factor, rows * stride, 0.0f);
  for (size_t p = 0; p < std::min(kAheadPages, n_pages); ++p) {
    prefetch_index(pages[p].index, how, head_dim);
  }
  load_queries(tile, step, q);
  if (how == Score::kSketch && cpu::sketch_vnni_takes(*tile.rope)) {
    sketch_masses_by_bytes(*tile.rope, pages, n_pages, q, rows, masses);
  } else {
    with_channel_tag(head_dim, [&](auto d) {
      for (size_t p = 0; p < n_pages; ++p) {
        if (p + kAheadPages < n_pages) prefetch_index(pages[p + kAheadPages].index, how, head_dim);
        if (pages[p].live_mask == 0) continue;
        if (how == Score::kRadius) {
          radius_masses(d, *tile.rope, pages[p], q, q_page, rows, masses, p);
        } else {
          rotate_to_page(*tile.rope, q, rows, pages[p].distance, q_page);
          sketch_masses(d, pages[p], q_page, rows, head_dim, scratch.sketch, masses, p);
        }
      }
    });
  }
  for (size_t r = 0; r < rows; ++r) {
    add_softmax(masses.exponent + r * stride, masses.factor + r * stride, n_pages, scores);
  }
}

}  // namespace varve::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace varve::kernels::cpu {

HWY_EXPORT(score_pages);

void score_pages(const QueryTile& tile, const KvPage* pages, size_t n_pages, Score how,
                 uint32_t query_step, float* scores) {
  HWY_DYNAMIC_DISPATCH(score_pages)(tile, pages, n_pages, how, query_step, scores);
}

}  // namespace varve::kernels::cpu
#endif
