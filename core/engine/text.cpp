#include "core/engine/text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/engine/mri_status.h"

namespace varve {
namespace {

constexpr uint64_t kOutputMax = uint64_t{1}
                                << 30;  // tokens or bytes: more is a defect of the runtime

// Calls fill(out, capacity, &n_out, &err) until the output fits.
template <class Output, class Fill>
absl::StatusOr<Output> filled(const char* call, uint64_t guess, Fill&& fill) {
  Output output;
  output.resize(guess);
  for (int attempt = 0; attempt < 2; ++attempt) {
    uint64_t n_out = 0;
    mri_error error = empty_error();
    const mri_status status = fill(output.data(), output.size(), &n_out, &error);
    if (status != MRI_OK && status != MRI_E_SPACE) return to_status(call, status, error);
    if (n_out > kOutputMax) {
      return absl::InternalError(absl::StrCat(call, ": the runtime wants ", n_out,
                                              " elements; expected at most ", kOutputMax));
    }
    const bool fits = n_out <= output.size();
    output.resize(n_out);
    if (fits) return output;
  }
  return absl::InternalError(
      absl::StrCat(call, ": the runtime's output grew between two equal calls"));
}

// Stands for the content of message i while the template is applied.
std::string marker(size_t i) { return absl::StrCat("varve-content-", i, "-varve"); }

}  // namespace

absl::StatusOr<mri_model_info> Text::model_info() const {
  mri_model_info info{};
  info.hdr.struct_size = sizeof(info);
  mri_error error = empty_error();
  const mri_status status = table_->model_info(self_, &info, &error);
  if (status != MRI_OK) return to_status("model_info", status, error);
  info.name[sizeof(info.name) - 1] = '\0';
  info.architecture[sizeof(info.architecture) - 1] = '\0';
  return info;
}

absl::StatusOr<std::vector<int32_t>> Text::tokenize(std::string_view text, bool add_special,
                                                    bool parse_special) const {
  const uint64_t guess = text.size() / 2 + 16;
  return filled<std::vector<int32_t>>(
      "tokenize", guess, [&](int32_t* out, uint64_t capacity, uint64_t* n_out, mri_error* error) {
        return table_->tokenize(self_, text.data(), text.size(), add_special ? 1 : 0,
                                parse_special ? 1 : 0, out, capacity, n_out, error);
      });
}

absl::StatusOr<std::string> Text::detokenize(std::span<const int32_t> tokens, bool special) const {
  const uint64_t guess = tokens.size() * 8 + 64;
  return filled<std::string>(
      "detokenize", guess, [&](char* out, uint64_t capacity, uint64_t* n_out, mri_error* error) {
        return table_->detokenize(self_, tokens.data(), tokens.size(), special ? 1 : 0, out,
                                  capacity, n_out, error);
      });
}

absl::StatusOr<std::string> Text::chat(const std::vector<ChatMessage>& messages) const {
  std::vector<mri_chat_message> raw;
  uint64_t guess = 256;
  for (const ChatMessage& message : messages) {
    raw.push_back({message.role.c_str(), message.content.c_str()});
    guess += message.role.size() + message.content.size() + 64;
  }
  return filled<std::string>(
      "chat", guess, [&](char* out, uint64_t capacity, uint64_t* n_out, mri_error* error) {
        return table_->chat(self_, raw.data(), raw.size(), 1, out, capacity, n_out, error);
      });
}

absl::StatusOr<std::vector<int32_t>> chat_tokens(const Text& text,
                                                 const std::vector<ChatMessage>& messages) {
  std::vector<ChatMessage> marked;
  for (size_t i = 0; i < messages.size(); ++i) marked.push_back({messages[i].role, marker(i)});
  const absl::StatusOr<std::string> frame = text.chat(marked);
  if (!frame.ok()) return frame.status();

  std::vector<int32_t> tokens;
  const auto append = [&](std::string_view piece, bool is_frame) -> absl::Status {
    if (piece.empty()) return absl::OkStatus();
    absl::StatusOr<std::vector<int32_t>> more = text.tokenize(piece, tokens.empty(), is_frame);
    if (!more.ok()) return more.status();
    tokens.insert(tokens.end(), more->begin(), more->end());
    return absl::OkStatus();
  };
  size_t done = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    const size_t at = frame->find(marker(i), done);
    if (at == std::string::npos) {
      return absl::FailedPreconditionError(
          absl::StrCat("the model's chat template drops the ", messages[i].role,
                       " message; an empty generate.system_prompt sends none"));
    }
    absl::Status status = append(std::string_view(*frame).substr(done, at - done), true);
    if (const auto& known = messages[i].known; known != nullptr)
      tokens.insert(tokens.end(), known->begin(), known->end());
    if (status.ok()) status = append(messages[i].content, false);
    if (!status.ok()) return status;
    done = at + marker(i).size();
  }
  const absl::Status status = append(std::string_view(*frame).substr(done), true);
  if (!status.ok()) return status;
  return tokens;
}

size_t complete_utf8(std::string_view bytes) {
  // A sequence has at most 4 bytes: look for an unfinished start among the last 3.
  for (size_t back = 1; back <= std::min<size_t>(3, bytes.size()); ++back) {
    const auto byte = static_cast<unsigned char>(bytes[bytes.size() - back]);
    if ((byte & 0xC0u) == 0x80u) continue;
    const size_t length = byte >= 0xF0u ? 4 : byte >= 0xE0u ? 3 : byte >= 0xC0u ? 2 : 1;
    return length > back ? bytes.size() - back : bytes.size();
  }
  return bytes.size();
}

}  // namespace varve
