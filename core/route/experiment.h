// Which arm of an experiment a unit of traffic belongs to.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/config/serve_config.h"

namespace varve {

// SipHash-2-4 of `data` under a 128-bit key (two little-endian words).
uint64_t sip_hash(uint64_t key0, uint64_t key1, std::string_view data);

// A unit is a tenant's conversation: length-prefixed, so that no two pairs look alike.
std::string experiment_unit(std::string_view tenant, std::string_view conversation);

struct Assignment {
  size_t arm = 0;          // number in ExperimentConfig::arms
  uint64_t unit_hash = 0;  // what the exposure log holds instead of the unit
  bool forced = false;     // by an admin: not part of the comparison
  bool burn_in = false;    // switchback: too soon after a switch to count
  uint64_t block = 0;      // switchback: number of the time block
};

// Unit mode: contiguous ranges of [0, 2^64). The last arm's ends at 2^64 and grows downwards, those
// between it and the control grow from 0, the control has the middle: raising an arm's weight at
// the control's cost moves only the units of the added share, stopping it only its own.
// Switchback: all units of a time block share an arm; each group of as many blocks as there are
// arms has each once, in an order drawn from the salt, whatever the weights (but an arm of weight 0
// leaves its blocks to the control). Pure: same config, unit and time, same answer.
Assignment assign(const ExperimentConfig& experiment, std::string_view unit, absl::Time now);

}  // namespace varve
