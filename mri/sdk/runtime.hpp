// A runtime's class has:
//   void init_context(const mri_init_req&, mri_init_rsp&)
//   void forward_step(const mri_step_req&, mri_step_rsp&), or with a third argument, mri_error*
//   err,
//     for set_error(err, MRI_OK, text) when some sequences fail and others do not
//   void get_kv_summary(uint64_t ctx, const mri_summary_req&, mri_summary_rsp&)
//   void evict_kv(uint64_t ctx, const mri_evict_req&, mri_evict_rsp&)
//   void release_context(uint64_t ctx)
// It offers mri.text/1 (ext/text.h) when it also has:
//   void model_info(mri_model_info&)
//   std::vector<int32_t> tokenize(std::string_view text, bool add_special, bool parse_special)
//   std::string detokenize(std::span<const int32_t> tokens, bool special)
//   std::string chat(std::span<const mri_chat_message> messages, bool add_generation_prompt)
//   bool is_end(int32_t token)
// mri.sampling/1 (ext/sampling.h) when it has:
//   uint64_t create_sampler(const mri_sampler_req&)
//   int32_t sample(uint64_t sampler, const float* logits)
//   void accept(uint64_t sampler, std::span<const int32_t> tokens)
//   void release_sampler(uint64_t sampler)
// mri.memory/1 (ext/memory.h) when it has:
//   void reuse(const mri_reuse_req&, mri_reuse_rsp&)
//   void keep(uint64_t ctx, std::span<const mri_prefix_key> keys, uint32_t flags)
//   void forget(const mri_prefix_key& last_key)
//   uint64_t shrink(uint64_t ctx, uint64_t wanted_bytes)   returns the bytes freed
//   void memory_usage(mri_memory_usage&)
// mri.timings/1 (ext/timings.h) when it has:
//   void enable_timings(uint64_t ctx, bool on)
//   void read_timings(uint64_t ctx, mri_timings&)
// and mri.kernels/1 (ext/kernels.h) when it has:
//   static const mri_kernels_v1* kernels()   asked before activate too; the same answer each time
#pragma once

#include <span>
#include <string>
#include <vector>

#include "mri/ext/kernels.h"
#include "mri/ext/memory.h"
#include "mri/ext/sampling.h"
#include "mri/ext/text.h"
#include "mri/ext/timings.h"
#include "mri/kind/runtime.h"
#include "mri/sdk/plugin.hpp"

namespace mri::kind {

template <class Class>
struct text {
  static mri_status model_info(void* self, mri_model_info* out, mri_error* err) {
    return guard(err, [&] {
      Response<mri_model_info> info(out);
      return object<Class>(self).model_info(*info);
    });
  }
  static mri_status tokenize(void* self, const char* bytes, uint64_t n_bytes, uint32_t add_special,
                             uint32_t parse_special, int32_t* out, uint64_t capacity,
                             uint64_t* n_out, mri_error* err) {
    return guard(err, [&] {
      const std::vector<int32_t> tokens = object<Class>(self).tokenize(
          std::string_view(bytes, n_bytes), add_special != 0, parse_special != 0);
      return copy(tokens.data(), tokens.size(), out, capacity, n_out);
    });
  }
  static mri_status detokenize(void* self, const int32_t* tokens, uint64_t n_tokens,
                               uint32_t special, char* out, uint64_t capacity, uint64_t* n_out,
                               mri_error* err) {
    return guard(err, [&] {
      const std::string bytes =
          object<Class>(self).detokenize(std::span<const int32_t>(tokens, n_tokens), special != 0);
      return copy(bytes.data(), bytes.size(), out, capacity, n_out);
    });
  }
  static mri_status chat(void* self, const mri_chat_message* messages, uint64_t n_messages,
                         uint32_t add_generation_prompt, char* out, uint64_t capacity,
                         uint64_t* n_out, mri_error* err) {
    return guard(err, [&] {
      const std::string bytes = object<Class>(self).chat(
          std::span<const mri_chat_message>(messages, n_messages), add_generation_prompt != 0);
      return copy(bytes.data(), bytes.size(), out, capacity, n_out);
    });
  }
  static uint32_t is_end(void* self, int32_t token) {
    uint32_t end = 0;
    guard(nullptr, [&] { end = object<Class>(self).is_end(token) ? 1 : 0; });
    return end;
  }

  template <class T>
  static mri_status copy(const T* from, uint64_t n, T* out, uint64_t capacity, uint64_t* n_out) {
    if (n_out == nullptr) throw Error(MRI_E_ARG, "null n_out");
    *n_out = n;
    if (n > 0 && capacity > 0) std::memcpy(out, from, std::min(n, capacity) * sizeof(T));
    return n <= capacity ? MRI_OK : MRI_E_SPACE;
  }

  static constexpr mri_text_v1 table = {sizeof(mri_text_v1), 0,    model_info, tokenize,
                                        detokenize,          chat, is_end};
};

template <class Class>
struct sampling {
  static mri_status create(void* self, const mri_sampler_req* req, uint64_t* sampler,
                           mri_error* err) {
    return call<Class>(self, req, err, [sampler](Class& c, const auto& in) {
      check(sampler);
      *sampler = c.create_sampler(in);
    });
  }
  static mri_status sample(void* self, uint64_t sampler, const float* logits, int32_t* token,
                           mri_error* err) {
    return guard(err, [&] {
      check(logits);
      check(token);
      *token = object<Class>(self).sample(sampler, logits);
    });
  }
  static mri_status accept(void* self, uint64_t sampler, const int32_t* tokens, uint64_t n_tokens,
                           mri_error* err) {
    return guard(err, [&] {
      if (n_tokens > 0) check(tokens);
      object<Class>(self).accept(sampler, std::span<const int32_t>(tokens, n_tokens));
    });
  }
  static void release(void* self, uint64_t sampler) {
    guard(nullptr, [&] { object<Class>(self).release_sampler(sampler); });
  }

  static void check(const void* pointer) {
    if (pointer == nullptr) throw Error(MRI_E_ARG, "null pointer");
  }

  static constexpr mri_sampling_v1 table = {
      sizeof(mri_sampling_v1), 0, create, sample, accept, release};
};

template <class Class>
struct memory {
  static mri_status reuse(void* self, const mri_reuse_req* req, mri_reuse_rsp* rsp,
                          mri_error* err) {
    return call<Class>(self, req, rsp, err,
                       [](Class& c, const auto& in, auto& out) { return c.reuse(in, out); });
  }
  static mri_status keep(void* self, uint64_t ctx, const mri_prefix_key* keys, uint64_t n_keys,
                         uint32_t flags, mri_error* err) {
    return guard(err, [&] {
      if (n_keys > 0 && keys == nullptr) throw Error(MRI_E_ARG, "null keys");
      object<Class>(self).keep(ctx, std::span<const mri_prefix_key>(keys, n_keys), flags);
    });
  }
  static mri_status forget(void* self, const mri_prefix_key* last_key, mri_error* err) {
    return guard(err, [&] {
      if (last_key == nullptr) throw Error(MRI_E_ARG, "null key");
      object<Class>(self).forget(*last_key);
    });
  }
  static mri_status shrink(void* self, uint64_t ctx, uint64_t wanted_bytes, uint64_t* freed_bytes,
                           mri_error* err) {
    return guard(err, [&] {
      if (freed_bytes == nullptr) throw Error(MRI_E_ARG, "null result");
      *freed_bytes = object<Class>(self).shrink(ctx, wanted_bytes);
    });
  }
  static mri_status usage(void* self, mri_memory_usage* out, mri_error* err) {
    return guard(err, [&] {
      Response<mri_memory_usage> usage(out);
      object<Class>(self).memory_usage(*usage);
    });
  }

  static constexpr mri_memory_v1 table = {
      sizeof(mri_memory_v1), 0, reuse, keep, forget, shrink, usage};
};

template <class Class>
struct timings {
  static mri_status enable(void* self, uint64_t ctx, uint32_t on, mri_error* err) {
    return guard(err, [&] { object<Class>(self).enable_timings(ctx, on != 0); });
  }
  static mri_status read(void* self, uint64_t ctx, mri_timings* out, mri_error* err) {
    return guard(err, [&] {
      Response<mri_timings> timings(out);
      object<Class>(self).read_timings(ctx, *timings);
    });
  }

  static constexpr mri_timings_v1 table = {sizeof(mri_timings_v1), 0, enable, read};
};

template <class Class>
struct runtime {
  static mri_status init_context(void* self, const mri_init_req* req, mri_init_rsp* rsp,
                                 mri_error* err) {
    return call<Class>(self, req, rsp, err,
                       [](Class& c, const auto& in, auto& out) { return c.init_context(in, out); });
  }
  static mri_status forward_step(void* self, const mri_step_req* req, mri_step_rsp* rsp,
                                 mri_error* err) {
    return call<Class>(self, req, rsp, err, [err](Class& c, const auto& in, auto& out) {
      if constexpr (requires { c.forward_step(in, out, err); }) {
        return c.forward_step(in, out, err);
      } else {
        return c.forward_step(in, out);
      }
    });
  }
  static mri_status get_kv_summary(void* self, uint64_t ctx, const mri_summary_req* req,
                                   mri_summary_rsp* rsp, mri_error* err) {
    return call<Class>(self, req, rsp, err, [ctx](Class& c, const auto& in, auto& out) {
      return c.get_kv_summary(ctx, in, out);
    });
  }
  static mri_status evict_kv(void* self, uint64_t ctx, const mri_evict_req* req, mri_evict_rsp* rsp,
                             mri_error* err) {
    return call<Class>(self, req, rsp, err, [ctx](Class& c, const auto& in, auto& out) {
      return c.evict_kv(ctx, in, out);
    });
  }
  static void release_context(void* self, uint64_t ctx) {
    guard(nullptr, [&] { object<Class>(self).release_context(ctx); });
  }

  static constexpr mri_runtime_v1 table = {
      sizeof(mri_runtime_v1), 0,        init_context,   forward_step,
      get_kv_summary,         evict_kv, release_context};

  static const void* find(std::string_view id) {
    if (id == MRI_RUNTIME) return &table;
    if constexpr (requires(Class & c, mri_model_info & info) { c.model_info(info); }) {
      if (id == MRI_TEXT) return &text<Class>::table;
    }
    if constexpr (requires(Class & c, const mri_sampler_req& req) { c.create_sampler(req); }) {
      if (id == MRI_SAMPLING) return &sampling<Class>::table;
    }
    if constexpr (requires(Class & c, const mri_reuse_req& req, mri_reuse_rsp& rsp) {
                    c.reuse(req, rsp);
                  }) {
      if (id == MRI_MEMORY) return &memory<Class>::table;
    }
    if constexpr (requires(Class & c, mri_timings & sums) { c.read_timings(0, sums); }) {
      if (id == MRI_TIMINGS) return &timings<Class>::table;
    }
    if constexpr (requires { Class::kernels(); }) {
      if (id == MRI_KERNELS) return Class::kernels();
    }
    return nullptr;
  }
};

}  // namespace mri::kind
