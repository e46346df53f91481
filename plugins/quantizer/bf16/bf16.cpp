// Keys and values as they are: 16 bits (bf16) or 32.
#include <string>

#include "mri/sdk/quantizer.hpp"

namespace {

class Bf16 {
 public:
  Bf16(const mri::Host& host, const mri::Params& params)
      : kernels_(host.kernels()),
        format_(params.get<std::string>("format") == "f32" ? MRI_KV_F32 : MRI_KV_BF16) {}

  static void caps(mri_caps& caps) {
    caps.thread_model = 3;
    caps.determinism = 3;
  }

  void describe(uint32_t head_dim, mri_quant_desc& out) const {
    out.body_bytes = kernels_.body_bytes(kernels_.self, format_, head_dim);
    if (out.body_bytes == 0)
      throw mri::Error(MRI_E_UNSUPPORTED, "bf16: head size " + std::to_string(head_dim));
    out.format = format_;
    out.bits_per_value = format_ == MRI_KV_F32 ? 32 : 16;
  }

  mri_status encode(const mri_quant_encode_req& req) const {
    return kernels_.encode(kernels_.self, format_, req.k, req.v, req.head_dim, req.index, req.body);
  }

  mri_status decode(const mri_quant_decode_req& req) const {
    return kernels_.decode(kernels_.self, format_, req.index, req.body, req.head_dim, req.k, req.v);
  }

 private:
  const mri_kernels_v1& kernels_;
  uint32_t format_;
};

constexpr mri_param_desc kParams[] = {
    mri::param_string("format", "bf16", "bf16|f32",
                      "bits per number: 16, or 32 for exact comparison at twice the memory"),
};

}  // namespace

MRI_PLUGIN(quantizer, "dev.varve.quantizer.bf16", "0.1.0", kParams, Bf16);
