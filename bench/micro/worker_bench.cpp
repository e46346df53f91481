// What a call costs through a plugin's own process, beside the same call in this one.
#include <benchmark/benchmark.h>

#include <chrono>
#include <memory>
#include <vector>

#include "core/plugin/stack.h"

namespace varve {
namespace {

std::unique_ptr<Stack> stack_with(const char* kind, const char* name, bool is_worker) {
  StackSpec spec;
  spec.plugin_directories = {PLUGIN_DIRECTORY};
  Isolation isolation;
  isolation.is_worker = is_worker;
  spec.plugins = {{kind, name, {}, isolation}};
  absl::StatusOr<std::unique_ptr<Stack>> stack = load_stack(spec);
  return stack.ok() ? *std::move(stack) : nullptr;
}

// Arguments: worker or not; requests in the queue; microseconds of other work between two calls.
void next_step(benchmark::State& state) {
  const auto stack = stack_with("batching", "fcfs", state.range(0) != 0);
  if (stack == nullptr) return state.SkipWithError("the stack does not load");
  const auto peer = stack->peer<mri_batching_v1>(MRI_BATCHING);
  std::vector<mri_batch_request> requests(static_cast<size_t>(state.range(1)));
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i] = {};
    requests[i].id = i;
    requests[i].running = 1;
    requests[i].deadline_us = UINT64_MAX;
  }
  std::vector<mri_batch_pick> picks(requests.size());
  mri_batch_req req{};
  req.hdr.struct_size = sizeof(req);
  req.requests = requests.data();
  req.n_requests = requests.size();
  req.step_tokens_max = 4096;
  req.kv_bytes_free = UINT64_MAX;
  req.sequences_max = 64;
  const auto pause = std::chrono::microseconds(state.range(2));
  for (auto _ : state) {
    if (pause.count() > 0) {
      const auto end = std::chrono::steady_clock::now() + pause;
      while (std::chrono::steady_clock::now() < end) {
      }
    }
    mri_batch_rsp rsp{};
    rsp.hdr.struct_size = sizeof(rsp);
    rsp.picks = picks.data();
    rsp.capacity = picks.size();
    const auto start = std::chrono::steady_clock::now();
    if (peer.table->next_step(peer.self, &req, &rsp, nullptr) != MRI_OK)
      return state.SkipWithError("the call fails");
    state.SetIterationTime(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
}
BENCHMARK(next_step)
    ->ArgNames({"worker", "requests", "pause_us"})
    ->ArgsProduct({{0, 1}, {1, 16, 256}, {0}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
// As between two steps of a decode: the worker sleeps meanwhile and has to be woken.
BENCHMARK(next_step)
    ->ArgNames({"worker", "requests", "pause_us"})
    ->ArgsProduct({{0, 1}, {16}, {1000}})
    ->Iterations(1000)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace varve
