// A worker's plugin as the host calls it: mri_plugin, and the tables of its kind.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "core/plugin/guard.h"
#include "core/plugin/worker.h"
#include "mri/kv_view.h"

namespace varve {
namespace {

constexpr uint64_t kStructBytesMax = 256;  // of any struct in the table of calls

WorkerPlugin& worker_of(void* self) { return *static_cast<WorkerPlugin*>(self); }

// A struct of a call in this process, of today's size; what the caller does not have is zero.
struct alignas(8) Copy {
  unsigned char bytes[kStructBytesMax] = {};

  static uint32_t common(const void* from, uint32_t today) {
    uint32_t struct_size = 0;
    std::memcpy(&struct_size, from, sizeof(struct_size));
    return std::min(struct_size, today);
  }
  void take(const void* from, uint32_t today) { std::memcpy(bytes, from, common(from, today)); }
};

void put_pointer(const ArrayRule& rule, uint64_t value, unsigned char* req, unsigned char* rsp) {
  std::memcpy((rule.is_in_response ? rsp : req) + rule.pointer_offset, &value, sizeof(value));
}

// Request, response and what is read into the slot, each pointer as an offset. The room of arrays
// that are written is left as it is.
void fill(const CallRule& rule, const CallLayout& layout, const Copy& req, const Copy& rsp,
          WorkerSlot* slot) {
  Copy sent_req = req, sent_rsp = rsp;
  for (size_t i = 0; i < rule.arrays.size(); ++i) {
    const ArrayRule& array = rule.arrays[i];
    const uint64_t from = pointer_in(array, req.bytes, rsp.bytes);
    put_pointer(array, layout.arrays[i], sent_req.bytes, sent_rsp.bytes);
    if (array.is_written || layout.array_bytes[i] == 0) continue;
    std::memcpy(slot->payload + layout.arrays[i], reinterpret_cast<const void*>(from),
                layout.array_bytes[i]);
  }
  const uint64_t end = rule.rsp_bytes == 0 ? layout.total : layout.rsp;
  const auto put = [&](uint64_t at, uint64_t until, const Copy& from, uint32_t bytes) {
    std::memcpy(slot->payload + at, from.bytes, bytes);
    uint32_t struct_size = 0;
    std::memcpy(&struct_size, from.bytes, sizeof(struct_size));
    if (struct_size > bytes) {
      std::memset(slot->payload + at + bytes, 0,
                  std::min<uint64_t>(struct_size, until - at) - bytes);
    }
  };
  put(0, end, sent_req, rule.req_bytes);
  if (rule.rsp_bytes > 0) put(layout.rsp, layout.total, sent_rsp, rule.rsp_bytes);
}

// The answer in the slot to the caller's memory. The worker may change the slot at any time: each
// part is copied once and checked as copied. Only what the caller's counts allow is written.
void take_answer(const CallRule& rule, const CallLayout& layout, const Copy& req, const Copy& rsp,
                 const WorkerSlot& slot, uint64_t body_bytes, void* caller_rsp) {
  Copy answer;
  if (rule.rsp_bytes > 0) {
    std::memcpy(answer.bytes, slot.payload + layout.rsp, rule.rsp_bytes);
    std::memcpy(answer.bytes + rule.kept_offset, rsp.bytes + rule.kept_offset, rule.kept_bytes);
  }
  for (size_t i = 0; i < rule.arrays.size(); ++i) {
    const ArrayRule& array = rule.arrays[i];
    if (!array.is_written || layout.array_bytes[i] == 0) continue;
    const CallArgs args{req.bytes, answer.bytes, body_bytes};
    const uint64_t bytes = array.written == nullptr
                               ? layout.array_bytes[i]
                               : std::min(array.written(args), layout.array_bytes[i]);
    void* to = reinterpret_cast<void*>(pointer_in(array, req.bytes, rsp.bytes));
    std::memcpy(to, slot.payload + layout.arrays[i], bytes);
  }
  if (rule.rsp_bytes > 0)
    std::memcpy(caller_rsp, answer.bytes, Copy::common(rsp.bytes, rule.rsp_bytes));
}

// An exception of the plugin leaves this process's table as it would have left the plugin's.
void throw_again(uint32_t threw, const mri_error& err) {
  if (threw == 1) throw std::runtime_error(std::string(err.msg, strnlen(err.msg, sizeof(err.msg))));
  if (threw != 0) throw static_cast<int>(threw);
}

}  // namespace

WorkerPlugin::Process WorkerPlugin::running(uint64_t ms_max) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms_max);
  const MutexLock lock(&mutex_);
  while (state_ == State::kDown && std::chrono::steady_clock::now() < end)
    changed_.wait_until(mutex_, end);
  return process_;
}

// Dead, or as good as that: one that only says so is ended. The next call must wait for another,
// whether or not the supervisor has noticed yet.
void WorkerPlugin::forget(WorkerProcess& process) {
  process.kill();
  const MutexLock lock(&mutex_);
  if (process_.get() != &process) return;
  process_ = nullptr;
  if (state_ == State::kRunning) state_ = State::kDown;
}

mri_status WorkerPlugin::no_answer(mri_error* err) const {
  std::string text;
  {
    const MutexLock lock(&mutex_);
    text = absl::StrCat("the plugin's own process did not answer: ",
                        last_end_.empty() ? "it has just ended" : last_end_,
                        state_ == State::kQuarantined ? "; in quarantine" : "");
  }
  return fill_error(err, MRI_E_INTERNAL, text);
}

mri_status WorkerPlugin::call(const CallRule& rule, const void* req, void* rsp, uint64_t body_bytes,
                              mri_error* err) {
  const bool has_fallback = fallback_table_ != nullptr;
  bool is_answered = false;
  mri_status status = MRI_OK;
  if (const Process process = running(has_fallback ? 0 : spec_.isolation.deadline_ms)) {
    const auto start = std::chrono::steady_clock::now();
    status = answer(*process, rule, {req, rsp, body_bytes}, rsp, err, &is_answered);
    if (is_answered) {
      const std::chrono::nanoseconds spent = std::chrono::steady_clock::now() - start;
      calls_.fetch_add(1, std::memory_order_relaxed);
      call_ns_.fetch_add(static_cast<uint64_t>(spent.count()), std::memory_order_relaxed);
      return status;
    }
  } else {
    status = no_answer(err);
  }
  if (!has_fallback) return status;
  fallback_calls_.fetch_add(1, std::memory_order_relaxed);
  return rule.invoke(fallback_table_, fallback_self_, const_cast<void*>(req), rsp, err);
}

mri_status WorkerPlugin::answer(WorkerProcess& process, const CallRule& rule, const CallArgs& args,
                                void* caller_rsp, mri_error* err, bool* is_answered) {
  Copy req, rsp;
  req.take(args.req, rule.req_bytes);
  if (rule.rsp_bytes > 0) rsp.take(args.rsp, rule.rsp_bytes);
  CallLayout layout;
  if (!lay_out(rule, {req.bytes, rsp.bytes, args.body_bytes}, &layout)) {
    return fill_error(err, MRI_E_NOMEM,
                      absl::StrCat(rule.name, ": larger than the ", kWorkerPayloadBytes,
                                   " bytes that a plugin in its own process can be given"));
  }
  WorkerProcess::Lease lease(process);
  if (!lease) {
    forget(process);
    return no_answer(err);
  }
  WorkerSlot& slot = lease.slot();
  slot.body_bytes = args.body_bytes;
  slot.error = *err;
  fill(rule, layout, req, rsp, &slot);
  const WorkerAnswer answer = lease.transact(rule.call, spec_.isolation.deadline_ms);
  if (answer != WorkerAnswer::kDone) forget(process);
  if (answer == WorkerAnswer::kLate) {
    return fill_error(
        err, MRI_E_INTERNAL,
        absl::StrCat(rule.name, ": no answer from the plugin's own process ", process.pid(), " in ",
                     spec_.isolation.deadline_ms, " ms; the process was ended"));
  }
  if (answer == WorkerAnswer::kDead) {
    return fill_error(err, MRI_E_INTERNAL,
                      absl::StrCat(rule.name, ": the plugin's own process ", process.pid(),
                                   " died during the call"));
  }
  *is_answered = true;
  const uint32_t threw = slot.threw;
  const mri_status status = slot.status;
  std::memcpy(err, &slot.error, sizeof(*err));
  err->struct_size = sizeof(*err);
  throw_again(threw, *err);
  take_answer(rule, layout, req, rsp, slot, args.body_bytes, caller_rsp);
  return status;
}

mri_status WorkerPlugin::body_bytes(uint32_t head_dim, uint64_t* bytes, mri_error* err) {
  {
    const MutexLock lock(&mutex_);
    const auto known = body_bytes_.find(head_dim);
    if (known != body_bytes_.end()) {
      *bytes = known->second;
      return MRI_OK;
    }
  }
  const DescribeRequest req{{sizeof(DescribeRequest), 0}, head_dim, 0};
  mri_quant_desc desc{};
  desc.hdr.struct_size = sizeof(desc);
  const mri_status status = call(*call_rule(WorkerCall::kDescribe), &req, &desc, 0, err);
  if (status != MRI_OK) return status;
  *bytes = desc.body_bytes;
  const MutexLock lock(&mutex_);
  body_bytes_[head_dim] = desc.body_bytes;
  return MRI_OK;
}

mri_status WorkerPlugin::live(WorkerCall call, std::string_view message, uint64_t ms_max,
                              std::string* reply, mri_error* err) {
  const Process process = running(0);
  if (process == nullptr) return no_answer(err);
  mri_status status = MRI_OK;
  mri_error said{};
  absl::StatusOr<std::string> answer = process->exchange(call, message, ms_max, &status, &said);
  if (!answer.ok()) {
    return fill_error(err, MRI_E_INTERNAL,
                      absl::StrCat("the plugin's own process: ", answer.status().message()));
  }
  if (reply != nullptr) *reply = *std::move(answer);
  if (status != MRI_OK) {
    std::memcpy(err, &said, sizeof(said));
    err->struct_size = sizeof(*err);
  }
  return status;
}

mri_status WorkerPlugin::open(mri_plugin** out, mri_error* err) {
  std::string reply;
  const mri_status status = live(WorkerCall::kOpen, "", kWorkerStartMs, &reply, err);
  const bool is_whole = Unpacker(reply).get<uint32_t>() != 0;
  if (status == MRI_OK && is_whole) *out = &abi_;
  return status;
}

const void* WorkerPlugin::get_interface(void* self, const char* id) {
  static constexpr uint32_t kIncomplete[2] = {};
  WorkerPlugin& worker = worker_of(self);
  const void* table = worker_table(worker.info_.kind);
  if (std::string_view(id) != absl::StrCat("mri.", worker.info_.kind, "/1")) return nullptr;
  ErrorSlot err(nullptr);
  std::string reply;
  if (worker.live(WorkerCall::kGetInterface, "", kWorkerStartMs, &reply, err.get()) != MRI_OK) {
    return nullptr;
  }
  Unpacker from(reply);
  const bool is_there = from.get<uint32_t>() != 0;
  const bool is_whole = from.get<uint32_t>() != 0;
  return is_whole ? table : is_there ? kIncomplete : nullptr;
}

mri_status WorkerPlugin::query_caps(void* self, mri_caps* out, mri_error* err) {
  std::string reply;
  const mri_status status =
      worker_of(self).live(WorkerCall::kQueryCaps, "", kWorkerStartMs, &reply, err);
  if (status != MRI_OK) return status;
  if (reply.size() != sizeof(mri_caps)) return fill_error(err, MRI_E_INTERNAL, "malformed caps");
  const uint32_t size = std::min<uint32_t>(out->hdr.struct_size, sizeof(mri_caps));
  std::memcpy(out, reply.data(), size);
  out->hdr.struct_size = size;
  return MRI_OK;
}

mri_status WorkerPlugin::activate(void* self, const mri_param* params, uint64_t n_params,
                                  mri_error* err) {
  WorkerPlugin& worker = worker_of(self);
  const std::string packed = packed_params(params, n_params);
  const mri_status status =
      worker.live(WorkerCall::kActivate, packed, kWorkerStartMs, nullptr, err);
  if (status != MRI_OK) return status;
  const MutexLock lock(&worker.mutex_);
  worker.params_ = packed;
  worker.is_active_ = true;
  return MRI_OK;
}

mri_status WorkerPlugin::drain(void* self, uint64_t deadline_ns, mri_error* err) {
  Packer message;
  message.put(deadline_ns);
  const uint64_t ms_max = deadline_ns / 1'000'000 + kWorkerCloseMs;
  return worker_of(self).live(WorkerCall::kDrain, message.bytes(), ms_max, nullptr, err);
}

void WorkerPlugin::close(void* self) {
  WorkerPlugin& worker = worker_of(self);
  {
    const MutexLock lock(&worker.mutex_);
    worker.is_stopping_ = true;  // its end is wanted from here on
  }
  ErrorSlot err(nullptr);
  worker.live(WorkerCall::kClose, "", kWorkerCloseMs, nullptr, err.get());
}

namespace {

mri_status describe(void* self, uint32_t head_dim, mri_quant_desc* out, mri_error* err) {
  const DescribeRequest req{{sizeof(DescribeRequest), 0}, head_dim, 0};
  return worker_of(self).call(*call_rule(WorkerCall::kDescribe), &req, out, 0, err);
}

template <WorkerCall kCall, class Req>
mri_status page(void* self, const Req* req, mri_error* err) {
  uint64_t bytes = 0;
  const mri_status status = worker_of(self).body_bytes(req->head_dim, &bytes, err);
  if (status != MRI_OK) return status;
  return worker_of(self).call(*call_rule(kCall), req, nullptr, bytes, err);
}

template <WorkerCall kCall, class Req, class Rsp>
mri_status ask(void* self, const Req* req, Rsp* rsp, mri_error* err) {
  return worker_of(self).call(*call_rule(kCall), req, rsp, 0, err);
}

uint32_t pairs_max(void* self, uint32_t n_tokens) {
  const PairsRequest req{{sizeof(PairsRequest), 0}, n_tokens, 0};
  PairsResponse rsp{};
  rsp.hdr.struct_size = sizeof(rsp);
  ErrorSlot err(nullptr);
  worker_of(self).call(*call_rule(WorkerCall::kPairsMax), &req, &rsp, 0, err.get());
  // Callers size their memory by it, so it must be believable.
  return std::min<uint64_t>(rsp.n_pairs, uint64_t{n_tokens} + MRI_SEGMENT_TOKENS);
}

constexpr mri_quantizer_v1 kQuantizer = {sizeof(mri_quantizer_v1), 0, describe,
                                         page<WorkerCall::kEncode, mri_quant_encode_req>,
                                         page<WorkerCall::kDecode, mri_quant_decode_req>};
constexpr mri_kv_tier_v1 kKvTier = {sizeof(mri_kv_tier_v1), 0,
                                    ask<WorkerCall::kDecide, mri_tier_req, mri_tier_rsp>};
constexpr mri_summary_v1 kSummary = {
    sizeof(mri_summary_v1), 0, pairs_max,
    ask<WorkerCall::kMake, mri_summary_make_req, mri_summary_make_rsp>};
constexpr mri_batching_v1 kBatching = {sizeof(mri_batching_v1), 0,
                                       ask<WorkerCall::kNextStep, mri_batch_req, mri_batch_rsp>};

}  // namespace

const void* worker_table(std::string_view kind) {
  if (kind == "quantizer") return &kQuantizer;
  if (kind == "kv_tier") return &kKvTier;
  if (kind == "summary") return &kSummary;
  if (kind == "batching") return &kBatching;
  return nullptr;
}

}  // namespace varve
