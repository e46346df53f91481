// A quantizer: pages come back as precise as their bits allow, whatever is in them.
#include <limits>

#include "mri/conformance/breakable_kernels.h"
#include "mri/conformance/opened.h"
#include "mri/conformance/random.h"
#include "mri/kind/quantizer.h"

namespace mri::conformance {
namespace {

constexpr uint32_t kTokens = MRI_BLOCK_TOKENS;
constexpr uint32_t kHeadSizes[] = {32, 64, 96, 128};

struct Page {
  Guarded<float> k, v;
  Guarded<uint8_t> index, body;
};

class Quantizer {
 public:
  explicit Quantizer(Bench& bench)
      : bench_(bench), plugin_(bench), table_(plugin_.table<mri_quantizer_v1>(MRI_QUANTIZER)) {}

  // Describes a page of `head_dim`; false when the plugin does not offer it.
  bool describe(uint32_t head_dim, mri_quant_desc* desc) {
    *desc = sized<mri_quant_desc>();
    const std::string what = "describe(" + std::to_string(head_dim) + ")";
    const mri_status status = call(bench_, what, [&](mri_error* e) {
      return table_.describe(plugin_.self(), head_dim, desc, e);
    });
    if (status == MRI_OK) return true;
    bench_.report->expect(
        status == MRI_E_UNSUPPORTED,
        what + ": status " + std::to_string(status) + ", expected success or MRI_E_UNSUPPORTED");
    return false;
  }

  // A page of k and v, indexed, not encoded yet.
  std::unique_ptr<Page> page(const mri_quant_desc& desc, uint32_t head_dim, std::vector<float> k,
                             std::vector<float> v, uint32_t live, uint8_t fill = 0) {
    auto page = std::unique_ptr<Page>(new Page{Guarded<float>(k), Guarded<float>(v),
                                               Guarded<uint8_t>(index_bytes(head_dim)),
                                               Guarded<uint8_t>(desc.body_bytes, fill)});
    bench_.kernels->make_index(bench_.kernels->self, page->k.data(), live, head_dim,
                               page->index.data());
    return page;
  }

  mri_status encode(Page& page, uint32_t head_dim, uint32_t live, const Page* before = nullptr) {
    mri_quant_encode_req req = sized<mri_quant_encode_req>();
    req.k = page.k.data();
    req.v = page.v.data();
    req.index = page.index.data();
    req.body = page.body.data();
    if (before != nullptr) {
      req.previous_index = before->index.data();
      req.previous_body = before->body.data();
    }
    req.head_dim = head_dim;
    req.live_mask = live;
    const std::vector<float> k = page.k.copy(), v = page.v.copy();
    const mri_status status = call(
        bench_, "encode", [&](mri_error* e) { return table_.encode(plugin_.self(), &req, e); });
    bench_.report->expect(same(page.k, k) && same(page.v, v), "encode changed its inputs");
    bench_.report->expect(page.body.is_intact(), "encode wrote outside the body");
    return status;
  }

  mri_status decode(const Page& page, uint32_t head_dim, uint32_t live, Guarded<float>* k,
                    Guarded<float>* v, const Page* before = nullptr) {
    mri_quant_decode_req req = sized<mri_quant_decode_req>();
    req.index = page.index.data();
    req.body = page.body.data();
    if (before != nullptr) {
      req.previous_index = before->index.data();
      req.previous_body = before->body.data();
    }
    req.k = k->data();
    req.v = v->data();
    req.head_dim = head_dim;
    req.live_mask = live;
    const std::vector<uint8_t> body = page.body.copy();
    const mri_status status = call(
        bench_, "decode", [&](mri_error* e) { return table_.decode(plugin_.self(), &req, e); });
    bench_.report->expect(body == page.body.copy(), "decode changed the body");
    bench_.report->expect(k->is_intact() && v->is_intact(), "decode wrote outside k or v");
    return status;
  }

  uint64_t index_bytes(uint32_t head_dim) const {
    return bench_.kernels->index_bytes(bench_.kernels->self, head_dim);
  }
  Bench& bench() { return bench_; }

 private:
  static bool same(const Guarded<float>& a, const std::vector<float>& b) {
    return std::memcmp(a.data(), b.data(), b.size() * sizeof(float)) == 0;  // NaN equals itself
  }

  Bench& bench_;
  Opened plugin_;
  const mri_quantizer_v1& table_;
};

// f(head_dim, desc) for each head size that the plugin offers.
template <class F>
void each_size(Quantizer& quantizer, F&& f) {
  bool any = false;
  for (const uint32_t head_dim : kHeadSizes) {
    mri_quant_desc desc;
    if (!quantizer.describe(head_dim, &desc)) continue;
    any = true;
    f(head_dim, desc);
  }
  quantizer.bench().report->expect(any, "offers none of the head sizes 32, 64, 96, 128");
}

void describes(Bench& bench) {
  Quantizer quantizer(bench);
  each_size(quantizer, [&](uint32_t head_dim, const mri_quant_desc& desc) {
    Report& report = *bench.report;
    const std::string at = "describe(" + std::to_string(head_dim) + "): ";
    report.expect(desc.body_bytes > 0 && desc.body_bytes <= 4ull * kTokens * head_dim * 4,
                  at + "body_bytes is " + std::to_string(desc.body_bytes));
    const double bits = static_cast<double>(desc.body_bytes) * 8 / (2.0 * kTokens * head_dim);
    report.expect(std::fabs(desc.bits_per_value - bits) <= 0.05 * bits + 0.1,
                  at + "bits_per_value is " + std::to_string(desc.bits_per_value) +
                      ", body_bytes makes " + std::to_string(bits));
    const uint64_t fused = bench.kernels->body_bytes(bench.kernels->self, desc.format, head_dim);
    if (desc.format >= MRI_KV_F32 && desc.format <= MRI_KV_INT8) {
      report.expect(desc.body_bytes == fused, at + "claims a fused format of another size");
    } else {
      report.expect(desc.format >= MRI_KV_CUSTOM, at + "format is " + std::to_string(desc.format));
    }
    mri_quant_desc again;
    report.expect(quantizer.describe(head_dim, &again) && again.body_bytes == desc.body_bytes &&
                      again.format == desc.format,
                  at + "another answer at the second time");
  });
}

// Largest root mean square error of unit-normal values that so many bits excuse.
double error_max(double bits) {
  if (bits >= 32) return 1e-6;
  if (bits >= 16) return 1.0 / 256;
  return std::min(0.5, 16 * std::exp2(-bits));
}

// Root mean square error over live tokens, relative to the values' own; infinite when a decoded
// number is not finite.
double error_of(const Guarded<float>& wanted, const Guarded<float>& got, uint32_t head_dim,
                uint32_t live) {
  double error = 0, power = 0;
  for (uint32_t t = 0; t < kTokens; ++t) {
    if ((live >> t & 1u) == 0) continue;
    for (uint32_t c = 0; c < head_dim; ++c) {
      const double x = wanted[t * head_dim + c], y = got[t * head_dim + c];
      if (!std::isfinite(y)) return INFINITY;
      error += (x - y) * (x - y);
      power += x * x;
    }
  }
  if (power == 0) return error == 0 ? 0 : std::sqrt(error);
  return std::sqrt(error / power);
}

// Encodes and decodes k, v and checks both errors against `most`.
void check_round_trip(Quantizer& quantizer, const std::string& at, const mri_quant_desc& desc,
                      uint32_t head_dim, const std::vector<float>& k, const std::vector<float>& v,
                      uint32_t live, double most, const Page* before = nullptr) {
  Report& report = *quantizer.bench().report;
  const auto page = quantizer.page(desc, head_dim, k, v, live);
  Guarded<float> k2(k.size(), NAN), v2(v.size(), NAN);
  const bool ok = quantizer.encode(*page, head_dim, live, before) == MRI_OK &&
                  quantizer.decode(*page, head_dim, live, &k2, &v2, before) == MRI_OK;
  if (!report.expect(ok, at + ": encode or decode failed")) return;
  const double k_error = error_of(page->k, k2, head_dim, live);
  const double v_error = error_of(page->v, v2, head_dim, live);
  report.expect(k_error <= most && v_error <= most,
                at + ": relative error of keys " + std::to_string(k_error) + ", of values " +
                    std::to_string(v_error) + ", allowed " + std::to_string(most));
}

void comes_back(Bench& bench) {
  Quantizer quantizer(bench);
  Random random(bench.seed);
  each_size(quantizer, [&](uint32_t head_dim, const mri_quant_desc& desc) {
    const uint64_t n = uint64_t{kTokens} * head_dim;
    const std::string at = "head size " + std::to_string(head_dim);
    for (const float scale : {1.f, 0.01f, 100.f}) {
      check_round_trip(quantizer, at + ", values of size " + std::to_string(scale), desc, head_dim,
                       random.normals(n, scale), random.normals(n, scale), UINT32_MAX,
                       error_max(desc.bits_per_value));
    }
  });
}

void survives_edges(Bench& bench) {
  Quantizer quantizer(bench);
  Random random(bench.seed);
  each_size(quantizer, [&](uint32_t head_dim, const mri_quant_desc& desc) {
    const uint64_t n = uint64_t{kTokens} * head_dim;
    const double most = error_max(desc.bits_per_value);
    const auto check = [&](const std::string& what, const std::vector<float>& x) {
      check_round_trip(quantizer, what + ", head size " + std::to_string(head_dim), desc, head_dim,
                       x, x, UINT32_MAX, most);
    };
    check("all zero", std::vector<float>(n, 0.f));
    check("all one", std::vector<float>(n, 1.f));
    check("all negative", std::vector<float>(n, -2.5f));
    std::vector<float> outlier = random.normals(n);
    outlier[n / 2] = 1000;
    check("one outlier", outlier);
    std::vector<float> signs(n);
    for (uint64_t i = 0; i < n; ++i) signs[i] = i % 2 == 0 ? 3.f : -3.f;
    check("two values", signs);
  });
}

void minds_live_tokens_only(Bench& bench) {
  Quantizer quantizer(bench);
  Random random(bench.seed);
  each_size(quantizer, [&](uint32_t head_dim, const mri_quant_desc& desc) {
    for (const uint32_t live : {1u, 0x80000000u, 0x0000ffffu, 0xa5a5a5a5u}) {
      std::vector<float> k = random.normals(uint64_t{kTokens} * head_dim), v = k;
      for (uint32_t t = 0; t < kTokens; ++t) {
        if ((live >> t & 1u) != 0) continue;
        std::fill_n(&k[t * head_dim], head_dim, 500.f);  // finite, but of no meaning
        std::fill_n(&v[t * head_dim], head_dim, -500.f);
      }
      check_round_trip(quantizer, "live tokens " + std::to_string(live), desc, head_dim, k, v, live,
                       error_max(desc.bits_per_value));
    }
  });
}

void knows_the_page_before(Bench& bench) {
  Quantizer quantizer(bench);
  Random random(bench.seed);
  each_size(quantizer, [&](uint32_t head_dim, const mri_quant_desc& desc) {
    const uint64_t n = uint64_t{kTokens} * head_dim;
    const auto before =
        quantizer.page(desc, head_dim, random.normals(n), random.normals(n), UINT32_MAX);
    if (quantizer.encode(*before, head_dim, UINT32_MAX) != MRI_OK) return;
    check_round_trip(quantizer, "with a page before", desc, head_dim, random.normals(n),
                     random.normals(n), UINT32_MAX, error_max(desc.bits_per_value), before.get());
  });
}

void is_the_same_again(Bench& bench) {
  Quantizer one(bench), two(bench);
  Random random(bench.seed);
  each_size(one, [&](uint32_t head_dim, const mri_quant_desc& desc) {
    const uint64_t n = uint64_t{kTokens} * head_dim;
    const std::vector<float> k = random.normals(n), v = random.normals(n);
    const auto a = one.page(desc, head_dim, k, v, UINT32_MAX, 0x00);
    const auto b = two.page(desc, head_dim, k, v, UINT32_MAX, 0xff);
    one.encode(*a, head_dim, UINT32_MAX);
    two.encode(*b, head_dim, UINT32_MAX);
    bench.report->expect(a->body.copy() == b->body.copy(),
                         "the same page has two encodings, or not all of the body is written");
  });
}

void survives_what_is_no_number(Bench& bench) {
  Quantizer quantizer(bench);
  Random random(bench.seed);
  each_size(quantizer, [&](uint32_t head_dim, const mri_quant_desc& desc) {
    for (const float bad : {NAN, INFINITY, -INFINITY, std::numeric_limits<float>::max()}) {
      std::vector<float> x = random.normals(uint64_t{kTokens} * head_dim);
      x[random.below(x.size())] = bad;
      const auto page = quantizer.page(desc, head_dim, x, x, UINT32_MAX);
      if (quantizer.encode(*page, head_dim, UINT32_MAX) != MRI_OK) continue;  // refusing is right
      Guarded<float> k(x.size()), v(x.size());
      quantizer.decode(*page, head_dim, UINT32_MAX, &k, &v);
    }
  });
}

void serves_threads(Bench& bench) {
  Quantizer quantizer(bench);
  Random random(bench.seed);
  each_size(quantizer, [&](uint32_t head_dim, const mri_quant_desc& desc) {
    const uint64_t n = uint64_t{kTokens} * head_dim;
    const std::vector<float> k = random.normals(n), v = random.normals(n);
    const auto alone = quantizer.page(desc, head_dim, k, v, UINT32_MAX);
    quantizer.encode(*alone, head_dim, UINT32_MAX);
    in_four_threads(bench, 32, "encodings", [&](uint64_t) {
      const auto page = quantizer.page(desc, head_dim, k, v, UINT32_MAX);
      Guarded<float> k2(n), v2(n);
      return quantizer.encode(*page, head_dim, UINT32_MAX) == MRI_OK &&
             quantizer.decode(*page, head_dim, UINT32_MAX, &k2, &v2) == MRI_OK &&
             page->body.copy() == alone->body.copy();
    });
  });
}

void survives_any_page(Bench& bench) {
  Quantizer quantizer(bench);
  Random random(bench.seed);
  for (const uint32_t head_dim : {0u, 1u, 7u, 33u, 100000u}) {
    mri_quant_desc desc;
    quantizer.describe(head_dim, &desc);  // any listed answer is right
  }
  each_size(quantizer, [&](uint32_t head_dim, const mri_quant_desc& desc) {
    for (int i = 0; i < 64; ++i) {
      const uint64_t n = uint64_t{kTokens} * head_dim;
      std::vector<float> x(n);
      for (float& value : x) value = random.any_float();
      const auto live = static_cast<uint32_t>(random.next());
      const auto page = quantizer.page(desc, head_dim, x, x, live);
      quantizer.encode(*page, head_dim, live);
      for (uint64_t b = 0; b < desc.body_bytes; ++b)
        page->body[b] = static_cast<uint8_t>(random.next());
      Guarded<float> k(n), v(n);
      quantizer.decode(*page, head_dim, live, &k, &v);
    }
  });
}

void tells_of_a_broken_device(Bench& bench) {
  Bench with_device = bench;
  with_device.kernels = &breakable(*bench.kernels);
  Quantizer quantizer(with_device);
  Random random(bench.seed);
  uint64_t failed = 0;
  each_size(quantizer, [&](uint32_t head_dim, const mri_quant_desc& desc) {
    const std::string at = "head size " + std::to_string(head_dim) + ": ";
    const uint64_t n = uint64_t{kTokens} * head_dim;
    const auto page =
        quantizer.page(desc, head_dim, random.normals(n), random.normals(n), UINT32_MAX);
    Guarded<float> k(n), v(n);
    if (quantizer.encode(*page, head_dim, UINT32_MAX) != MRI_OK) return;
    const std::vector<uint8_t> wanted = page->body.copy();
    const auto is_told = [&](const char* what, auto&& call) {
      break_kernels(true);
      const mri_status status = call();
      const uint64_t n_failed = break_kernels(false);
      failed += n_failed;
      bench.report->expect(n_failed == 0 || status != MRI_OK,
                           at + what + " succeeds although the host's kernels failed");
    };
    is_told("encode", [&] { return quantizer.encode(*page, head_dim, UINT32_MAX); });
    bench.report->expect(
        quantizer.encode(*page, head_dim, UINT32_MAX) == MRI_OK && page->body.copy() == wanted,
        at + "another encoding after the device came back");
    is_told("decode", [&] { return quantizer.decode(*page, head_dim, UINT32_MAX, &k, &v); });
    bench.report->expect(quantizer.decode(*page, head_dim, UINT32_MAX, &k, &v) == MRI_OK,
                         at + "decode fails after the device came back");
  });
  if (failed == 0) bench.report->not_supported("calls no kernel of the host that can fail");
}

constexpr Test kTests[] = {
    {"quantizer.describe", "quantizer", 2, MRI_1_0,
     "describe tells format, bytes and bits that fit each other, the same each time.",
     "body_bytes * 8 / (64 * head_dim) is bits_per_value; refuse head sizes with "
     "MRI_E_UNSUPPORTED.",
     describes},
    {"quantizer.roundtrip", "quantizer", 3, MRI_1_0,
     "Normal values of any scale come back with a relative error of at most 16 / 2^bits (below 16 "
     "bits), 1/256 (16 bits), 1e-6 (32 bits).",
     "Scale by the page's own values; round to nearest; check the order of the body's members.",
     comes_back},
    {"quantizer.edges", "quantizer", 3, MRI_1_0,
     "Zeros, constants, one outlier and two-valued pages come back as precisely.",
     "A constant channel has a range of zero: do not divide by it.", survives_edges},
    {"quantizer.live-tokens", "quantizer", 3, MRI_1_0,
     "Tokens outside live_mask have no influence on the others.",
     "Skip dead tokens when finding ranges and scales.", minds_live_tokens_only},
    {"quantizer.chain", "quantizer", 3, MRI_1_0,
     "A page is as precise with the page before it given.",
     "decode gets the same previous_index and previous_body as encode.", knows_the_page_before},
    {"quantizer.determinism", "quantizer", 3, MRI_1_0,
     "The same page has the same encoding in every object, and all of the body is written.",
     "Write padding too; use no state, clock or address.", is_the_same_again},
    {"quantizer.not-a-number", "quantizer", 3, MRI_1_0,
     "NaN, infinities and the largest float are refused or encoded, without harm.",
     "Check what a conversion to an integer gets: NaN has none.", survives_what_is_no_number},
    {"quantizer.device", "quantizer", 3, MRI_1_0,
     "When a kernel of the host fails, so does the call; the next one works again.",
     "Return the status of mri_kernels_v1.encode and decode; keep nothing of a failed call.",
     tells_of_a_broken_device},
    {"quantizer.threads", "quantizer", 4, MRI_1_0, "Four threads at once get the same encodings.",
     "The calls are [any]: keep scratch memory on the stack or thread-local.", serves_threads},
    {"quantizer.fuzz", "quantizer", 4, MRI_1_0,
     "Any bits as values, any bytes as a body, any head size: never a crash or a write outside.",
     "A body may be damaged on disk: let no byte of it become an unchecked index.",
     survives_any_page},
};

}  // namespace

std::span<const Test> quantizer_tests() { return kTests; }

}  // namespace mri::conformance
