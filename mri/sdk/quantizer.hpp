// A quantizer's class has:
//   void describe(uint32_t head_dim, mri_quant_desc& out)
//   void encode(const mri_quant_encode_req&)
//   void decode(const mri_quant_decode_req&)
#pragma once

#include "mri/kind/quantizer.h"
#include "mri/sdk/plugin.hpp"

namespace mri::kind {

template <class Class>
struct quantizer {
  static mri_status describe(void* self, uint32_t head_dim, mri_quant_desc* out, mri_error* err) {
    return guard(err, [&] {
      Response<mri_quant_desc> desc(out);
      return object<Class>(self).describe(head_dim, *desc);
    });
  }
  static mri_status encode(void* self, const mri_quant_encode_req* req, mri_error* err) {
    return call<Class>(self, req, err, [](Class& c, const auto& in) { return c.encode(in); });
  }
  static mri_status decode(void* self, const mri_quant_decode_req* req, mri_error* err) {
    return call<Class>(self, req, err, [](Class& c, const auto& in) { return c.decode(in); });
  }

  static constexpr mri_quantizer_v1 table = {sizeof(mri_quantizer_v1), 0, describe, encode, decode};
  static const void* find(std::string_view id) { return id == MRI_QUANTIZER ? &table : nullptr; }
};

}  // namespace mri::kind
