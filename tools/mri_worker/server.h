// The worker's side: one plugin, and a thread for each slot of the shared memory.
#pragma once

#include <memory>
#include <string>

#include "core/base/thread_pool.h"
#include "core/plugin/host.h"
#include "core/plugin/library.h"
#include "core/plugin/worker_calls.h"
#include "core/plugin/worker_memory.h"
#include "core/plugin/worker_messages.h"

namespace varve::worker {

class Server {
 public:
  explicit Server(WorkerMemory memory) : memory_(std::move(memory)) {}
  // Never returns: the process ends when the host ends it.
  [[noreturn]] void run();

 private:
  void serve_slot(WorkerSlot& slot);
  void serve(WorkerSlot& slot, WorkerCall call);
  // The plugin's life; the answer's message.
  std::string live(WorkerCall call, std::string_view message, WorkerSlot& slot);
  std::string load(std::string_view message);
  mri_status open(mri_error* err, std::string* reply);
  mri_status activate(std::string_view message, mri_error* err);
  std::string numbers() const;
  mri_status call(const CallRule& rule, WorkerSlot& slot);

  const WorkerMemory memory_;
  std::unique_ptr<ThreadPool> threads_;
  std::unique_ptr<PluginHost> host_;
  PluginLibrary library_;
  mri_plugin* plugin_ = nullptr;
  const void* table_ = nullptr;
};

}  // namespace varve::worker
