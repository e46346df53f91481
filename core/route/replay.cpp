#include "core/route/replay.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/mutex.h"
#include "core/engine/logits_difference.h"
#include "core/route/dispatcher_record.h"
#include "core/route/experiment.h"
#include "core/route/experiment_record.h"
#include "core/route/forced_text.h"

namespace varve {
namespace {

constexpr size_t kQueuedMax = 32;
constexpr uint64_t kQueuedTokensMax = 1 << 20;
constexpr uint64_t kComparedTokensMax = 256;
// A reload is seen within this time.
constexpr auto kRefreshEvery = std::chrono::seconds(2);
constexpr int kNice = 10;
constexpr absl::Duration kShadowTimeMax = absl::Minutes(10);
constexpr double kBudgetShareMax = 0.8;
// A replay and each step of a comparison wait so long for lanes that have others to serve: it may
// be over in a step, and the request itself holds its place until those it tells have returned.
constexpr auto kYieldMax = std::chrono::seconds(1);
constexpr auto kYieldStep = std::chrono::milliseconds(5);

struct Job {
  Placement placement;
  GenerateRequest request;
  std::vector<int32_t> answer;
  uint64_t n_tokens() const { return request.prompt.size() + answer.size(); }
};

// Discards the answer and keeps the result.
class ShadowSink final : public GenerateSink {
 public:
  void on_piece(Piece) override {}
  void on_end(const GenerateResult& result) override {
    MutexLock lock(&mutex_);
    result_ = result;
    ended_.notify_all();
  }
  GenerateResult wait() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<Mutex> lock(mutex_);
    ended_.wait(lock, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return result_.has_value(); });
    return *result_;
  }

 private:
  Mutex mutex_;
  std::condition_variable_any ended_;
  std::optional<GenerateResult> result_ ABSL_GUARDED_BY(mutex_);
};

bool is_in_sample(const ExperimentConfig& experiment, const std::string& request_id) {
  const uint64_t hash =
      sip_hash(sip_hash(0, 0, experiment.salt), sip_hash(1, 0, experiment.salt), request_id);
  return static_cast<double>(hash) < experiment.shadow_percent / 100 * 0x1p64;
}

bool is_busy(const Lane& lane) {
  const LaneStatus status = lane.status();
  const auto budget = static_cast<double>(status.budget_bytes);
  return status.waiting > 0 || status.running >= status.concurrency ||
         (budget > 0 && static_cast<double>(status.used_bytes) > kBudgetShareMax * budget);
}

class ThreadReplay final : public Replay {
 public:
  ~ThreadReplay() override { stop(); }

  void offer(const Placement& placement, const GenerateRequest& request,
             const std::vector<int32_t>& answer) override {
    MutexLock lock(&mutex_);
    if (state_ != State::kRunning) return;
    ++counts_.offered;
    const auto experiment = experiments_.find(placement.experiment);
    if (experiment == experiments_.end() ||
        experiment->second.version != placement.experiment_version ||
        !is_in_sample(experiment->second, request.id))
      return;
    const uint64_t n_tokens = request.prompt.size() + answer.size();
    if (queue_.size() >= kQueuedMax || queued_tokens_ + n_tokens > kQueuedTokensMax) {
      ++counts_.dropped;
      return;
    }
    queue_.push_back({placement, request, answer});
    queue_.back().placement.lane.reset();  // it is played on the lanes of its time
    queued_tokens_ += n_tokens;
    ++counts_.kept;
    wake_.notify_all();
  }

  void start(ReplayParts parts) override {
    parts_ = std::move(parts);
    refresh();
    MutexLock lock(&mutex_);
    state_ = State::kRunning;
    thread_ = std::thread([this] { run(); });
  }

  void stop() override {
    {
      MutexLock lock(&mutex_);
      if (state_ != State::kRunning) return;
      state_ = State::kStopped;
    }
    cancel_->store(1);
    wake_.notify_all();
    thread_.join();
  }

  void wait() override ABSL_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<Mutex> lock(mutex_);
    idle_.wait(lock, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return (queue_.empty() && !is_playing_) || state_ != State::kRunning;
    });
  }

  Counts counts() const override {
    MutexLock lock(&mutex_);
    return counts_;
  }

 private:
  enum class State { kNew, kRunning, kStopped };

  void run() {
    setpriority(PRIO_PROCESS, 0, kNice);  // on Linux: of this thread
    while (true) {
      std::optional<Job> job;
      if (!next(job)) return;
      try {
        refresh();
        if (job.has_value()) play(*job);
      } catch (const std::exception&) {  // out of memory: live traffic goes on
        count(&Counts::failed);
      }
      MutexLock lock(&mutex_);
      is_playing_ = false;
      idle_.notify_all();
    }
  }

  // Waits for a job, or for the time to look for a reload. False at the end.
  bool next(std::optional<Job>& job) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<Mutex> lock(mutex_);
    wake_.wait_for(lock, kRefreshEvery, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return state_ == State::kStopped || !queue_.empty();
    });
    if (state_ == State::kStopped) {
      queue_.clear();
      idle_.notify_all();
      return false;
    }
    if (queue_.empty()) return true;
    job = std::move(queue_.front());
    queue_.pop_front();
    queued_tokens_ -= job->n_tokens();
    is_playing_ = true;
    return true;
  }

  // Which experiments to replay, from the configuration in effect.
  void refresh() {
    std::set<std::string> stopped;  // experiments whose last arm is
    for (const ExperimentStatus& status : parts_.dispatcher->experiments()) {
      if (!status.arms.empty() && !status.arms.back().stopped.empty()) stopped.insert(status.name);
    }
    std::map<std::string, ExperimentConfig> experiments;
    for (ExperimentConfig& experiment : parts_.dispatcher->config().experiments) {
      if (experiment.shadow_percent > 0 && stopped.count(experiment.name) == 0)
        experiments.emplace(experiment.name, experiment);
    }
    MutexLock lock(&mutex_);
    experiments_ = std::move(experiments);
  }

  std::optional<ExperimentConfig> experiment_of(const Job& job) const {
    MutexLock lock(&mutex_);
    const auto found = experiments_.find(job.placement.experiment);
    if (found == experiments_.end() || found->second.version != job.placement.experiment_version)
      return std::nullopt;
    return found->second;
  }

  // Without a lane when there is none.
  LaneInfo lane_of(const std::string& stack) const {
    for (LaneInfo& info : parts_.dispatcher->lanes()) {
      if (info.is_current && info.stack == stack) return std::move(info);
    }
    return {};
  }

  // The stack that is taken for the truth.
  std::string exact_stack(const ExperimentConfig& experiment) const {
    for (const char* name : {"exact", "full"}) {
      if (lane_of(name).lane != nullptr) return name;
    }
    return experiment.arms.front().stack;
  }

  void play(const Job& job) {
    const std::optional<ExperimentConfig> experiment = experiment_of(job);
    if (!experiment.has_value()) return;
    const size_t arm = experiment->arms.size() - 1;
    const std::string exact_name = exact_stack(*experiment);
    const LaneInfo candidate = lane_of(experiment->arms[arm].stack);
    const std::shared_ptr<Lane> lane = candidate.lane, exact = lane_of(exact_name).lane;
    if (lane == nullptr || exact == nullptr) return count(&Counts::failed);
    if (!wait_for_idle(*lane, *exact).ok()) return count(&Counts::busy);
    Placement placement = job.placement;
    placement.stack = experiment->arms[arm].stack;
    placement.arm = arm_name(*experiment, arm);
    placement.assignment.arm = arm;
    placement.lane = lane;
    placement.digest = candidate.digest;
    placement.generation = candidate.generation;
    shadow(job, placement);
    if (lane == exact || job.answer.empty() || cancel_->load() != 0) return;
    const absl::StatusOr<QualitySample> sample = compare(job, placement, *lane, *exact);
    if (absl::IsUnavailable(sample.status())) return count(&Counts::busy);
    if (!sample.ok()) return count(&Counts::failed);
    parts_.dispatcher->add_quality(*sample);
    count(&Counts::compared);
  }

  void shadow(const Job& job, const Placement& placement) {
    GenerateRequest request = job.request;
    request.id = absl::StrCat(job.request.id, "-shadow");
    request.arm = placement.arm;
    request.priority = 0;
    request.is_shadow = true;
    request.pins_prefix = false;
    request.n_logprobs = request.n_prompt_logprobs = -1;
    request.deadline = absl::Now() + kShadowTimeMax;
    auto sink = std::make_shared<ShadowSink>();
    Exposure row = arrival_row(placement, job.request);
    const absl::Status status = placement.lane->submit(std::move(request), sink, cancel_);
    if (!status.ok()) return count(&Counts::busy);
    const GenerateResult result = sink->wait();
    if (result.reason == FinishReason::kCancelled) return;
    if (parts_.log != nullptr) {
      row.is_shadow = true;
      parts_.log->add(ended_row(std::move(row), result));
    }
    if (parts_.metrics != nullptr) {
      RequestMetrics metrics = request_metrics(placement, result);
      metrics.is_shadow = true;
      parts_.metrics->record(metrics);
    }
    count(&Counts::shadowed);
  }

  // kUnavailable when clients keep one of them busy.
  absl::Status wait_for_idle(const Lane& lane, const Lane& exact) const {
    const auto end = std::chrono::steady_clock::now() + kYieldMax;
    while (is_busy(lane) || is_busy(exact)) {
      if (cancel_->load() != 0 || std::chrono::steady_clock::now() >= end)
        return absl::UnavailableError("the stacks have clients to serve");
      std::this_thread::sleep_for(kYieldStep);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<QualitySample> compare(const Job& job, const Placement& placement, Lane& lane,
                                        Lane& exact) {
    const uint64_t n_vocabulary = exact.model().vocab_size;
    if (n_vocabulary == 0 || lane.model().vocab_size != n_vocabulary)
      return absl::FailedPreconditionError("the stacks have different vocabularies");
    const uint64_t n = std::min<uint64_t>(job.answer.size(), kComparedTokensMax);
    const auto read = [&](Lane& one) {
      return ForcedText::read({one.stack().runtime(), n_vocabulary, parts_.turnstile, cancel_.get(),
                               [&] { return wait_for_idle(lane, exact); }},
                              job.request.prompt, n);
    };
    const absl::StatusOr<std::unique_ptr<ForcedText>> reference = read(exact);
    if (!reference.ok()) return reference.status();
    const absl::StatusOr<std::unique_ptr<ForcedText>> candidate = read(lane);
    if (!candidate.ok()) return candidate.status();
    QualitySample sample;
    sample.experiment = placement.experiment;
    sample.version = placement.experiment_version;
    sample.arm = placement.arm;
    sample.request_id = job.request.id;
    sample.unit_hash = placement.assignment.unit_hash;
    sample.wall_s = wall_seconds();
    sample.tokens = n;
    sample.depth_tokens = job.request.prompt.size();
    for (uint64_t i = 0; i < n; ++i) {
      const int32_t token = job.answer[i];
      if (token < 0 || static_cast<uint64_t>(token) >= n_vocabulary)
        return absl::InternalError(absl::StrCat("token ", token, " is not in the vocabulary"));
      const LogitsDifference difference =
          compare_logits((*reference)->logits(), (*candidate)->logits(), token);
      sample.delta_nll += difference.delta_nll / static_cast<double>(n);
      sample.mean_kld += difference.kld / static_cast<double>(n);
      sample.top1_agreement += (difference.same_top ? 1.0 : 0.0) / static_cast<double>(n);
      if (i + 1 == n) break;  // nobody asks for the logits after the last token
      absl::Status status = (*reference)->append(token);
      if (status.ok()) status = (*candidate)->append(token);
      if (!status.ok()) return status;
    }
    return sample;
  }

  void count(uint64_t Counts::*what) {
    MutexLock lock(&mutex_);
    ++(counts_.*what);
  }

  ReplayParts parts_;
  const CancelFlag cancel_ = std::make_shared<std::atomic<uint32_t>>(0);
  mutable Mutex mutex_;
  std::condition_variable_any wake_, idle_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kNew;
  std::map<std::string, ExperimentConfig> experiments_ ABSL_GUARDED_BY(mutex_);
  std::deque<Job> queue_ ABSL_GUARDED_BY(mutex_);
  uint64_t queued_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_playing_ ABSL_GUARDED_BY(mutex_) = false;
  Counts counts_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace

std::shared_ptr<Replay> Replay::make() { return std::make_shared<ThreadReplay>(); }

}  // namespace varve
