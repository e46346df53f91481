// quantizer/fp8_tensor: keys and values as E4M3 with one scale each per page, so that the page's
// largest number is the format's largest: code = E4M3(x / scale), scale = max |x| / 448.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "e4m3.h"
#include "mri/sdk/quantizer.hpp"

namespace {

// This plugin's own format: the runtime calls decode() before attention reads a page.
constexpr uint32_t kFormat = MRI_KV_CUSTOM + 0xe4;

uint64_t n_values(uint32_t head_dim) { return uint64_t{MRI_BLOCK_TOKENS} * head_dim; }

class Fp8Tensor {
 public:
  Fp8Tensor(const mri::Host&, const mri::Params&) {}

  static void caps(mri_caps& caps) {
    caps.thread_model = 3;
    caps.determinism = 3;
  }

  // A body is: scale of the keys, scale of the values, codes [2][32][head_dim].
  void describe(uint32_t head_dim, mri_quant_desc& out) const {
    if (head_dim == 0) throw mri::Error(MRI_E_UNSUPPORTED, "fp8_tensor: head_dim is 0");
    const uint64_t n = 2 * n_values(head_dim);
    out.format = kFormat;
    out.body_bytes = 2 * sizeof(float) + n;
    out.bits_per_value = 8.0 * static_cast<double>(out.body_bytes) / static_cast<double>(n);
  }

  void encode(const mri_quant_encode_req& req) const {
    const float* const parts[] = {req.k, req.v};
    uint8_t* code = req.body + 2 * sizeof(float);
    for (int part = 0; part < 2; ++part) {
      const float scale = scale_of(parts[part], req);
      std::memcpy(req.body + part * sizeof(float), &scale, sizeof(scale));
      const float inverse = 1 / scale;
      for (uint64_t i = 0; i < n_values(req.head_dim); ++i, ++code) {
        const bool live = (req.live_mask >> (i / req.head_dim) & 1) != 0;
        *code = live ? e4m3::encode(parts[part][i] * inverse) : 0;
      }
    }
  }

  void decode(const mri_quant_decode_req& req) const {
    float* const parts[] = {req.k, req.v};
    const uint8_t* code = req.body + 2 * sizeof(float);
    for (int part = 0; part < 2; ++part) {
      float scale;
      std::memcpy(&scale, req.body + part * sizeof(float), sizeof(scale));
      for (uint64_t i = 0; i < n_values(req.head_dim); ++i, ++code) {
        parts[part][i] = e4m3::values()[*code] * scale;
      }
    }
  }

 private:
  // Of live, finite numbers; an infinity saturates, NaN stays NaN. The inverse of the smallest
  // scale is still finite, and nothing divides by zero.
  static float scale_of(const float* x, const mri_quant_encode_req& req) {
    float most = 0;
    for (uint64_t i = 0; i < n_values(req.head_dim); ++i) {
      const bool live = (req.live_mask >> (i / req.head_dim) & 1) != 0;
      if (live && std::isfinite(x[i])) most = std::max(most, std::fabs(x[i]));
    }
    return std::max(most / e4m3::kMax, std::numeric_limits<float>::min());
  }
};

}  // namespace

MRI_PLUGIN(quantizer, "org.example.quantizer.fp8_tensor", "1.0.0", mri::kNoParams, Fp8Tensor);
