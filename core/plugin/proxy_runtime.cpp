// Proxies of a runtime: its four methods and its text functions; and what each kind must offer.
#include <algorithm>
#include <cstring>
#include <thread>
#include <type_traits>

#include "core/plugin/proxy_call.h"
#include "mri/kv_view.h"

namespace varve {
namespace {

// The caller's progress: what it points to belongs to the caller's thread.
struct Progress {
  PluginPort& port;
  const mri_init_req& req;
  const std::thread::id caller = std::this_thread::get_id();

  static void call(void* user, uint64_t done, uint64_t n) {
    const Progress& self = *static_cast<const Progress*>(user);
    if (std::this_thread::get_id() == self.caller) {
      self.req.progress(self.req.progress_user, done, n);
    } else {
      self.port.guard.count_misbehaviour("progress called in another thread; the call is dropped");
    }
  }
};

mri_status init_context(void* self, const mri_init_req* req, mri_init_rsp* rsp, mri_error* err) {
  PluginPort& port = port_of(self);
  if (!is_usable(req) || !is_usable(rsp)) return bad_caller(err);
  mri_init_req own{};
  const auto size = static_cast<uint32_t>(std::min<uint64_t>(req->hdr.struct_size, sizeof(own)));
  std::memcpy(&own, req, size);
  own.hdr.struct_size = size;
  Progress progress{port, *req};
  if (req->progress != nullptr) {
    own.progress = Progress::call;
    own.progress_user = &progress;
  }
  const mri_status status = answered(
      port, size, rsp, err,
      [&](mri_error* e) {
        return table_of<mri_runtime_v1>(port).init_context(port.self, &own, rsp, e);
      },
      [&] { return rsp->ctx == 0 ? "a context with number 0" : nullptr; });
  if (status == MRI_OK) port.lengths.begin(rsp->ctx, req->n_tokens);
  return status;
}

const char* wrong_in_step(const mri_step_req& req) {
  const char* wrong = nullptr;
  for (uint64_t i = 0; i < req.n_seqs; ++i) {
    if (status_name(req.seqs[i].status) != nullptr) continue;
    req.seqs[i].status = MRI_E_INTERNAL;
    wrong = "a sequence with an unknown status";
  }
  return wrong;
}

mri_status forward_step(void* self, const mri_step_req* req, mri_step_rsp* rsp, mri_error* err) {
  PluginPort& port = port_of(self);
  if (!is_usable(req) || !is_usable(rsp)) return bad_caller(err);
  if (req->n_seqs == 0 || req->seqs == nullptr) {
    return fill_error(err, MRI_E_ARG, "a step without sequences");
  }
  const StepLease lease(port, *req);
  if (const mri_status status = lease.check(err); status != MRI_OK) return status;
  // Before the call, as an eviction may follow it at once.
  for (uint64_t i = 0; i < req->n_seqs; ++i) {
    port.lengths.grow(req->seqs[i].ctx, req->seqs[i].n_tokens);
  }
  return answered(
      port, req->hdr.struct_size, rsp, err,
      [&](mri_error* e) {
        return table_of<mri_runtime_v1>(port).forward_step(port.self, req, rsp, e);
      },
      [&] { return wrong_in_step(*req); });
}

mri_status get_kv_summary(void* self, uint64_t ctx, const mri_summary_req* req,
                          mri_summary_rsp* rsp, mri_error* err) {
  PluginPort& port = port_of(self);
  if (!is_usable(req) || !is_usable(rsp)) return bad_caller(err);
  const StepLease lease(port, ctx);
  if (const mri_status status = lease.check(err); status != MRI_OK) return status;
  return answered(
      port, req->hdr.struct_size, rsp, err,
      [&](mri_error* e) {
        return table_of<mri_runtime_v1>(port).get_kv_summary(port.self, ctx, req, rsp, e);
      },
      [&] { return rsp->n_out > req->capacity ? "more rows than room" : nullptr; });
}

// Only what the plugin wrote counts: an absent confirmation is unknown, never success.
void settle_confirmation(mri_evict_rsp* rsp, uint32_t struct_size) {
  if (struct_size < sizeof(mri_evict_rsp)) return;
  if (!mri::has(*rsp, &mri_evict_rsp::confirm_epoch)) {
    rsp->confirm_state = MRI_CONFIRM_UNKNOWN;
    rsp->n_refused = 0;
    rsp->confirm_epoch = 0;
  }
  if (rsp->confirm_state > MRI_CONFIRM_REFUSED) rsp->confirm_state = MRI_CONFIRM_UNKNOWN;
}

mri_status evict_kv(void* self, uint64_t ctx, const mri_evict_req* req, mri_evict_rsp* rsp,
                    mri_error* err) {
  PluginPort& port = port_of(self);
  if (!is_usable(req) || !is_usable(rsp)) return bad_caller(err);
  if (req->ranges == nullptr && req->n_ranges > 0) return bad_caller(err);
  const uint32_t caller_size = rsp->hdr.struct_size;
  const auto evictable = [&] {
    return port.lengths.evictable(ctx, std::span(req->ranges, req->n_ranges));
  };
  const uint64_t before = evictable();  // the context may be released meanwhile, or grow
  if (port.negotiated < MRI_1_1) rsp->hdr.struct_size = MRI_EVICT_RSP_SIZE_1_0;
  const mri_status status = answered(
      port, req->hdr.struct_size, rsp, err,
      [&](mri_error* e) {
        return table_of<mri_runtime_v1>(port).evict_kv(port.self, ctx, req, rsp, e);
      },
      [&] {
        return rsp->n_evicted > std::max(before, evictable())
                   ? "evicted tokens that the context does not have there"
                   : nullptr;
      });
  rsp->hdr.struct_size = caller_size;
  settle_confirmation(rsp, caller_size);
  return status;
}

void release_context(void* self, uint64_t ctx) {
  PluginPort& port = port_of(self);
  port.lengths.end(ctx);  // before the call, after which the number may be another context's
  plain(port, nullptr, [&](mri_error*) {
    table_of<mri_runtime_v1>(port).release_context(port.self, ctx);
    return MRI_OK;
  });
}

mri_status model_info(void* self, mri_model_info* out, mri_error* err) {
  PluginPort& port = port_of(self);
  if (!is_usable(out)) return bad_caller(err);
  const mri_status status = answered(
      port, UINT32_MAX, out, err,
      [&](mri_error* e) { return port.text->model_info(port.self, out, e); }, nothing_wrong);
  out->name[sizeof(out->name) - 1] = '\0';
  out->architecture[sizeof(out->architecture) - 1] = '\0';
  return status;
}

// The text functions write to `out` up to `capacity` and say the whole count in *n_out.
template <class Call>
mri_status counted(PluginPort& port, uint64_t capacity, uint64_t* n_out, mri_error* caller_err,
                   Call&& call) {
  ErrorSlot err(caller_err);
  if (n_out == nullptr) return bad_caller(err.get());
  *n_out = 0;
  const mri_status status = plain(port, err.get(), call);
  if (status != MRI_OK || *n_out <= capacity) return status;
  *n_out = 0;
  return port.guard.broken(err.get(), "success with more output than room");
}

mri_status tokenize(void* self, const char* text, uint64_t n_bytes, uint32_t add_special,
                    uint32_t parse_special, int32_t* out, uint64_t capacity, uint64_t* n_out,
                    mri_error* err) {
  PluginPort& port = port_of(self);
  return counted(port, capacity, n_out, err, [&](mri_error* e) {
    return port.text->tokenize(port.self, text, n_bytes, add_special, parse_special, out, capacity,
                               n_out, e);
  });
}

mri_status detokenize(void* self, const int32_t* tokens, uint64_t n_tokens, uint32_t special,
                      char* out, uint64_t capacity, uint64_t* n_out, mri_error* err) {
  PluginPort& port = port_of(self);
  return counted(port, capacity, n_out, err, [&](mri_error* e) {
    return port.text->detokenize(port.self, tokens, n_tokens, special, out, capacity, n_out, e);
  });
}

mri_status chat(void* self, const mri_chat_message* messages, uint64_t n_messages,
                uint32_t add_generation_prompt, char* out, uint64_t capacity, uint64_t* n_out,
                mri_error* err) {
  PluginPort& port = port_of(self);
  return counted(port, capacity, n_out, err, [&](mri_error* e) {
    return port.text->chat(port.self, messages, n_messages, add_generation_prompt, out, capacity,
                           n_out, e);
  });
}

uint32_t is_end(void* self, int32_t token) {
  PluginPort& port = port_of(self);
  uint32_t end = 0;
  plain(port, nullptr, [&](mri_error*) {
    end = port.text->is_end(port.self, token);
    return MRI_OK;
  });
  return end;
}

}  // namespace

const mri_runtime_v1 kRuntimeProxy = {
    sizeof(mri_runtime_v1), 0,        init_context,   forward_step,
    get_kv_summary,         evict_kv, release_context};
const mri_text_v1 kTextProxy = {sizeof(mri_text_v1), 0,    model_info, tokenize,
                                detokenize,          chat, is_end};

uint64_t ActiveContexts::enter(std::span<const uint64_t> contexts) {
  const MutexLock lock(&mutex_);
  for (size_t i = 0; i < contexts.size(); ++i) {
    if (contexts[i] != 0 && active_.insert(contexts[i]).second) continue;
    for (size_t done = 0; done < i; ++done) active_.erase(contexts[done]);
    return contexts[i] == 0 ? UINT64_MAX : contexts[i];
  }
  return 0;
}

void ActiveContexts::leave(std::span<const uint64_t> contexts) {
  const MutexLock lock(&mutex_);
  for (const uint64_t context : contexts) active_.erase(context);
}

void ContextLengths::begin(uint64_t ctx, uint64_t n_tokens) {
  const MutexLock lock(&mutex_);
  lengths_[ctx] = n_tokens;
}

void ContextLengths::grow(uint64_t ctx, uint64_t n_tokens) {
  const MutexLock lock(&mutex_);
  if (const auto it = lengths_.find(ctx); it != lengths_.end()) it->second += n_tokens;
}

void ContextLengths::end(uint64_t ctx) {
  const MutexLock lock(&mutex_);
  lengths_.erase(ctx);
}

uint64_t ContextLengths::evictable(uint64_t ctx, std::span<const mri_token_range> ranges) const {
  uint64_t length = 0, n = 0;
  {
    const MutexLock lock(&mutex_);
    if (const auto it = lengths_.find(ctx); it != lengths_.end()) length = it->second;
  }
  constexpr uint64_t kUnit = MRI_SEGMENT_TOKENS;  // the widest granularity
  for (const mri_token_range& range : ranges) {
    if (range.first >= length || range.count == 0) continue;
    const uint64_t end = range.first + std::min(range.count, length - range.first);
    n += std::min(length, (end + kUnit - 1) / kUnit * kUnit) - range.first / kUnit * kUnit;
  }
  return n;
}

namespace {

template <auto member>
constexpr OptionalInterface optional(const char* id, const void* proxy) {
  using Table = std::remove_cvref_t<decltype(*(std::declval<PluginPort&>().*member))>;
  return {id, proxy,
          [](PluginPort& port, const void* table) {
            if (is_complete(table, sizeof(Table), 8))
              port.*member = static_cast<const Table*>(table);
          },
          [](const PluginPort& port) { return port.*member != nullptr; }};
}

}  // namespace

std::span<const OptionalInterface> optional_interfaces() {
  static const OptionalInterface kOptional[] = {
      optional<&PluginPort::text>(MRI_TEXT, &kTextProxy),
      optional<&PluginPort::sampling>(MRI_SAMPLING, &kSamplingProxy),
      optional<&PluginPort::memory>(MRI_MEMORY, &kMemoryProxy),
      optional<&PluginPort::timings>(MRI_TIMINGS, &kTimingsProxy)};
  return kOptional;
}

const KindInterface* kind_interface(std::string_view kind) {
  static const KindInterface kKinds[] = {
      {"runtime", MRI_RUNTIME, sizeof(mri_runtime_v1), &kRuntimeProxy},
      {"kv_tier", MRI_KV_TIER, sizeof(mri_kv_tier_v1), &kKvTierProxy},
      {"quantizer", MRI_QUANTIZER, sizeof(mri_quantizer_v1), &kQuantizerProxy},
      {"attention", MRI_ATTENTION, sizeof(mri_attention_v1), &kAttentionProxy},
      {"summary", MRI_SUMMARY, sizeof(mri_summary_v1), &kSummaryProxy},
      {"batching", MRI_BATCHING, sizeof(mri_batching_v1), &kBatchingProxy}};
  for (const KindInterface& entry : kKinds) {
    if (entry.kind == kind) return &entry;
  }
  return nullptr;
}

bool is_complete(const void* table, uint32_t bytes, uint32_t first_function) {
  if (table == nullptr) return false;
  uint32_t size = 0;
  std::memcpy(&size, table, sizeof(size));
  if (size < bytes) return false;
  for (uint32_t offset = first_function; offset < bytes; offset += sizeof(void*)) {
    const void* function = nullptr;
    std::memcpy(&function, static_cast<const char*>(table) + offset, sizeof(function));
    if (function == nullptr) return false;
  }
  return true;
}

}  // namespace varve
