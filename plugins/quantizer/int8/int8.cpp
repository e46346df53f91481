// 8 bits: keys per channel over the block's 32 tokens (in bit planes, so that their top two bits
// are the index's sketch), values per token and 32 channels.
//
// Smoothing, when on, appends two numbers to each page: how far the mean of its first token lies
// from the mean of the decoded last token of the page before, for keys and for values. Decoding
// moves the first tokens so that this step is right again: by the whole error at the boundary,
// linearly less over the next tokens.
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "mri/sdk/quantizer.hpp"

namespace {

constexpr uint32_t kSmoothFormat = MRI_KV_CUSTOM + 0x5308;
constexpr uint32_t kBoundaryTokens = 4;
constexpr float kStepUnit = 1.f / 4096;
constexpr int16_t kNoStep = std::numeric_limits<int16_t>::min();

struct Steps {
  int16_t k, v;  // in kStepUnit; kNoStep: the page before was not there, or too far away
};

float mean(const float* token, uint32_t head_dim) {
  float sum = 0;
  for (uint32_t c = 0; c < head_dim; ++c) sum += token[c];
  return sum / static_cast<float>(head_dim);
}

int16_t to_step(float x) {
  const float units = std::round(x / kStepUnit);
  return std::fabs(units) <= 32767 ? static_cast<int16_t>(units) : kNoStep;
}

// x [32][head_dim]; `before` is the mean of the last token of the page before.
void move_boundary(float* x, uint32_t head_dim, float before, int16_t step, float weight) {
  if (step == kNoStep) return;
  const float error = before + static_cast<float>(step) * kStepUnit - mean(x, head_dim);
  for (uint32_t t = 0; t < kBoundaryTokens; ++t) {
    const float share = 1 - static_cast<float>(t) / kBoundaryTokens;
    for (uint32_t c = 0; c < head_dim; ++c) x[t * head_dim + c] += weight * share * error;
  }
}

class Int8 {
 public:
  Int8(const mri::Host& host, const mri::Params& params)
      : kernels_(host.kernels()),
        smoothing_(params.get<bool>("smoothing")),
        weight_(params.get<float>("smoothing_weight")) {}

  static void caps(mri_caps& caps) {
    caps.thread_model = 3;
    caps.determinism = 3;
  }

  void describe(uint32_t head_dim, mri_quant_desc& out) const {
    const uint64_t bytes = int8_bytes(head_dim);
    if (bytes == 0)
      throw mri::Error(MRI_E_UNSUPPORTED, "int8: head size " + std::to_string(head_dim));
    out.body_bytes = bytes + (smoothing_ ? sizeof(Steps) : 0);
    out.format = smoothing_ ? kSmoothFormat : MRI_KV_INT8;
    out.bits_per_value =
        static_cast<double>(out.body_bytes) * 8 / (2.0 * MRI_BLOCK_TOKENS * head_dim);
  }

  mri_status encode(const mri_quant_encode_req& req) const {
    const mri_status status = kernels_.encode(kernels_.self, MRI_KV_INT8, req.k, req.v,
                                              req.head_dim, req.index, req.body);
    if (status != MRI_OK || !smoothing_) return status;
    Steps steps{kNoStep, kNoStep};
    if (const Before before = page_before(req); before.known) {
      steps = {to_step(mean(req.k, req.head_dim) - before.k),
               to_step(mean(req.v, req.head_dim) - before.v)};
    }
    std::memcpy(req.body + int8_bytes(req.head_dim), &steps, sizeof(steps));
    return MRI_OK;
  }

  mri_status decode(const mri_quant_decode_req& req) const {
    const mri_status status = kernels_.decode(kernels_.self, MRI_KV_INT8, req.index, req.body,
                                              req.head_dim, req.k, req.v);
    if (status != MRI_OK || !smoothing_) return status;
    const Before before = page_before(req);
    if (!before.known) return MRI_OK;
    Steps steps;
    std::memcpy(&steps, req.body + int8_bytes(req.head_dim), sizeof(steps));
    move_boundary(req.k, req.head_dim, before.k, steps.k, weight_);
    move_boundary(req.v, req.head_dim, before.v, steps.v, weight_);
    return MRI_OK;
  }

 private:
  // Means of the last token of the page before, as decoded. Smoothing never moves the last token,
  // so one page suffices.
  struct Before {
    bool known = false;
    float k = 0, v = 0;
  };

  template <class Req>
  Before page_before(const Req& req) const {
    if (req.previous_body == nullptr || req.previous_index == nullptr) return {};
    const size_t size = size_t{MRI_BLOCK_TOKENS} * req.head_dim, last = size - req.head_dim;
    std::vector<float> k(size), v(size);
    const mri_status status = kernels_.decode(kernels_.self, MRI_KV_INT8, req.previous_index,
                                              req.previous_body, req.head_dim, k.data(), v.data());
    if (status != MRI_OK) throw mri::Error(status, "int8: the page before cannot be decoded");
    return {true, mean(&k[last], req.head_dim), mean(&v[last], req.head_dim)};
  }

  uint64_t int8_bytes(uint32_t head_dim) const {
    return kernels_.body_bytes(kernels_.self, MRI_KV_INT8, head_dim);
  }

  const mri_kernels_v1& kernels_;
  bool smoothing_;
  float weight_;
};

constexpr mri_param_desc kParams[] = {
    mri::param_bool("smoothing", false,
                    "mend the step between neighbouring blocks; 4 bytes per page, and attention "
                    "must decode pages first"),
    mri::param_float("smoothing_weight", 1, 0, 1, "share of the step's error that is mended"),
};

}  // namespace

MRI_PLUGIN(quantizer, "dev.varve.quantizer.int8", "0.1.0", kParams, Int8);
