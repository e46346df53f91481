// Storing f32 vectors as f32 or as bf16 (round to nearest even). Included once per Highway target.
#if defined(VARVE_KERNELS_CPU_STORE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef VARVE_KERNELS_CPU_STORE_INL_H
#undef VARVE_KERNELS_CPU_STORE_INL_H
#else
#define VARVE_KERNELS_CPU_STORE_INL_H
#endif

#include <hwy/highway.h>

#include "kernels/number.h"

HWY_BEFORE_NAMESPACE();
namespace varve::kernels::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
HWY_INLINE void store_as(D d, hn::Vec<D> value, float* out) {
  hn::StoreU(value, d, out);
}

// Highway's own demotion to bf16 cuts off.
template <class D>
HWY_INLINE void store_as(D, hn::Vec<D> value, uint16_t* out) {
  const hn::RebindToSigned<D> di;
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> d16;
  const auto bits = hn::BitCast(du, value);
  const auto even = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(bits, hn::Add(even, hn::Set(du, 0x7fff)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(value));
  const auto high = hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded));
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, high)), d16, out);
}

HWY_INLINE void store_one(float value, float* out) { *out = value; }
HWY_INLINE void store_one(float value, uint16_t* out) { *out = kernels::bf16_from_f32(value); }

}  // namespace HWY_NAMESPACE
}  // namespace varve::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif
