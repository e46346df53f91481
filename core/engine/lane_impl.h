// The lane behind lane.h. Split over lane.cpp (what callers see), lane_turn.cpp (what a step is
// made of), lane_step.cpp (running it) and lane_room.cpp (contexts and memory).
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "core/batch/batcher.h"
#include "core/batch/queue.h"
#include "core/engine/lane.h"
#include "core/engine/lane_pace.h"
#include "core/engine/lane_sequence.h"

namespace varve {

// Microseconds since the lane's start, and the time of day that they stand for: steady, whatever
// happens to the clock on the wall.
class LaneClock {
 public:
  uint64_t now_us() const;
  absl::Time time(uint64_t us) const {
    return wall_ + absl::Microseconds(static_cast<int64_t>(us));
  }
  // UINT64_MAX: never.
  uint64_t deadline_us(absl::Time deadline) const;

 private:
  const std::chrono::steady_clock::time_point steady_ = std::chrono::steady_clock::now();
  const absl::Time wall_ = absl::Now();
};

class LaneImpl final : public Lane {
 public:
  LaneImpl(LaneOptions options, std::shared_ptr<Stack> stack, Turnstile* turnstile,
           const mri_model_info& model, Text text);
  ~LaneImpl() override;

  absl::Status submit(GenerateRequest request, std::shared_ptr<GenerateSink> sink,
                      CancelFlag cancel) override;
  absl::Duration retry_after() const override;
  LaneStatus status() const override;
  void drain(absl::Time deadline) override;
  void reconfigure(const LaneOptions& options) override;
  absl::Status forget_prefix(const std::string& tenant, std::vector<int32_t> prompt) override;
  const Text& text() const override { return text_; }
  const mri_model_info& model() const override { return model_; }
  const Stack& stack() const override { return *stack_; }

 private:
  using Owned = std::unique_ptr<LaneSequence>;
  struct Share {
    LaneSequence* sequence;
    uint64_t n_tokens;
    uint32_t sub_batch;
  };

  // lane.cpp
  absl::StatusOr<Owned> make_sequence(GenerateRequest request, std::shared_ptr<GenerateSink> sink,
                                      CancelFlag cancel);
  absl::Status check(const GenerateRequest& request) const;
  uint32_t queue_max() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void run();
  bool wait_for_work();
  void sweep();
  void adapt();
  void publish();

  // lane_turn.cpp
  void turn();
  std::vector<Share> plan(uint64_t now_us);
  std::vector<LaneSequence*> offer(uint64_t now_us);
  bool shall_wait_for_prefix(const LaneSequence& waiting,
                             const std::vector<LaneSequence*>& offered) const;
  uint32_t lowest_priority() const;
  std::vector<LaneSequence*> presented(uint32_t top);
  BatchLimits limits(const std::vector<LaneSequence*>& running,
                     const std::vector<LaneSequence*>& offered, uint32_t top);
  uint64_t tokens_of(const LaneSequence& sequence, uint64_t n_granted, uint64_t n_max) const;
  void start_picked(std::vector<Share>* shares);

  // lane_step.cpp
  double run_step(std::vector<Share> shares);
  void fail_whole(std::vector<Share> shares, const absl::Status& status);
  void fail_one(const Share& share, const absl::Status& status);
  void settle(const std::vector<Share>& shares, const std::vector<mri_step_seq>& seqs,
              const std::vector<size_t>& first_row, const mri_kv_usage& usage,
              const mri_error& error);
  using Drawn = absl::StatusOr<Generation::Next>;
  std::vector<std::optional<Drawn>> draw_all(const std::vector<Share>& shares,
                                             const std::vector<mri_step_seq>& seqs);
  template <class Task>
  void in_parallel(size_t n, Task task);
  void advance(LaneSequence& sequence, uint64_t n_tokens, std::span<float> logits,
               std::optional<Drawn> drawn);
  void prompt_logprobs(LaneSequence& sequence, uint64_t n_tokens, std::span<float> logits);
  void prompt_done(LaneSequence& sequence);
  void tell_drawn(LaneSequence& sequence, Drawn next);
  void end(LaneSequence& sequence, FinishReason reason, absl::Status status);
  void tell_end(LaneSequence& sequence);
  Owned remove_running(const LaneSequence& sequence);
  bool is_running(const LaneSequence* sequence) const;

  // lane_room.cpp
  void open(LaneSequence& sequence);
  bool make_room(LaneSequence& sequence, uint64_t n_tokens);
  bool demote_somebody(LaneSequence& sequence, uint64_t wanted_bytes);
  LaneSequence* whom_to_preempt(LaneSequence& sequence);
  void preempt(LaneSequence& sequence);
  void end_without_room(LaneSequence& sequence, const absl::Status& status);
  void keep_all(LaneSequence& sequence);

  const std::shared_ptr<Stack> stack_;
  const LaneRuntime runtime_;
  const Text text_;
  const mri_model_info model_;
  const std::string name_, digest_;
  const LaneClock clock_;
  Turnstile& turnstile_;
  std::vector<int32_t> end_tokens_;

  mutable Mutex mutex_;
  std::condition_variable_any changed_;
  LaneOptions options_ ABSL_GUARDED_BY(mutex_);
  WaitQueue queue_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Owned> waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<Owned> dropped_ ABSL_GUARDED_BY(mutex_);  // shadow requests that made room
  LaneStatus status_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_progress_us_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t n_alive_ ABSL_GUARDED_BY(mutex_) = 0;  // submitted and not ended
  double service_s_ ABSL_GUARDED_BY(mutex_) = 0;  // of a request, moving average
  bool is_draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_aborting_ ABSL_GUARDED_BY(mutex_) = false;
  bool stops_ ABSL_GUARDED_BY(mutex_) = false;

  // Of the lane's thread.
  std::vector<Owned> running_;
  Batcher batcher_;
  LanePace pace_;
  std::optional<Turnstile::Pass> pass_;
  LaneOptions now_;  // options_ as of this turn
  std::vector<float> logits_;
  uint64_t n_steps_ = 0;
  uint64_t n_urgent_turns_ = 0;
  uint64_t n_demotions_ = 0;
  uint32_t concurrency_ = 1;
  bool is_peak_ = false;
  bool holds_admission_ = false;  // somebody was preempted and nobody has ended since
  bool has_progress_ = false;

  std::thread thread_;  // last: starts when all else is there
};

}  // namespace varve
