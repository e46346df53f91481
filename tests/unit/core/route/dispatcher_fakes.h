// What a dispatcher works with, in place of engines: lanes that keep what is handed to them until a
// test ends it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/metrics/metrics.h"
#include "core/route/exposure_log.h"
#include "tests/unit/core/route/plain_fakes.h"

namespace varve {

class FakeLane final : public PlainLane {
 public:
  struct Job {
    GenerateRequest request;
    std::shared_ptr<GenerateSink> sink;
  };

  ~FakeLane() override {
    drain(absl::Now());
    if (on_closed) on_closed();
  }
  std::function<void()> on_closed;

  absl::Status submit(GenerateRequest request, std::shared_ptr<GenerateSink> sink,
                      CancelFlag) override {
    MutexLock lock(&mutex_);
    if (!answer_.ok()) return answer_;
    jobs_.push_back({std::move(request), std::move(sink)});
    return absl::OkStatus();
  }
  void refuse(absl::Status status) {
    MutexLock lock(&mutex_);
    answer_ = std::move(status);
  }
  absl::Duration retry_after() const override { return absl::Milliseconds(2500); }
  void drain(absl::Time) override {
    while (n_jobs() != 0) end(FinishReason::kError, absl::UnavailableError("the server stops"));
  }
  void reconfigure(const LaneOptions& options) override {
    MutexLock lock(&mutex_);
    options_ = options;
  }
  LaneOptions options() const {
    MutexLock lock(&mutex_);
    return options_;
  }

  size_t n_jobs() const {
    MutexLock lock(&mutex_);
    return jobs_.size();
  }
  GenerateRequest last() const {
    MutexLock lock(&mutex_);
    return jobs_.back().request;
  }
  std::shared_ptr<GenerateSink> sink_of_last() const {
    MutexLock lock(&mutex_);
    return jobs_.back().sink;
  }
  // Ends the oldest job after it has answered token 7 (unless it ended in the queue). False: none.
  bool end(FinishReason reason = FinishReason::kStop, absl::Status status = absl::OkStatus(),
           bool has_started = true) {
    Job job;
    {
      MutexLock lock(&mutex_);
      if (jobs_.empty()) return false;
      job = std::move(jobs_.front());
      jobs_.erase(jobs_.begin());
    }
    GenerateResult result;
    result.reason = reason;
    result.status = std::move(status);
    result.prompt_tokens = job.request.prompt.size();
    result.arrived = absl::UnixEpoch() + absl::Seconds(100);
    result.started = result.first_token = absl::InfinitePast();
    if (has_started) {
      result.started = result.arrived + absl::Seconds(1);
      result.first_token = result.arrived + absl::Seconds(3);
      result.output_tokens = 1;
      result.token_gaps_ms = {30, 10, 20};
      job.sink->on_prompt_progress(1, 1, 0);
      job.sink->on_piece({7, "seven", {}});
    }
    result.ended = result.arrived + absl::Seconds(4);
    job.sink->on_end(result);
    return true;
  }

 private:
  mutable Mutex mutex_;
  std::vector<Job> jobs_ ABSL_GUARDED_BY(mutex_);
  absl::Status answer_ ABSL_GUARDED_BY(mutex_);
  LaneOptions options_ ABSL_GUARDED_BY(mutex_);
};

class FakeMetrics final : public Metrics {
 public:
  void record(const RequestMetrics& request) override {
    MutexLock lock(&mutex_);
    records_.push_back(request);
  }
  void rejected(const std::string& class_name, const std::string& why) override {
    count("rejected " + class_name + " " + why);
  }
  void http(const std::string&, int, double) override {}
  void exposed(const std::string& experiment, const std::string& arm) override {
    count("exposed " + experiment + " " + arm);
  }
  void stopped(const std::string& experiment, const std::string& arm) override {
    count("stopped " + experiment + " " + arm);
  }
  void reloaded(bool) override {}
  void set_lanes(std::function<std::vector<LaneMetrics>()>) override {}
  std::string text() const override { return ""; }
  mri_timings timings() const override { return {}; }

  std::vector<RequestMetrics> records() const {
    MutexLock lock(&mutex_);
    return records_;
  }
  std::map<std::string, int> counts() const {
    MutexLock lock(&mutex_);
    return counts_;
  }

 private:
  void count(const std::string& what) {
    MutexLock lock(&mutex_);
    ++counts_[what];
  }

  mutable Mutex mutex_;
  std::vector<RequestMetrics> records_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int> counts_ ABSL_GUARDED_BY(mutex_);
};

// What a log was given; outlives it.
struct Logged {
  Mutex mutex;
  std::map<uint64_t, Exposure> open ABSL_GUARDED_BY(mutex);
  uint64_t n_begun ABSL_GUARDED_BY(mutex) = 0;
  std::vector<Exposure> rows ABSL_GUARDED_BY(mutex);
  std::vector<QualitySample> samples ABSL_GUARDED_BY(mutex);
  std::vector<ExperimentEvent> events ABSL_GUARDED_BY(mutex);

  std::vector<Exposure> all_rows() {
    MutexLock lock(&mutex);
    return rows;
  }
  std::vector<Exposure> all_open() {
    MutexLock lock(&mutex);
    std::vector<Exposure> list;
    for (const auto& [ticket, row] : open) list.push_back(row);
    return list;
  }
  std::vector<std::string> all_events() {
    MutexLock lock(&mutex);
    std::vector<std::string> list;
    for (const ExperimentEvent& event : events)
      list.push_back(event.experiment + ": " + event.what);
    return list;
  }
};

class FakeLog final : public ExposureLog {
 public:
  explicit FakeLog(Logged* logged) : logged_(logged) {}
  uint64_t begin(Exposure row) override {
    MutexLock lock(&logged_->mutex);
    row.finish = kWaiting;
    row.ttft_ms = std::numeric_limits<double>::quiet_NaN();
    row.total_ms = 1000;
    logged_->open.emplace(++logged_->n_begun, std::move(row));
    return logged_->n_begun;
  }
  void started(uint64_t ticket) override {
    MutexLock lock(&logged_->mutex);
    logged_->open.at(ticket).finish = kRunning;
  }
  void answered(uint64_t ticket) override {
    MutexLock lock(&logged_->mutex);
    logged_->open.at(ticket).ttft_ms = 1;
  }
  void end(uint64_t ticket, Exposure row) override {
    forget(ticket);
    add(std::move(row));
  }
  void forget(uint64_t ticket) override {
    MutexLock lock(&logged_->mutex);
    EXPECT_EQ(logged_->open.erase(ticket), 1u);
  }
  std::vector<Exposure> open_requests() const override { return logged_->all_open(); }
  void add(Exposure row) override {
    MutexLock lock(&logged_->mutex);
    logged_->rows.push_back(std::move(row));
  }
  void add(QualitySample row) override {
    MutexLock lock(&logged_->mutex);
    logged_->samples.push_back(std::move(row));
  }
  void add(ExperimentEvent row) override {
    MutexLock lock(&logged_->mutex);
    logged_->events.push_back(std::move(row));
  }
  void flush() override {}
  Counts counts() const override { return {}; }

 private:
  Logged* const logged_;
};

}  // namespace varve
