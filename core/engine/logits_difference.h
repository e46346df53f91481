// How far the logits of one engine are from those of another at one position.
#pragma once

#include <cstdint>
#include <span>

namespace varve {

// Logits are of equal length, at least 1; probabilities are their softmax.
struct LogitsDifference {
  double kld = 0;        // KL(reference || candidate) in nats, computed in double
  bool same_top = true;  // both find the same token likeliest; ties go to the lower number
  double delta_nll = 0;  // loss on the text's own next token, candidate minus reference, in nats
};

// `next_token` is a number below the logits' length.
LogitsDifference compare_logits(std::span<const float> reference, std::span<const float> candidate,
                                int32_t next_token);

}  // namespace varve
