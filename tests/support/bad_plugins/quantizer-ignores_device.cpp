// Takes every kernel of the host for one that works.
#include "tests/support/bad_plugins/bf16.h"

namespace {
class Ignores : public Bf16 {
 public:
  using Bf16::Bf16;
  void encode(const mri_quant_encode_req& req) const { Bf16::encode(req); }
};
}  // namespace
BAD_PLUGIN(quantizer, kParams, Ignores);
