// What a call costs through a plugin's own process, beside the same call in this one.
#include <benchmark/benchmark.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "core/plugin/stack.h"
#include "core/plugin/worker_memory.h"

namespace varve {
namespace {

using Clock = std::chrono::steady_clock;

// One round after `pause_us` of other work each; the median is what a machine that others use too
// does not spoil.
template <class Round>
void measure(benchmark::State& state, int64_t pause_us, Round&& round) {
  const std::chrono::microseconds pause(pause_us);
  std::vector<double> took_us;
  for (auto _ : state) {
    if (pause_us > 0) {
      const auto end = Clock::now() + pause;
      while (Clock::now() < end) {
      }
    }
    const auto start = Clock::now();
    if (!round()) return state.SkipWithError("the call fails");
    const std::chrono::duration<double> took = Clock::now() - start;
    state.SetIterationTime(took.count());
    took_us.push_back(1e6 * took.count());
  }
  const auto at = [&](size_t percent) {
    const auto i = static_cast<std::ptrdiff_t>(took_us.size() * percent / 100);
    std::nth_element(took_us.begin(), took_us.begin() + i, took_us.end());
    return took_us[static_cast<size_t>(i)];
  };
  state.counters["p10_us"] = at(10);
  state.counters["median_us"] = at(50);
}

void stay_on(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(core), &set);
  sched_setaffinity(0, sizeof(set), &set);
}

// What the kernel takes at least: a word there and back between two threads, of which one sleeps;
// on cores of their own, or both on one.
void wake_up(benchmark::State& state) {
  const bool is_apart = state.range(0) != 0;
  cpu_set_t before;
  sched_getaffinity(0, sizeof(before), &before);
  std::atomic<uint32_t> word{0}, answer{0}, other_sleeps{0}, sleeps{0};
  std::atomic<bool> is_over{false};
  std::thread other([&] {
    stay_on(is_apart ? 1 : 0);
    for (uint32_t seen = 0; !is_over; seen = word) {
      while (word == seen) wait_while(word, seen, other_sleeps, UINT64_MAX, false);
      store_and_wake(answer, word, sleeps);
    }
  });
  stay_on(0);
  uint32_t number = 0;
  measure(state, state.range(1), [&] {
    store_and_wake(word, ++number, other_sleeps);
    while (answer != number) wait_while(answer, number - 1, sleeps, UINT64_MAX, is_apart);
    return true;
  });
  is_over = true;
  store_and_wake_all(word, ++number);
  other.join();
  sched_setaffinity(0, sizeof(before), &before);
}
BENCHMARK(wake_up)
    ->ArgNames({"apart", "pause_us"})
    ->ArgsProduct({{0, 1}, {1000}})
    ->Iterations(1000)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

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
  measure(state, state.range(2), [&] {
    mri_batch_rsp rsp{};
    rsp.hdr.struct_size = sizeof(rsp);
    rsp.picks = picks.data();
    rsp.capacity = picks.size();
    return peer.table->next_step(peer.self, &req, &rsp, nullptr) == MRI_OK;
  });
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
