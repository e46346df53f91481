#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/attend.h"
#include "kernels/cpu/page_fetch.h"
#include "kernels/number.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attend_rows.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include "kernels/cpu/page-inl.h"

HWY_BEFORE_NAMESPACE();
namespace varve::kernels::HWY_NAMESPACE {

constexpr size_t kBatchPages = 8;     // pages between two updates of the running maxima
constexpr size_t kAheadHalves = 6;    // keys or values of a page are fetched so long before use
constexpr size_t kStepChannels = 32;  // channels of a value that share a step
constexpr size_t kBatchTokens = kBatchPages * kBlockTokens;

using VF = hn::Vec<FullF>;
constexpr FullF df;
constexpr size_t kLanes = hn::MaxLanes(df);
constexpr size_t kPassTokens = std::min(2 * kLanes, kBlockTokens);  // keys per sweep of channels

// Running softmax state of all rows. acc is not yet divided by sum.
struct State {
  size_t rows, head_dim;
  float* q;          // [rows][head_dim], turned by the offset, scaled
  float* q_page;     // [rows][head_dim], turned by the page's distance
  float* logits;     // [rows][kBatchTokens], then probabilities
  float* acc;        // [rows][head_dim]
  float* max;        // [rows]
  float* sum;        // [rows]
  float* row_const;  // [rows], added to all logits of a page
  float* steps;      // [groups][32], value steps of an int8 page
  float* scaled_p;   // [rows][groups][32], probabilities times steps
  uint8_t* codes;    // [48 * head_dim], keys of an int8 page
  cpu::PageFetch* fetch;
};

// Keys t0.. of two neighbouring channels as vectors of tokens.
struct KeyPair {
  VF even0, even1, odd0, odd1;
};

struct F32Keys {
  const float* k;
  HWY_INLINE KeyPair load(size_t c, size_t t0) const {
    const float* at = k + c * kBlockTokens + t0;
    return {hn::LoadU(df, at), hn::LoadU(df, at + kLanes), hn::LoadU(df, at + kBlockTokens),
            hn::LoadU(df, at + kBlockTokens + kLanes)};
  }
};

HWY_INLINE VF low_bf16(hn::Vec<hn::RebindToUnsigned<FullF>> pair) {
  return hn::BitCast(df, hn::ShiftLeft<16>(pair));
}

HWY_INLINE VF high_bf16(hn::Vec<hn::RebindToUnsigned<FullF>> pair) {
  const hn::RebindToUnsigned<FullF> du;
  return hn::BitCast(df, hn::And(pair, hn::Set(du, 0xffff0000u)));
}

struct Bf16Keys {
  const uint32_t* k;
  HWY_INLINE KeyPair load(size_t c, size_t t0) const {
    const hn::RebindToUnsigned<FullF> du;
    const uint32_t* at = k + c / 2 * kBlockTokens + t0;
    const auto a = hn::LoadU(du, at), b = hn::LoadU(du, at + kLanes);
    return {low_bf16(a), low_bf16(b), high_bf16(a), high_bf16(b)};
  }
};

// Key codes as bytes: step and min are folded into the query.
struct Int8Keys {
  const uint8_t* codes;  // [2][head_dim][16], the first 16 tokens and the others
  size_t head_dim;
  HWY_INLINE VF code(size_t c, size_t t) const {
    const hn::Rebind<uint8_t, FullF> d8;
    const hn::RebindToSigned<FullF> di;
    const uint8_t* at = codes + (t / 16 * head_dim + c) * 16 + t % 16;
    return hn::ConvertTo(df, hn::PromoteTo(di, hn::LoadU(d8, at)));
  }
  HWY_INLINE KeyPair load(size_t c, size_t t0) const {
    return {code(c, t0), code(c, t0 + kLanes), code(c + 1, t0), code(c + 1, t0 + kLanes)};
  }
};

// The bits of mask from a, the others from b.
template <class V>
HWY_INLINE V select(V mask, V a, V b) {
  return hn::Or(hn::And(mask, a), hn::AndNot(mask, b));
}

// Writes codes as Int8Keys reads them. The two planes of a channel first become 16 bytes of high
// nibbles in the order of the low ones.
HWY_INLINE void unpack_codes(const uint8_t* top, const uint8_t* mid, const uint8_t* low,
                             size_t head_dim, uint8_t* high, uint8_t* codes) {
  const hn::CappedTag<uint64_t, 8> d64;
  const auto* tops = reinterpret_cast<const uint64_t*>(top);
  const auto* mids = reinterpret_cast<const uint64_t*>(mid);
  const auto mask = hn::Set(d64, 0xcccccccccccccccc);
  for (size_t c = 0; c < head_dim; c += hn::Lanes(d64)) {
    const auto t = hn::LoadU(d64, tops + c), m = hn::LoadU(d64, mids + c);
    hn::StoreInterleaved2(select(mask, hn::ShiftLeft<2>(t), m),
                          select(mask, t, hn::ShiftRight<2>(m)), d64,
                          reinterpret_cast<uint64_t*>(high) + 2 * c);
  }
  const auto upper = hn::Set(d64, 0xf0f0f0f0f0f0f0f0);
  for (size_t i = 0; i < 16 * head_dim; i += 8 * hn::Lanes(d64)) {
    const auto h = hn::LoadU(d64, reinterpret_cast<const uint64_t*>(high + i));
    const auto l = hn::LoadU(d64, reinterpret_cast<const uint64_t*>(low + i));
    hn::StoreU(select(upper, hn::ShiftLeft<4>(h), l), d64, reinterpret_cast<uint64_t*>(codes + i));
    hn::StoreU(select(upper, h, hn::ShiftRight<4>(l)), d64,
               reinterpret_cast<uint64_t*>(codes + 16 * head_dim + i));
  }
}

// logits[r * kBatchTokens + t] = q_r . key t + row_const[r] for kRows rows and all tokens.
template <size_t kRows, class Keys>
HWY_INLINE void key_products(const Keys& keys, const float* q, size_t head_dim,
                             const float* row_const, float* logits, cpu::PageFetch* fetch) {
  for (size_t t0 = 0; t0 < kBlockTokens; t0 += kPassTokens) {
    VF sum0[kRows], sum1[kRows], more0[kRows], more1[kRows];  // four chains hide the latency
    for (size_t r = 0; r < kRows; ++r) {
      sum0[r] = sum1[r] = hn::Set(df, row_const[r]);
      more0[r] = more1[r] = hn::Zero(df);
    }
    for (size_t c = 0; c < head_dim; c += 2) {
      fetch->lines(2);
      const KeyPair k = keys.load(c, t0);
      for (size_t r = 0; r < kRows; ++r) {
        const VF even = hn::Set(df, q[r * head_dim + c]);
        const VF odd = hn::Set(df, q[r * head_dim + c + 1]);
        sum0[r] = hn::MulAdd(even, k.even0, sum0[r]);
        sum1[r] = hn::MulAdd(even, k.even1, sum1[r]);
        more0[r] = hn::MulAdd(odd, k.odd0, more0[r]);
        more1[r] = hn::MulAdd(odd, k.odd1, more1[r]);
      }
    }
    for (size_t r = 0; r < kRows; ++r) {
      hn::StoreU(hn::Add(sum0[r], more0[r]), df, logits + r * kBatchTokens + t0);
      hn::StoreU(hn::Add(sum1[r], more1[r]), df, logits + r * kBatchTokens + t0 + kLanes);
    }
  }
}

template <class Keys>
void page_products(const Keys& keys, const State& s, float* logits) {
  for_row_blocks(s.rows, [&]<size_t kRows>(size_t r) {
    key_products<kRows>(keys, s.q_page + r * s.head_dim, s.head_dim, s.row_const + r,
                        logits + r * kBatchTokens, s.fetch);
  });
}

// Folds the steps of the codes into q_page and their minima into row_const.
template <class D>
HWY_INLINE void fold_index(D d, const uint8_t* index, const State& s) {
  for_row_blocks(s.rows, [&]<size_t kRows>(size_t row) {
    hn::Vec<D> constant[kBlockRows];
    for (auto& x : constant) x = hn::Zero(d);
    for (size_t c = 0; c < s.head_dim; c += hn::Lanes(d)) {
      const auto k_min = load_f16(d, index, c), k_step = load_f16(d, index, s.head_dim + c);
      for (size_t r = 0; r < kRows; ++r) {
        float* q = s.q_page + (row + r) * s.head_dim + c;
        const auto x = hn::LoadU(d, q);
        constant[r] = hn::MulAdd(x, k_min, constant[r]);
        hn::StoreU(hn::Mul(x, k_step), d, q);
      }
    }
    float sums[kBlockRows];
    reduce_rows(d, Add(), constant, sums);
    for (size_t r = 0; r < kRows; ++r) s.row_const[row + r] += sums[r];
  });
}

// The keys of a page that a query `limit` tokens after the page's first one sees.
HWY_INLINE uint32_t causal_mask(const KvPage& page, int64_t limit) {
  if (page.bias != nullptr || limit >= 31) return page.live_mask;
  return limit < 0 ? 0u : page.live_mask & ((uint32_t{2} << limit) - 1);
}

HWY_INLINE void add_bias(const float* bias, float* logits) {
  for (size_t t = 0; t < kBlockTokens; t += kLanes) {
    const VF sum =
        hn::MulAdd(hn::LoadU(df, bias + t), hn::Set(df, kLog2E), hn::LoadU(df, logits + t));
    hn::StoreU(sum, df, logits + t);
  }
}

HWY_INLINE void mask_logits(uint32_t mask, float* logits) {
  for (uint32_t dead = ~mask; dead != 0; dead &= dead - 1) {
    logits[hwy::Num0BitsBelowLS1Bit_Nonzero32(dead)] = -INFINITY;
  }
}

template <class D>
void page_logits(D d, const QueryTile& tile, const KvPage& page, const State& s, float* logits) {
  rotate_to_page(*tile.rope, s.q, s.rows, page.distance, s.q_page);
  std::fill_n(s.row_const, s.rows, page.log_weight * kLog2E);
  switch (page.format) {
    case KvFormat::kF32:
      page_products(F32Keys{reinterpret_cast<const float*>(page.body)}, s, logits);
      break;
    case KvFormat::kBf16:
      page_products(Bf16Keys{reinterpret_cast<const uint32_t*>(page.body)}, s, logits);
      break;
    case KvFormat::kInt8: {
      fold_index(d, page.index, s);
      unpack_codes(page.index + 6 * s.head_dim, page.body, page.body + 8 * s.head_dim, s.head_dim,
                   s.codes + 32 * s.head_dim, s.codes);
      page_products(Int8Keys{s.codes, s.head_dim}, s, logits);
      break;
    }
  }
  for (size_t r = 0; r < s.rows; ++r) {
    const int64_t limit = int64_t{tile.offset} + static_cast<int64_t>(r / tile.group) +
                          int64_t{page.distance} * int64_t{kBlockTokens};
    if (page.bias != nullptr) add_bias(page.bias, logits + r * kBatchTokens);
    mask_logits(causal_mask(page, limit), logits + r * kBatchTokens);
  }
}

// Turns the logits of a batch into probabilities relative to the new maximum.
void update_softmax(const State& s, size_t n_tokens) {
  for (size_t r = 0; r < s.rows; ++r) {
    float* p = s.logits + r * kBatchTokens;
    VF largest = hn::Set(df, s.max[r]);
    for (size_t t = 0; t < n_tokens; t += kLanes) {
      largest = hn::Max(largest, hn::LoadU(df, p + t));
    }
    const float max = hn::GetLane(hn::MaxOfLanes(df, largest));
    const VF base = hn::Set(df, max > -INFINITY ? max : 0.0f);
    VF sum = hn::Zero(df);
    for (size_t t = 0; t < n_tokens; t += kLanes) {
      const VF e = exp2_negative(df, hn::Sub(hn::LoadU(df, p + t), base));
      hn::StoreU(e, df, p + t);
      sum = hn::Add(sum, e);
    }
    const float old = s.max[r] > -INFINITY ? std::exp2(s.max[r] - max) : 0.0f;
    s.sum[r] = s.sum[r] * old + hn::GetLane(hn::SumOfLanes(df, sum));
    s.max[r] = max;
    if (old == 1.0f) continue;
    float* acc = s.acc + r * s.head_dim;
    for (size_t c = 0; c < s.head_dim; ++c) acc[c] *= old;
  }
}

// Values of the tokens t, t + 1 for channels c.. of one page.
template <class D>
struct F32Values {
  const float* v;
  size_t head_dim;
  static constexpr bool kScaled = false;
  HWY_INLINE void load(D d, size_t t, size_t c, hn::Vec<D>& first, hn::Vec<D>& second) const {
    first = hn::LoadU(d, v + t * head_dim + c);
    second = hn::LoadU(d, v + (t + 1) * head_dim + c);
  }
};

template <class D>
struct Bf16Values {
  const uint32_t* v;
  size_t head_dim;
  static constexpr bool kScaled = false;
  HWY_INLINE void load(D d, size_t t, size_t c, hn::Vec<D>& first, hn::Vec<D>& second) const {
    const hn::RebindToUnsigned<D> du;
    const auto pair = hn::LoadU(du, v + t / 2 * head_dim + c);
    first = hn::BitCast(d, hn::ShiftLeft<16>(pair));
    second = hn::BitCast(d, hn::And(pair, hn::Set(du, 0xffff0000u)));
  }
};

// The codes themselves: the steps are folded into the probabilities.
template <class D>
struct Int8Values {
  const int8_t* v;
  size_t head_dim;
  static constexpr bool kScaled = true;
  HWY_INLINE void load(D d, size_t t, size_t c, hn::Vec<D>& first, hn::Vec<D>& second) const {
    const hn::Rebind<int8_t, D> d8;
    const hn::RebindToSigned<D> di;
    first = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, v + t * head_dim + c)));
    second = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, v + (t + 1) * head_dim + c)));
  }
};

// Probabilities of the tokens of one page. Scaled ones differ from group to group of 32 channels.
struct Probabilities {
  const float* p;  // row r, group g, token t at p + r * row_stride + g * group_stride + t
  size_t row_stride, group_stride;
};

// acc [kRows][head_dim] += p * values, for kVectors vectors of channels from c.
template <size_t kRows, size_t kVectors, class D, class Values>
HWY_INLINE void value_products(D d, const Values& values, const Probabilities& from, size_t row,
                               size_t c, const State& s) {
  constexpr size_t n = hn::MaxLanes(D());
  hn::Vec<D> sum[kRows][kVectors];
  float* acc = s.acc + row * s.head_dim + c;
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t i = 0; i < kVectors; ++i) {
      sum[r][i] = hn::LoadU(d, acc + r * s.head_dim + i * n);
    }
  }
  const float* p = from.p + row * from.row_stride + c / kStepChannels * from.group_stride;
  for (size_t t = 0; t < kBlockTokens; t += 2, p += 2) {
    s.fetch->lines(kVectors);
    hn::Vec<D> first[kVectors], second[kVectors];
    for (size_t i = 0; i < kVectors; ++i) values.load(d, t, c + i * n, first[i], second[i]);
    for (size_t r = 0; r < kRows; ++r) {
      auto p0 = hn::Zero(d), p1 = hn::Zero(d);
      for (size_t i = 0; i < kVectors; ++i) {
        if (i == 0 || (Values::kScaled && i * n % kStepChannels == 0)) {
          const float* at = p + r * from.row_stride + i * n / kStepChannels * from.group_stride;
          p0 = hn::Set(d, at[0]);
          p1 = hn::Set(d, at[1]);
        }
        sum[r][i] = hn::MulAdd(p1, second[i], hn::MulAdd(p0, first[i], sum[r][i]));
      }
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t i = 0; i < kVectors; ++i) {
      hn::StoreU(sum[r][i], d, acc + r * s.head_dim + i * n);
    }
  }
}

template <class D, class Values>
HWY_INLINE void all_value_products(D d, const Values& values, const State& s,
                                   const Probabilities& p) {
  constexpr size_t kWide = kLanes < 16 ? 2 : 4;
  size_t c = 0;
  for (; c + kWide * hn::Lanes(d) <= s.head_dim; c += kWide * hn::Lanes(d)) {
    for_row_blocks(s.rows, [&]<size_t kRows>(size_t r) {
      value_products<kRows, kWide>(d, values, p, r, c, s);
    });
  }
  for (; c < s.head_dim; c += hn::Lanes(d)) {
    for_row_blocks(
        s.rows, [&]<size_t kRows>(size_t r) { value_products<kRows, 1>(d, values, p, r, c, s); });
  }
}

// steps [n_groups][32] of an int8 page.
HWY_INLINE void load_steps(const uint8_t* from, size_t n_groups, float* steps) {
  const hn::Rebind<uint16_t, FullF> d16;
  const hn::Rebind<hwy::float16_t, FullF> dh;
  const auto* halves = reinterpret_cast<const uint16_t*>(from);
  if (n_groups == 2) {
    for (size_t t = 0; t < kBlockTokens; t += kLanes) {
      hn::Vec<decltype(d16)> even, odd;
      hn::LoadInterleaved2(d16, halves + 2 * t, even, odd);
      hn::StoreU(hn::PromoteTo(df, hn::BitCast(dh, even)), df, steps + t);
      hn::StoreU(hn::PromoteTo(df, hn::BitCast(dh, odd)), df, steps + kBlockTokens + t);
    }
    return;
  }
  for (size_t i = 0; i < kBlockTokens * n_groups; ++i) {
    steps[i % n_groups * kBlockTokens + i / n_groups] = f32_from_f16(halves[i]);
  }
}

// The steps go into the probabilities.
template <class D>
void int8_values(D d, const uint8_t* body, const State& s, const float* p) {
  const auto* codes = reinterpret_cast<const int8_t*>(body + 24 * s.head_dim);
  const size_t n_groups = (s.head_dim + kStepChannels - 1) / kStepChannels;
  load_steps(body + (24 + kBlockTokens) * s.head_dim, n_groups, s.steps);
  const Probabilities scaled{s.scaled_p, n_groups * kBlockTokens, kBlockTokens};
  for (size_t r = 0; r < s.rows; ++r) {
    for (size_t i = 0; i < scaled.row_stride; i += kLanes) {
      const VF x = hn::LoadU(df, p + r * kBatchTokens + i % kBlockTokens);
      hn::StoreU(hn::Mul(x, hn::LoadU(df, s.steps + i)), df,
                 s.scaled_p + r * scaled.row_stride + i);
    }
  }
  all_value_products(d, Int8Values<D>{codes, s.head_dim}, s, scaled);
}

template <class D>
void page_values(D d, const KvPage& page, const State& s, const float* p) {
  const size_t half = kBlockTokens * s.head_dim;
  switch (page.format) {
    case KvFormat::kF32: {
      const auto* v = reinterpret_cast<const float*>(page.body) + half;
      return all_value_products(d, F32Values<D>{v, s.head_dim}, s, {p, kBatchTokens, 0});
    }
    case KvFormat::kBf16: {
      const auto* v = reinterpret_cast<const uint32_t*>(page.body) + half / 2;
      return all_value_products(d, Bf16Values<D>{v, s.head_dim}, s, {p, kBatchTokens, 0});
    }
    case KvFormat::kInt8:
      return int8_values(d, page.body, s, p);
  }
}

// The scratch of a thread, cut into the arrays of a State.
State make_state(size_t rows, size_t head_dim) {
  thread_local std::vector<float> floats;
  thread_local std::vector<uint64_t> bytes;
  const size_t steps = (head_dim + kStepChannels - 1) / kStepChannels * kBlockTokens;
  floats.resize(rows * (3 * head_dim + kBatchTokens + steps + 3) + steps);
  bytes.resize(6 * head_dim);
  State s{};
  float* next = floats.data();
  const auto cut = [&](size_t n) { return std::exchange(next, next + n); };
  s.rows = rows;
  s.head_dim = head_dim;
  s.q = cut(rows * head_dim);
  s.q_page = cut(rows * head_dim);
  s.logits = cut(rows * kBatchTokens);
  s.acc = cut(rows * head_dim);
  s.max = cut(rows);
  s.sum = cut(rows);
  s.row_const = cut(rows);
  s.scaled_p = cut(rows * steps);
  s.steps = next;
  s.codes = reinterpret_cast<uint8_t*>(bytes.data());
  std::fill_n(s.acc, rows * head_dim, 0.0f);
  std::fill_n(s.max, rows, -INFINITY);
  std::fill_n(s.sum, rows, 0.0f);
  return s;
}

HWY_INLINE bool any_visible(const QueryTile& tile, const KvPage& page) {
  const int64_t last = int64_t{tile.offset} + tile.n_queries - 1;
  return causal_mask(page, last + int64_t{page.distance} * int64_t{kBlockTokens}) != 0;
}

template <class D>
void attend_pages(D d, const QueryTile& tile, const std::vector<const KvPage*>& pages,
                  const State& s) {
  size_t half = 0;
  const auto fetch_next = [&] {
    s.fetch->set(cpu::half_of(pages, kBatchPages, half++), s.head_dim);
  };
  while (half < kAheadHalves) fetch_next();
  for (size_t first = 0; first < pages.size(); first += kBatchPages) {
    const size_t n = std::min(kBatchPages, pages.size() - first);
    for (size_t b = 0; b < n; ++b) {
      fetch_next();
      page_logits(d, tile, *pages[first + b], s, s.logits + b * kBlockTokens);
    }
    update_softmax(s, n * kBlockTokens);
    for (size_t b = 0; b < n; ++b) {
      fetch_next();
      page_values(d, *pages[first + b], s, s.logits + b * kBlockTokens);
    }
  }
}

void attend_rows(const QueryTile& tile, const KvPage* pages, size_t n_pages, float* o,
                 size_t o_stride, float* lse, size_t lse_stride) {
  const size_t head_dim = tile.rope->head_dim;
  thread_local std::vector<const KvPage*> visible;
  visible.clear();
  for (size_t p = 0; p < n_pages; ++p) {
    if (any_visible(tile, pages[p])) visible.push_back(&pages[p]);
  }
  cpu::PageFetch fetch;
  State s = make_state(size_t{tile.n_queries} * tile.group, head_dim);
  s.fetch = &fetch;
  load_queries(tile, 1, s.q);
  with_channel_tag(head_dim, [&](auto d) { attend_pages(d, tile, visible, s); });
  for (size_t r = 0; r < s.rows; ++r) {
    const size_t i = r / tile.group, g = r % tile.group;
    const float inverse = s.sum[r] > 0 ? 1.0f / s.sum[r] : 0.0f;
    float* to = o + i * o_stride + g * head_dim;
    for (size_t c = 0; c < head_dim; ++c) to[c] = s.acc[r * head_dim + c] * inverse;
    lse[i * lse_stride + g] = s.sum[r] > 0 ? (s.max[r] + std::log2(s.sum[r])) * kLn2 : -INFINITY;
  }
}

}  // namespace varve::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace varve::kernels::cpu {

HWY_EXPORT(attend_rows);

void attend_rows(const QueryTile& tile, const KvPage* pages, size_t n_pages, float* o,
                 size_t o_stride, float* lse, size_t lse_stride) {
  HWY_DYNAMIC_DISPATCH(attend_rows)(tile, pages, n_pages, o, o_stride, lse, lse_stride);
}

}  // namespace varve::kernels::cpu
#endif
