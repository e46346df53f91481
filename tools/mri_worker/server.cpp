#include "tools/mri_worker/server.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <thread>

#include "adapters/light/kernel_table.h"
#include "core/plugin/guard.h"
#include "core/plugin/proxy.h"

namespace varve::worker {
namespace {

// One write, so that lines of several threads do not mix; a full pipe loses the line rather than
// hold up the plugin.
void write_line(LogLevel level, std::string_view text) {
  std::string line(1, static_cast<char>(1 + static_cast<int>(level)));
  line += text;
  line += '\n';
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

// An exception of the plugin goes to the host as it is, to be thrown there again.
template <class Call>
mri_status told(WorkerSlot& slot, Call&& call) {
  try {
    return call();
  } catch (abi::__forced_unwind&) {
    throw;
  } catch (const std::exception& e) {
    slot.threw = 1;
    std::memset(slot.error.msg, 0, sizeof(slot.error.msg));
    std::strncpy(slot.error.msg, e.what(), sizeof(slot.error.msg) - 1);
  } catch (...) {
    slot.threw = 2;
  }
  return MRI_E_INTERNAL;
}

}  // namespace

void Server::run() {
  for (uint32_t i = 1; i < kWorkerSlots; ++i)
    std::thread([this, i] { serve_slot(memory_.slot(i)); }).detach();
  for (;;) serve_slot(memory_.slot(0));
}

void Server::serve_slot(WorkerSlot& slot) {
  uint32_t done = 0;
  slot.worker_thread.store(static_cast<uint32_t>(gettid()), std::memory_order_relaxed);
  for (;;) {
    const uint32_t wanted = slot.request.load(std::memory_order_acquire);
    if (wanted == done) {
      wait_while(slot.request, done, slot.worker_sleeps, UINT64_MAX, slot.is_in_row.load() != 0);
      continue;
    }
    done = wanted;
    serve(slot, static_cast<WorkerCall>(slot.call));
    store_and_wake(slot.response, done, slot.host_sleeps);
  }
}

void Server::serve(WorkerSlot& slot, WorkerCall call) {
  if (const CallRule* rule = call_rule(call)) {
    slot.status = table_ == nullptr ? MRI_E_STATE : this->call(*rule, slot);
    return;
  }
  const std::string message(reinterpret_cast<const char*>(slot.payload),
                            std::min<uint64_t>(slot.n_bytes, kWorkerPayloadBytes));
  std::string reply = live(call, message, slot);
  if (reply.size() > kWorkerPayloadBytes) reply.clear();
  std::memcpy(slot.payload, reply.data(), reply.size());
  slot.n_bytes = static_cast<uint32_t>(reply.size());
}

std::string Server::live(WorkerCall call, std::string_view message, WorkerSlot& slot) {
  std::string reply;
  slot.status = MRI_OK;
  if (call == WorkerCall::kLoad) return load(message);
  if (call == WorkerCall::kMetrics) return numbers();
  if (call != WorkerCall::kOpen && plugin_ == nullptr) {
    slot.status = MRI_E_STATE;
    return "";
  }
  slot.status = told(slot, [&]() -> mri_status {
    switch (call) {
      case WorkerCall::kOpen:
        return open(&slot.error, &reply);
      case WorkerCall::kGetInterface: {
        const KindInterface& kind = *kind_interface(library_.info.kind);
        const void* table = plugin_->get_interface(plugin_->self, kind.id);
        const bool is_whole = is_complete(table, kind.table_bytes, 8);
        table_ = is_whole ? table : nullptr;
        Packer to;
        to.put(static_cast<uint32_t>(table != nullptr));
        to.put(static_cast<uint32_t>(is_whole));
        reply = to.bytes();
        return MRI_OK;
      }
      case WorkerCall::kQueryCaps: {
        mri_caps caps{};
        caps.hdr.struct_size = sizeof(caps);
        const mri_status status = plugin_->query_caps(plugin_->self, &caps, &slot.error);
        reply.assign(reinterpret_cast<const char*>(&caps), sizeof(caps));
        return status;
      }
      case WorkerCall::kActivate:
        return activate(message, &slot.error);
      case WorkerCall::kDrain:
        return plugin_->drain(plugin_->self, Unpacker(message).get<uint64_t>(), &slot.error);
      case WorkerCall::kClose:
        plugin_->close(plugin_->self);
        plugin_ = nullptr;
        table_ = nullptr;
        return MRI_OK;
      default:
        return MRI_E_UNSUPPORTED;
    }
  });
  return reply;
}

std::string Server::load(std::string_view message) {
  const absl::StatusOr<LoadMessage> wanted = unpacked_load(message);
  if (!wanted.ok()) return packed_library(wanted.status());
  Trust trust;
  trust.sha256 = {wanted->sha256};
  absl::StatusOr<PluginLibrary> library =
      PluginLibrary::load(wanted->path, wanted->kind, wanted->host_versions, trust);
  if (!library.ok()) return packed_library(library);
  library_ = *library;
  HostServices services;
  if (wanted->has_threads) {
    threads_ = std::make_unique<ThreadPool>(1);
    services.threads = threads_.get();
  }
  services.log = [](LogLevel level, std::string_view, std::string_view text) {
    write_line(level, text);
  };
  services.buffer_bytes_max = wanted->buffer_bytes_max;
  services.withheld = wanted->withheld;
  const PluginHost::Lookup lookup = [](std::string_view id) -> const void* {
    return id == MRI_KERNELS ? light::kernel_table() : nullptr;
  };
  host_ = std::make_unique<PluginHost>(wanted->who, library_.info.negotiated, services, lookup,
                                       PluginHost::PeerLookup());
  return packed_library(library);
}

mri_status Server::open(mri_error* err, std::string* reply) {
  if (library_.entry == nullptr) return MRI_E_STATE;
  const mri_status status =
      library_.entry->open(host_->abi(), library_.info.negotiated, &plugin_, err);
  constexpr uint32_t kFirstFunction = offsetof(mri_plugin, get_interface);
  if (status != MRI_OK || !is_complete(plugin_, sizeof(mri_plugin), kFirstFunction)) {
    plugin_ = nullptr;
  }
  Packer to;
  to.put(static_cast<uint32_t>(plugin_ != nullptr));
  *reply = to.bytes();
  return status;
}

mri_status Server::activate(std::string_view message, mri_error* err) {
  std::vector<std::string> texts;
  const absl::StatusOr<std::vector<mri_param>> params = unpacked_params(message, &texts);
  if (!params.ok()) return MRI_E_ARG;
  return plugin_->activate(plugin_->self, params->data(), params->size(), err);
}

std::string Server::numbers() const {
  if (host_ == nullptr) return packed_numbers({});
  return packed_numbers({host_->buffer_bytes(), host_->metrics()});
}

mri_status Server::call(const CallRule& rule, WorkerSlot& slot) {
  const auto in_payload = [&](uint64_t at) { return slot.payload + at; };
  CallLayout layout;
  // The host's layout again, from what it sent: an offset that says something else is refused.
  const uint64_t rsp_at = [&] {
    uint32_t struct_size = 0;
    std::memcpy(&struct_size, slot.payload, sizeof(struct_size));
    return (uint64_t{std::max(struct_size, rule.req_bytes)} + 63) / 64 * 64;
  }();
  if (rsp_at + sizeof(mri_rsp_hdr) > kWorkerPayloadBytes) return MRI_E_ARG;
  void* req = in_payload(0);
  void* rsp = rule.rsp_bytes == 0 ? nullptr : in_payload(rsp_at);
  if (!lay_out(rule, {req, rsp, slot.body_bytes}, &layout)) return MRI_E_ARG;
  for (size_t i = 0; i < rule.arrays.size(); ++i) {
    const ArrayRule& array = rule.arrays[i];
    if (pointer_in(array, req, rsp) != layout.arrays[i]) return MRI_E_ARG;
    if (layout.arrays[i] == 0) continue;
    const void* pointer = in_payload(layout.arrays[i]);
    std::memcpy(static_cast<char*>(array.is_in_response ? rsp : req) + array.pointer_offset,
                &pointer, sizeof(pointer));
  }
  return told(slot, [&] { return rule.invoke(table_, plugin_->self, req, rsp, &slot.error); });
}

}  // namespace varve::worker
