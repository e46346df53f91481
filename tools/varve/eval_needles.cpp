#include "tools/varve/eval_needles.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"

namespace varve::cli {
namespace {

// A sentence is "The <what> <owner> is <digits>."
struct Kind {
  const char* what;
  std::array<const char*, 6> owners;
};
constexpr std::array<Kind, kNeedlesPerText> kKinds = {{
    {"access code for",
     {"the north gate", "the wine cellar", "the old library", "the boat house", "the roof garden",
      "the server room"}},
    {"phone number of",
     {"Doctor Hollis", "the harbour master", "Mrs. Alvarez", "the night porter", "Captain Lind",
      "the piano tuner"}},
    {"serial number of",
     {"the blue generator", "the large telescope", "the red bicycle", "the steam engine",
      "the spare printer", "the brass clock"}},
    {"bank account of",
     {"the Baker family", "the chess club", "the village school", "the Morland estate",
      "the sailing team", "the bird hospital"}},
    {"population of",
     {"the city of Eldenwick", "the island of Tarsa", "the valley of Ombra", "the port of Quellin",
      "the district of Harrow Hill", "the town of Marsh Bend"}},
}};

bool ends_sentence(std::string_view piece) {
  const size_t last = piece.find_last_not_of(" \n");
  return last == std::string_view::npos ? piece.find('\n') != std::string_view::npos
                                        : piece[last] == '.';
}

absl::Status append(const Text& text, std::string_view piece, bool special,
                    std::vector<int32_t>& tokens) {
  if (piece.empty()) return absl::OkStatus();
  const absl::StatusOr<std::vector<int32_t>> more = text.tokenize(piece, false, special);
  if (!more.ok()) return more.status();
  tokens.insert(tokens.end(), more->begin(), more->end());
  return absl::OkStatus();
}

std::string inserted(const Needle& needle) { return absl::StrCat("\n\n", needle.sentence, "\n\n"); }

}  // namespace

std::array<Needle, kNeedlesPerText> make_needles(uint64_t text, uint64_t n_texts) {
  std::array<Needle, kNeedlesPerText> needles;
  std::mt19937 random(static_cast<uint32_t>(1000 + text));
  const double shift = n_texts <= 1 ? 0.5 : static_cast<double>(text) / (n_texts - 1.0);
  for (size_t i = 0; i < needles.size(); ++i) {
    // Each kind meets each depth.
    const Kind& kind = kKinds[(i + text) % kNeedlesPerText];
    const std::string subject =
        absl::StrCat(kind.what, " ", kind.owners[text / kNeedlesPerText % kind.owners.size()]);
    Needle& needle = needles[i];
    needle.digits = static_cast<char>('1' + random() % 9);
    while (needle.digits.size() < kNeedleDigits)
      needle.digits += static_cast<char>('0' + random() % 10);
    needle.stem = absl::StrCat("The ", subject, " is");
    needle.sentence = absl::StrCat(needle.stem, " ", needle.digits, ".");
    needle.question = absl::StrCat("What is the ", subject, "?");
    needle.depth = (static_cast<double>(i) + shift) / kNeedlesPerText;
  }
  return needles;
}

absl::StatusOr<ChatFrame> chat_frame(const Text& text, const std::string& system_prompt) {
  static constexpr std::string_view kMark = "varve-question-varve";
  std::vector<ChatMessage> messages = {{"user", std::string(kMark)}};
  if (!system_prompt.empty()) messages.insert(messages.begin(), {"system", system_prompt});
  const absl::StatusOr<std::string> chat = text.chat(messages);
  if (!chat.ok()) return chat.status();
  const size_t at = chat->find(kMark);
  if (at == std::string::npos) {
    return absl::FailedPreconditionError(
        "the model's chat template drops the message; expected one that keeps what a user says");
  }
  ChatFrame frame;
  absl::StatusOr<std::vector<int32_t>> before = text.tokenize(chat->substr(0, at), true, true);
  if (!before.ok()) return before.status();
  frame.before_text = *std::move(before);
  const std::string_view rest = std::string_view(*chat).substr(at + kMark.size());
  const absl::Status status = append(text, rest, true, frame.after_question);
  if (!status.ok()) return status;
  return frame;
}

absl::StatusOr<std::vector<int32_t>> question_tokens(const Text& text, const ChatFrame& frame,
                                                     const Needle& needle) {
  std::vector<int32_t> tokens;
  absl::Status status = append(text, absl::StrCat("\n\n", needle.question), false, tokens);
  tokens.insert(tokens.end(), frame.after_question.begin(), frame.after_question.end());
  if (status.ok()) status = append(text, needle.stem, false, tokens);
  if (!status.ok()) return status;
  return tokens;
}

absl::StatusOr<NumberTokens> number_tokens(const Text& text, const Needle& needle) {
  const absl::StatusOr<std::vector<int32_t>> all =
      text.tokenize(absl::StrCat(" ", needle.digits), false, false);
  if (!all.ok()) return all.status();
  NumberTokens number;
  for (const int32_t token : *all) {
    const absl::StatusOr<std::string> piece = text.detokenize({&token, 1});
    if (!piece.ok()) return piece.status();
    const auto n = static_cast<size_t>(std::count_if(piece->begin(), piece->end(), [](char c) {
      return std::isdigit(static_cast<unsigned char>(c)) != 0;
    }));
    if (n == 0) {
      number.lead.push_back(token);
    } else {
      number.digits.push_back(token);
      number.n_digits.push_back(n);
    }
  }
  return number;
}

absl::StatusOr<uint64_t> needle_tokens(const Text& text, const ChatFrame& frame,
                                       const std::array<Needle, kNeedlesPerText>& needles) {
  uint64_t n = 0;
  for (const Needle& needle : needles) {
    std::vector<int32_t> sentence;
    const absl::Status status = append(text, inserted(needle), false, sentence);
    if (!status.ok()) return status;
    const absl::StatusOr<std::vector<int32_t>> question = question_tokens(text, frame, needle);
    if (!question.ok()) return question.status();
    const absl::StatusOr<NumberTokens> number = number_tokens(text, needle);
    if (!number.ok()) return number.status();
    n += sentence.size() + question->size() + number->lead.size() + number->digits.size();
  }
  return n;
}

absl::StatusOr<std::vector<int32_t>> hide(const Text& text, const std::vector<int32_t>& filler,
                                          const std::array<Needle, kNeedlesPerText>& needles) {
  std::vector<int32_t> tokens;
  size_t done = 0;
  for (const Needle& needle : needles) {
    auto at = static_cast<size_t>(std::lround(needle.depth * static_cast<double>(filler.size())));
    at = std::max(at, done);
    // At the very start and end no sentence needs to end.
    for (; at > 0 && at < filler.size(); ++at) {
      const absl::StatusOr<std::string> piece = text.detokenize({&filler[at - 1], 1});
      if (!piece.ok()) return piece.status();
      if (ends_sentence(*piece)) break;
    }
    tokens.insert(tokens.end(), filler.begin() + static_cast<ptrdiff_t>(done),
                  filler.begin() + static_cast<ptrdiff_t>(at));
    done = at;
    const absl::Status status = append(text, inserted(needle), false, tokens);
    if (!status.ok()) return status;
  }
  tokens.insert(tokens.end(), filler.begin() + static_cast<ptrdiff_t>(done), filler.end());
  return tokens;
}

}  // namespace varve::cli
