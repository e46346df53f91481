// A lane and a dispatcher that do nothing, for fakes to begin with: each overrides what its test is
// about.
#pragma once

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/route/dispatcher.h"

namespace varve {

class PlainLane : public Lane {
 public:
  absl::Status submit(GenerateRequest, std::shared_ptr<GenerateSink>, CancelFlag) override {
    return absl::UnimplementedError("fake");
  }
  absl::Duration retry_after() const override { return absl::Seconds(1); }
  LaneStatus status() const override { return now; }
  void drain(absl::Time) override {}
  void reconfigure(const LaneOptions&) override {}
  absl::Status forget_prefix(const std::string&, std::vector<int32_t>) override {
    return absl::OkStatus();
  }
  const Text& text() const override { std::abort(); }
  const mri_model_info& model() const override { std::abort(); }
  const Stack& stack() const override { std::abort(); }

  LaneStatus now;
};

class PlainDispatcher : public Dispatcher {
 public:
  absl::StatusOr<Placement> place(const Arrival&) const override { return Placement{}; }
  absl::Status submit(const Arrival&, const Placement&, GenerateRequest,
                      std::shared_ptr<GenerateSink>, CancelFlag) override {
    return absl::UnimplementedError("fake");
  }
  absl::Status charge(const Arrival&, const Placement&, uint64_t) override {
    return absl::OkStatus();
  }
  absl::StatusOr<Identity> authenticate(std::string_view) const override { return Identity{}; }
  std::vector<LaneInfo> lanes() const override {
    std::vector<LaneInfo> all;
    for (const auto& [name, one] : lanes_) all.push_back({name, 1, "", true, one});
    return all;
  }
  std::shared_ptr<Lane> main_lane() const override { return lanes_.begin()->second; }
  absl::StatusOr<std::vector<std::string>> reload(const ServeConfig&) override {
    return std::vector<std::string>();
  }
  absl::Status stop_arm(const std::string&, const std::string&, const std::string&) override {
    return absl::OkStatus();
  }
  void add_quality(const QualitySample&) override {}
  std::vector<ExperimentStatus> experiments() const override { return {}; }
  ServeConfig config() const override { return serve; }
  void drain(absl::Time) override {}

  // A new lane of class L, owned by the dispatcher.
  template <class L, class... Args>
  L* add_lane(const std::string& name, Args&&... args) {
    auto lane = std::make_shared<L>(std::forward<Args>(args)...);
    L* const added = lane.get();
    lanes_[name] = std::move(lane);
    return added;
  }

  ServeConfig serve;

 protected:
  std::map<std::string, std::shared_ptr<Lane>> lanes_;
};

}  // namespace varve
