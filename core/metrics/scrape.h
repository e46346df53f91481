// What is read at the moment of a scrape: lanes, the process, sums of timings.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/metrics/metrics.h"
#include "prometheus/metric_family.h"

namespace varve {

// `plugin_label` maps the name of a plugin to the value of its label.
void add_lanes(const std::vector<LaneMetrics>& lanes,
               const std::function<std::string(const std::string&)>& plugin_label,
               std::vector<prometheus::MetricFamily>* out);

// Memory, threads, descriptors and CPU time from /proc/self; what cannot be read is left out.
void add_process(std::vector<prometheus::MetricFamily>* out);

// Shares of the time and of the choices, from the sums so far.
void add_timing_shares(const mri_timings& sum, std::vector<prometheus::MetricFamily>* out);

}  // namespace varve
