// What rogue_kv_tier.cpp does at which step.
#pragma once

#include <cstdint>

enum RogueStep : uint64_t {
  kStepCrash = 1001,
  kStepAbort,
  kStepExit,
  kStepThrow,
  kStepThrowInt,
  kStepHang,
  kStepScribble,     // over the shared memory
  kStepLeak,         // until there is nothing left
  kStepPrint,        // to stderr
  kStepFork,         // a child that stays
  kStepEnvironment,  // throws if it sees more of the host than it should
  kStepLie,          // more actions than room
  kStepTakeRoom      // changes the caller's capacity too
};
