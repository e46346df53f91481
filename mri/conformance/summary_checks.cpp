// A summary: few pairs that stand for all tokens, counted right, and nothing but numbers.
#include "mri/conformance/opened.h"
#include "mri/conformance/random.h"
#include "mri/kind/summary.h"

namespace mri::conformance {
namespace {

constexpr uint32_t kTokenCounts[] = {1, 2, 31, 32, 33, 200, 1024};

// The tokens of one page.
struct Text {
  uint32_t n_tokens, head_dim;
  std::vector<float> k, v, mass;

  Text(Random& random, uint32_t n, uint32_t dim)
      : n_tokens(n),
        head_dim(dim),
        k(random.normals(uint64_t{n} * dim)),
        v(random.normals(uint64_t{n} * dim)),
        mass(n) {
    for (float& m : mass) m = static_cast<float>(random.unit()) / static_cast<float>(n);
  }
};

struct Pairs {
  mri_status status = MRI_OK;
  uint32_t n = 0;
  std::vector<float> k, v, log_count;
};

class Summary {
 public:
  explicit Summary(Bench& bench)
      : bench_(bench), plugin_(bench), table_(plugin_.table<mri_summary_v1>(MRI_SUMMARY)) {}

  uint32_t pairs_max(uint32_t n_tokens) { return table_.pairs_max(plugin_.self(), n_tokens); }

  Pairs make(const Text& text, uint32_t capacity, uint64_t seed = 7, bool with_mass = true) {
    const uint64_t size = uint64_t{capacity} * text.head_dim;
    Guarded<float> k(size, NAN), v(size, NAN), log_count(capacity, NAN);
    mri_summary_make_req req = sized<mri_summary_make_req>();
    req.k = text.k.data();
    req.v = text.v.data();
    req.mass = with_mass ? text.mass.data() : nullptr;
    req.seed = seed;
    req.n_tokens = text.n_tokens;
    req.head_dim = text.head_dim;
    mri_summary_make_rsp rsp = sized<mri_summary_make_rsp>();
    rsp.k = k.data();
    rsp.v = v.data();
    rsp.log_count = log_count.data();
    rsp.pairs_capacity = capacity;
    Pairs pairs;
    pairs.status = call(bench_, "make",
                        [&](mri_error* e) { return table_.make(plugin_.self(), &req, &rsp, e); });
    bench_.report->expect(k.is_intact() && v.is_intact() && log_count.is_intact(),
                          "make wrote outside its arrays");
    if (pairs.status != MRI_OK) return pairs;
    if (!bench_.report->expect(rsp.n_pairs <= capacity, "make: more pairs than room")) throw Stop{};
    pairs.n = rsp.n_pairs;
    pairs.k.assign(k.data(), k.data() + uint64_t{pairs.n} * text.head_dim);
    pairs.v.assign(v.data(), v.data() + uint64_t{pairs.n} * text.head_dim);
    pairs.log_count.assign(log_count.data(), log_count.data() + pairs.n);
    return pairs;
  }

  Pairs make(const Text& text) {
    Pairs pairs = make(text, pairs_max(text.n_tokens));
    bench_.report->expect(pairs.status == MRI_OK, "make of " + std::to_string(text.n_tokens) +
                                                      " tokens: status " +
                                                      std::to_string(pairs.status));
    return pairs;
  }

 private:
  Bench& bench_;
  Opened plugin_;
  const mri_summary_v1& table_;
};

bool are_finite(const std::vector<float>& x) {
  return std::all_of(x.begin(), x.end(), [](float value) { return std::isfinite(value); });
}

void check_pairs(Bench& bench, const Text& text, const Pairs& pairs) {
  Report& report = *bench.report;
  const std::string at = std::to_string(text.n_tokens) + " tokens: ";
  report.expect(pairs.n >= 1, at + "no pairs");
  report.expect(are_finite(pairs.k) && are_finite(pairs.v) && are_finite(pairs.log_count),
                at + "a pair that is not finite, or was not written");
  double count = 0;
  for (const float log : pairs.log_count) count += std::exp(static_cast<double>(log));
  report.expect(std::fabs(count - text.n_tokens) <= 1e-3 * text.n_tokens,
                at + "the pairs stand for " + std::to_string(count) + " tokens");
}

void counts_every_token(Bench& bench) {
  Summary summary(bench);
  Random random(bench.seed);
  for (const uint32_t head_dim : {32u, 64u, 128u}) {
    for (const uint32_t n : kTokenCounts) {
      const Text text(random, n, head_dim);
      const uint32_t most = summary.pairs_max(n);
      bench.report->expect(most >= 1 && most <= n,
                           "pairs_max(" + std::to_string(n) + ") is " + std::to_string(most));
      check_pairs(bench, text, summary.make(text));
    }
  }
}

void works_without_mass(Bench& bench) {
  Summary summary(bench);
  Random random(bench.seed);
  const Text text(random, 1024, 64);
  check_pairs(bench, text, summary.make(text, summary.pairs_max(1024), 7, false));
}

// Tokens that are all alike: every pair must be that token, so attention reads the same.
void keeps_what_is_alike(Bench& bench) {
  Summary summary(bench);
  Random random(bench.seed);
  Text text(random, 1024, 64);
  for (uint32_t i = text.head_dim; i < text.k.size(); ++i) {
    text.k[i] = text.k[i % text.head_dim];
    text.v[i] = text.v[i % text.head_dim];
  }
  const Pairs pairs = summary.make(text);
  check_pairs(bench, text, pairs);
  for (uint64_t i = 0; i < pairs.k.size(); ++i) {
    const uint64_t c = i % text.head_dim;
    if (!bench.report->expect(
            std::fabs(pairs.k[i] - text.k[c]) <= 1e-3 && std::fabs(pairs.v[i] - text.v[c]) <= 1e-3,
            "1024 equal tokens give a pair that differs from them"))
      return;
  }
}

void is_the_same_again(Bench& bench) {
  Summary one(bench), two(bench);
  Random random(bench.seed);
  for (const uint32_t n : {33u, 1024u}) {
    const Text text(random, n, 64);
    const Pairs a = one.make(text), b = two.make(text);
    bench.report->expect(a.n == b.n && a.k == b.k && a.v == b.v && a.log_count == b.log_count,
                         "the same tokens and seed give two summaries");
  }
}

void minds_its_room(Bench& bench) {
  Summary summary(bench);
  Random random(bench.seed);
  const Text text(random, 1024, 64);
  const uint32_t n = summary.make(text).n;
  for (const uint32_t room : {0u, 1u, n - 1}) {
    if (room >= n) continue;
    const mri_status status = summary.make(text, room).status;
    bench.report->expect(status == MRI_E_SPACE || status == MRI_E_ARG,
                         "room for " + std::to_string(room) + " of " + std::to_string(n) +
                             " pairs: status " + std::to_string(status));
  }
}

void survives_extremes(Bench& bench) {
  Summary summary(bench);
  Random random(bench.seed);
  Text text(random, 1024, 64);
  std::fill(text.mass.begin(), text.mass.end(), 0.f);
  check_pairs(bench, text, summary.make(text));
  std::fill(text.mass.begin(), text.mass.end(), NAN);
  check_pairs(bench, text, summary.make(text));
  for (float& x : text.k) x *= 1e4f;
  check_pairs(bench, text, summary.make(text));
  std::fill(text.k.begin(), text.k.end(), 0.f);
  check_pairs(bench, text, summary.make(text));
}

void serves_threads(Bench& bench) {
  Summary summary(bench);
  Random random(bench.seed);
  const Text text(random, 256, 64);
  const Pairs alone = summary.make(text);
  in_four_threads(bench, 8, "summaries", [&](uint64_t) {
    const Pairs pairs = summary.make(text);
    return pairs.k == alone.k && pairs.log_count == alone.log_count;
  });
}

void survives_any_values(Bench& bench) {
  Summary summary(bench);
  Random random(bench.seed);
  summary.pairs_max(0);
  summary.pairs_max(UINT32_MAX);
  for (int i = 0; i < 24; ++i) {
    Text text(random, 1 + random.below32(600), 1 + random.below32(64));
    for (std::vector<float>* x : {&text.k, &text.v, &text.mass}) {
      for (float& value : *x) {
        const float any = random.any_float();
        if (random.chance(10)) value = any;
      }
    }
    const uint32_t most = summary.pairs_max(text.n_tokens);
    if (most > text.n_tokens) continue;  // summary.limits tells
    summary.make(text, most, random.next());
  }
}

constexpr Test kTests[] = {
    {"summary.space", "summary", 2, MRI_1_0,
     "Too small arrays are MRI_E_SPACE or MRI_E_ARG, and nothing is written outside them.",
     "Compare pairs_capacity with what is about to be written.", minds_its_room},
    {"summary.limits", "summary", 3, MRI_1_0,
     "1 to pairs_max(n) <= n pairs of finite numbers whose counts sum to the n tokens.",
     "log_count is the natural logarithm of a count; leave out clusters of none.",
     counts_every_token},
    {"summary.no-mass", "summary", 3, MRI_1_0, "mass may be null.",
     "Take all tokens for equally heavy.", works_without_mass},
    {"summary.alike", "summary", 3, MRI_1_0, "1024 equal tokens give pairs equal to them.",
     "A mean of equal keys is that key: check weights and rounding.", keeps_what_is_alike},
    {"summary.determinism", "summary", 3, MRI_1_0,
     "The same tokens and seed have the same summary.",
     "The seed of the request is the only randomness allowed.", is_the_same_again},
    {"summary.extremes", "summary", 3, MRI_1_0,
     "No mass, NaN mass, huge keys and zero keys: still finite pairs that count every token.",
     "Do not divide by a sum that may be zero; replace NaN before sorting.", survives_extremes},
    {"summary.threads", "summary", 4, MRI_1_0, "Four threads at once get the same summaries.",
     "make is [any]: no shared scratch memory.", serves_threads},
    {"summary.fuzz", "summary", 4, MRI_1_0,
     "Any bits as numbers: never a crash or a write outside.",
     "NaN breaks orders: a search for the nearest must end with some answer.", survives_any_values},
};

}  // namespace

std::span<const Test> summary_tests() { return kTests; }

}  // namespace mri::conformance
