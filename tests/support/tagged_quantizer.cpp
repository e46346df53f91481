// Pages in a format of its own: f32, with a tag that says of which layer and head they are.
// Decoding a page as that of another fails.
#include <algorithm>
#include <cstring>
#include <string>

#include "mri/sdk/quantizer.hpp"

namespace {

class Tagged {
 public:
  Tagged(const mri::Host&, const mri::Params&) {}

  void describe(uint32_t head_dim, mri_quant_desc& out) const {
    out.format = MRI_KV_CUSTOM + 1;
    out.body_bytes = sizeof(uint32_t) + 2 * plane(head_dim);
    out.bits_per_value = 32;
  }

  void encode(const mri_quant_encode_req& req) const {
    const uint32_t tag = tag_of(req.layer, req.kv_head, req.previous_body != nullptr);
    std::memcpy(req.body, &tag, sizeof(tag));
    std::memcpy(req.body + sizeof(tag), req.k, plane(req.head_dim));
    std::memcpy(req.body + sizeof(tag) + plane(req.head_dim), req.v, plane(req.head_dim));
  }

  void decode(const mri_quant_decode_req& req) const {
    uint32_t tag = 0;
    std::memcpy(&tag, req.body, sizeof(tag));
    uint32_t before = 0;
    const bool chained = req.previous_body != nullptr;
    if (chained) std::memcpy(&before, req.previous_body, sizeof(before));
    if (tag != tag_of(req.layer, req.kv_head, chained) ||
        (chained && before / 2 != tag_of(req.layer, req.kv_head, false) / 2)) {
      throw mri::Error(MRI_E_ARG, "tagged: this page is not of layer " + std::to_string(req.layer) +
                                      ", head " + std::to_string(req.kv_head));
    }
    if (req.k != nullptr) std::memcpy(req.k, req.body + sizeof(tag), plane(req.head_dim));
    if (req.v != nullptr)
      std::memcpy(req.v, req.body + sizeof(tag) + plane(req.head_dim), plane(req.head_dim));
  }

 private:
  static size_t plane(uint32_t head_dim) { return MRI_BLOCK_TOKENS * head_dim * sizeof(float); }
  static uint32_t tag_of(uint32_t layer, uint32_t kv_head, bool chained) {
    return 2 * (1000 * layer + kv_head + 7) + (chained ? 1 : 0);
  }
};

constexpr mri_param_desc kParams[] = {mri::param_bool("unused", false, "nothing")};

}  // namespace

MRI_PLUGIN(quantizer, "dev.varve.test.tagged", "1.0.0", kParams, Tagged);
