// What is noted of a request. Internal to core/route.
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

// What is known of a request that arrives now. [any]
Exposure arrival_row(const Placement& placement, const GenerateRequest& request);
// The same row when it has ended. [any]
Exposure ended_row(Exposure row, const GenerateResult& result);

}  // namespace varve
