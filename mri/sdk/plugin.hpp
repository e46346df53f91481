// The part that every kind shares: the entry, the plugin object, and the calls that lead to the
// author's class.
//
// A plugin is a class, its parameter table and one line. The class has a constructor (mri::Host,
// const mri::Params&), run by activate(), and the methods that sdk/<kind>.hpp lists. A method
// returns void or mri_status, and may throw. Optional members:
//   static void caps(mri_caps&)        the defaults say: one call per context, same run order,
//   restart only, may block void drain(uint64_t deadline_ns)
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "mri/entry.h"
#include "mri/sdk/error.hpp"
#include "mri/sdk/host.hpp"
#include "mri/sdk/params.hpp"
#include "mri/sdk/sizes.hpp"

// The oldest host that the plugin runs on.
#ifndef MRI_MIN_VERSION
#define MRI_MIN_VERSION MRI_1_0
#endif
// Commit or release of the build; the compiler is added.
#ifndef MRI_BUILD_ID
#define MRI_BUILD_ID "local build"
#endif

namespace mri {

inline constexpr std::span<const mri_param_desc> kNoParams;

// mri_plugin plus the author's object, which exists from activate() to close().
template <class Class>
struct Instance {
  mri_plugin api;
  const mri_host* host;
  std::optional<Class> object;
};

// The author's object behind the `self` of an interface call.
template <class Class>
Class& object(void* self) {
  auto& object = static_cast<Instance<Class>*>(self)->object;
  if (!object) throw Error(MRI_E_STATE, "called before activate");
  return *object;
}

// call(self, req, rsp, err, method) and call(self, req, err, method): size rules and exception
// barrier around one method.
template <class Class, class Req, class Rsp, class F>
mri_status call(void* self, const Req* req, Rsp* rsp, mri_error* err, F&& method) {
  return guard(err, [&] {
    const Request<Req> in(req);
    Response<Rsp> out(rsp, in.seen());
    return method(object<Class>(self), *in, *out);
  });
}
template <class Class, class Req, class F>
mri_status call(void* self, const Req* req, mri_error* err, F&& method) {
  return guard(err, [&] {
    const Request<Req> in(req);
    return method(object<Class>(self), *in);
  });
}

// `Kind` is one of mri::kind::*, `known` the parameter table.
template <class Class, class Kind, const auto& known>
struct Plugin {
  using Self = Instance<Class>;

  static const void* get_interface(void*, const char* id) { return Kind::find(id); }

  static mri_status query_caps(void*, mri_caps* out, mri_error* err) {
    return guard(err, [&] {
      Response<mri_caps> caps(out);
      (*caps).thread_model = 2;
      (*caps).determinism = 1;
      (*caps).sync_model = 2;
      if constexpr (requires { Class::caps(*caps); }) Class::caps(*caps);
    });
  }

  static mri_status activate(void* self, const mri_param* params, uint64_t n_params,
                             mri_error* err) {
    return guard(err, [&] {
      auto* instance = static_cast<Self*>(self);
      if (instance->object) throw Error(MRI_E_STATE, "activate called twice");
      instance->object.emplace(Host(instance->host), Params(known, params, n_params));
    });
  }

  static mri_status drain(void* self, uint64_t deadline_ns, mri_error* err) {
    return guard(err, [&] {
      if constexpr (requires(Class & c) { c.drain(deadline_ns); })
        object<Class>(self).drain(deadline_ns);
    });
  }

  static void close(void* self) {
    guard(nullptr, [&] { delete static_cast<Self*>(self); });
  }

  static mri_status open(const mri_host* host, uint32_t, mri_plugin** out, mri_error* err) {
    return guard(err, [&] {
      if (host == nullptr || out == nullptr) throw Error(MRI_E_ARG, "null host or result");
      auto instance = std::make_unique<Self>();
      instance->host = host;
      instance->api = {sizeof(mri_plugin), 0,        instance.get(), get_interface,
                       query_caps,         activate, drain,          close};
      *out = &instance.release()->api;
    });
  }

  static constexpr std::span<const mri_param_desc> table() { return known; }
};

}  // namespace mri

// MRI_PLUGIN(quantizer, "org.example.int8", "1.0.0", kParams, Int8): the exported entry. Once per
// library, at namespace scope outside `namespace {}`. kParams is a constexpr array with linkage
// (namespace scope), or mri::kNoParams.
#define MRI_PLUGIN(kind_, id_, version_, params_, class_)                         \
  MRI_EXPORT const mri_plugin_entry mri_plugin_entry_v1;                          \
  constinit const mri_plugin_entry mri_plugin_entry_v1 = {                        \
      {'M', 'R', 'I', 'P', 'L', 'U', 'G', 1},                                     \
      sizeof(mri_plugin_entry),                                                   \
      MRI_HEADER_VERSION,                                                         \
      MRI_MIN_VERSION,                                                            \
      MRI_TARGET_VERSION,                                                         \
      0,                                                                          \
      id_,                                                                        \
      version_,                                                                   \
      __VERSION__ ", " MRI_BUILD_ID,                                              \
      #kind_,                                                                     \
      ::mri::Plugin<class_, ::mri::kind::kind_<class_>, params_>::table().data(), \
      ::mri::Plugin<class_, ::mri::kind::kind_<class_>, params_>::table().size(), \
      ::mri::Plugin<class_, ::mri::kind::kind_<class_>, params_>::open}
