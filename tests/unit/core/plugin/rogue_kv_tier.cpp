// A policy for tests of workers: sound, unless the request's step names something that no plugin
// should do.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "mri/sdk/kv_tier.hpp"
#include "tests/unit/core/plugin/rogue_steps.h"

namespace {

constexpr mri_param_desc kParams[] = {
    mri::param_int("tier", 2, 1, 2, "tier to which every block is demoted"),
    mri::param_bool("crash_in_activate", false, "what it says"),
    mri::param_int("crash_at_step", 0, 0, 1 << 20,
                   "from this step on every call crashes; 0: none")};

// Over all that is shared with the host.
void scribble() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:mri-worker") == std::string::npos) continue;
    char* first = nullptr;
    char* last = nullptr;
    std::sscanf(line.c_str(), "%p-%p", reinterpret_cast<void**>(&first),
                reinterpret_cast<void**>(&last));
    std::memset(first, 0xFF, static_cast<size_t>(last - first));
  }
}

void leak() {
  for (;;) {
    auto* block = static_cast<volatile char*>(std::malloc(1 << 24));
    if (block == nullptr) throw std::runtime_error("no memory is left");
    for (int i = 0; i < 1 << 24; i += 4096) block[i] = 1;
  }
}

class Rogue {
 public:
  Rogue(mri::Host host, const mri::Params& params)
      : host_(host),
        tier_(params.get<uint16_t>("tier")),
        crash_at_step_(params.get<uint64_t>("crash_at_step")),
        calls_(host.define_metric(MRI_METRIC_COUNTER, "calls", "decide calls")) {
    if (params.get<bool>("crash_in_activate")) std::abort();
    host_.log(MRI_LOG_INFO, "rogue is ready");
  }

  mri_status decide(const mri_tier_req& req, mri_tier_rsp& rsp) {
    host_.record(calls_, 1);
    if (crash_at_step_ != 0 && req.step >= crash_at_step_) raise(SIGSEGV);
    misbehave(req.step);
    mri::Writer<mri_tier_action> out(rsp.actions, rsp.capacity, &rsp.n_actions);
    for (uint64_t i = 0; i < req.n_blocks; ++i)
      out.push({req.blocks[i].id, MRI_TIER_DEMOTE, tier_, 0});
    const mri_status status = out.status();
    if (req.step == kStepLie) rsp.n_actions = UINT64_MAX / 2;
    if (req.step == kStepTakeRoom) rsp.capacity = rsp.n_actions = 1'000'000;
    return status;
  }

 private:
  void misbehave(uint64_t step) {
    if (step == kStepCrash) raise(SIGSEGV);
    if (step == kStepAbort) std::abort();
    if (step == kStepExit) _exit(0);
    if (step == kStepThrow) throw std::runtime_error("block 7 is haunted");
    if (step == kStepThrowInt) throw 7;
    if (step == kStepScribble) scribble();
    if (step == kStepLeak) leak();
    if (step == kStepPrint) std::fprintf(stderr, "just printed\n");
    if (step == kStepFork && fork() == 0) {
      for (;;) pause();
    }
    if (step == kStepEnvironment && (environ[0] != nullptr || dup(2) != 3)) {
      throw std::runtime_error("an environment, or a descriptor of the host's");
    }
    while (step == kStepHang) pause();
  }

  mri::Host host_;
  uint16_t tier_;
  uint64_t crash_at_step_;
  uint32_t calls_;
};

}  // namespace

MRI_PLUGIN(kv_tier, "org.varve.test.kv_tier.rogue", "1.0.0", kParams, Rogue);
