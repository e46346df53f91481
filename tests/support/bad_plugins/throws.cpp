// Lets C++ exceptions cross the border.
#include <stdexcept>

#include "mri/mri.h"
namespace {
mri_status throw_exception(void*, const mri_quant_encode_req*, mri_error*) {
  throw std::runtime_error("scale of block 7 is negative");
}
mri_status throw_int(void*, const mri_quant_decode_req*, mri_error*) { throw 7; }
}  // namespace
#define ENCODE throw_exception
#define DECODE throw_int
#include "sound.h"
