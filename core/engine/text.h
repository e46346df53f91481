// The vocabulary and chat template of a loaded model, from a runtime's mri.text/1 table.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "mri/ext/text.h"

namespace varve {

struct ChatMessage {
  std::string role;  // system, user, assistant
  std::string content;
  // Tokens that stand before the content in the same message, for chat_tokens(): a text that was
  // read before need not be made into tokens again.
  std::shared_ptr<const std::vector<int32_t>> known = nullptr;
};

// Valid while the stack is. [any]
class Text {
 public:
  // Neither may be null.
  Text(const mri_text_v1* table, void* self) : table_(table), self_(self) {}

  absl::StatusOr<mri_model_info> model_info() const;
  // add_special: with the model's own begin and end marks. parse_special: "<|im_start|>" is one
  // token.
  absl::StatusOr<std::vector<int32_t>> tokenize(std::string_view text, bool add_special,
                                                bool parse_special) const;
  // May end inside a UTF-8 sequence. Special tokens give their marks when `special`, else no bytes.
  absl::StatusOr<std::string> detokenize(std::span<const int32_t> tokens,
                                         bool special = false) const;
  absl::StatusOr<std::string> chat(const std::vector<ChatMessage>& messages) const;
  bool is_end(int32_t token) const { return table_->is_end(self_, token) != 0; }

 private:
  const mri_text_v1* table_;
  void* self_;
};

// The tokens of a chat that waits for the assistant. What the messages say is never read as a
// special token: only the template's own marks are.
absl::StatusOr<std::vector<int32_t>> chat_tokens(const Text& text,
                                                 const std::vector<ChatMessage>& messages);

// Length of the longest prefix that does not end inside a UTF-8 sequence.
size_t complete_utf8(std::string_view bytes);

}  // namespace varve
