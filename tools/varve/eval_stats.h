// How far the logits of one engine are from those of another.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace varve::cli {

// One position. Logits are of equal length, at least 1; probabilities are their softmax.
struct LogitsDifference {
  double kld = 0;        // KL(reference || candidate) in nats, computed in double
  bool same_top = true;  // both find the same token likeliest; ties go to the lower number
  double delta_nll = 0;  // loss on the text's own next token, candidate minus reference, in nats
};
LogitsDifference compare_logits(std::span<const float> reference, std::span<const float> candidate,
                                int32_t next_token);

// Over all positions; zeros for none.
struct Fidelity {
  uint64_t positions = 0;
  double mean_kld = 0, p99_kld = 0, max_kld = 0;
  double top1_agreement = 0;  // 0 to 1
  double delta_nll = 0;       // mean
};
Fidelity summarise(std::span<const LogitsDifference> differences);

// The smallest value that at least `share` (0 to 1) of the values do not exceed; 0 for none.
double quantile(std::vector<double> values, double share);
inline double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

}  // namespace varve::cli
