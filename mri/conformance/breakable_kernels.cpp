#include "mri/conformance/breakable_kernels.h"

#include <atomic>

namespace mri::conformance {
namespace {

const mri_kernels_v1* whole = nullptr;
std::atomic<bool> broken{false};
std::atomic<uint64_t> n_failed{0};

// Calls `member` of the whole kernels unless they are broken.
template <auto member, class... Args>
mri_status call_if_whole(void* self, Args... args) {
  if (!broken) return (whole->*member)(self, args...);
  ++n_failed;
  return MRI_E_DEVICE;
}

template <auto member, class... Args>
void make_breakable(mri_kernels_v1& table, mri_status (*mri_kernels_v1::*)(void*, Args...)) {
  table.*member = call_if_whole<member, Args...>;
}

}  // namespace

const mri_kernels_v1& breakable(const mri_kernels_v1& kernels) {
  static mri_kernels_v1 table;
  whole = &kernels;
  table = kernels;
  make_breakable<&mri_kernels_v1::encode>(table, &mri_kernels_v1::encode);
  make_breakable<&mri_kernels_v1::decode>(table, &mri_kernels_v1::decode);
  make_breakable<&mri_kernels_v1::score_blocks>(table, &mri_kernels_v1::score_blocks);
  make_breakable<&mri_kernels_v1::attend>(table, &mri_kernels_v1::attend);
  return table;
}

uint64_t break_kernels(bool are_broken) {
  broken = are_broken;
  return n_failed.exchange(0);
}

}  // namespace mri::conformance
