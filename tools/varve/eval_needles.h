// Numbers hidden in a long text, and what to ask for them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/engine/text.h"

namespace varve::cli {

inline constexpr size_t kNeedlesPerText = 5;  // of five different kinds of sentence
inline constexpr size_t kNeedleDigits = 7;

struct Needle {
  std::string sentence;  // "The access code for the north gate is 4817263."
  std::string stem;      // "The access code for the north gate is"
  std::string question;  // "What is the access code for the north gate?"
  std::string digits;    // "4817263"
  double depth = 0;      // 0 at the start of the text, 1 at its end
};

// Text `text` of `n_texts`: the needles in the order of their depths, which over all texts cover 0
// to 1 evenly. Always the same for the same numbers; two texts share no value.
std::array<Needle, kNeedlesPerText> make_needles(uint64_t text, uint64_t n_texts);

// What stands around a text and the question about it.
struct ChatFrame {
  std::vector<int32_t> before_text;     // up to the text
  std::vector<int32_t> after_question;  // to where the answer begins
};
absl::StatusOr<ChatFrame> chat_frame(const Text& text, const std::string& system_prompt);

// What follows the text: the question and the beginning of its answer.
absl::StatusOr<std::vector<int32_t>> question_tokens(const Text& text, const ChatFrame& frame,
                                                     const Needle& needle);

// The needle's number as it follows its stem: tokens that stand before its digits, and those that
// hold them.
struct NumberTokens {
  std::vector<int32_t> lead, digits;
  std::vector<size_t> n_digits;  // in each of `digits`; kNeedleDigits together
};
absl::StatusOr<NumberTokens> number_tokens(const Text& text, const Needle& needle);

// Tokens that the needles add to a text, and that asking for all of them takes.
absl::StatusOr<uint64_t> needle_tokens(const Text& text, const ChatFrame& frame,
                                       const std::array<Needle, kNeedlesPerText>& needles);

// `filler` with each needle as a sentence of its own, after the first end of a sentence at or
// behind its depth.
absl::StatusOr<std::vector<int32_t>> hide(const Text& text, const std::vector<int32_t>& filler,
                                          const std::array<Needle, kNeedlesPerText>& needles);

}  // namespace varve::cli
