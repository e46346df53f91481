// Has a symbol that all versions of a plugin in a process would share.
#include "mri/mri.h"
template <class T>
struct __attribute__((visibility("default"))) Shared {
  static T value;
};
template <class T>
T Shared<T>::value;
namespace {
mri_status counting(void*, const mri_quant_encode_req*, mri_error*) { return Shared<int>::value++; }
}  // namespace
#define ENCODE counting
#include "sound.h"
