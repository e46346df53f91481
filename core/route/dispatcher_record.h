// What is noted of a request that has ended. Internal to core/route.
#pragma once

#include <string>

#include "core/engine/request.h"
#include "core/metrics/metrics.h"
#include "core/route/dispatcher.h"
#include "core/route/exposure_log.h"

namespace varve {

// Now, as the exposure log counts: since 1970.
double wall_seconds();

// "stop", "length", "cancelled", "error".
const char* outcome_name(FinishReason reason);

RequestMetrics request_metrics(const Placement& placement, const GenerateResult& result);

// `request_id` and `digest` (of the stack) go in as they are. To be called when the request has
// just ended. [any]
Exposure exposure_of(const Placement& placement, const std::string& request_id,
                     const std::string& digest, const GenerateResult& result);

}  // namespace varve
