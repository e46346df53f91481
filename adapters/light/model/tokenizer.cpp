#include "adapters/light/model/tokenizer.h"

#include <llama.h>

#include <algorithm>
#include <exception>
#include <filesystem>

#include "adapters/light/model/gguf_check.h"
#include "adapters/light/model/libllama.h"
#include "adapters/light/model/model_error.h"
#include "adapters/light/model/model_source.h"

namespace varve::light {
namespace {

constexpr size_t kMaxTextBytes = 1u << 30;
constexpr size_t kMaxFragmentBytes = 8192;

std::string vocabulary_path(const std::string& path, const std::string& tokenizer_path) {
  if (!tokenizer_path.empty()) return tokenizer_path;
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return path;
  const auto beside = std::filesystem::path(path) / "tokenizer.gguf";
  if (!std::filesystem::exists(beside, ignored)) {
    refuse(path,
           ": tokenizer.json cannot be read here; put a GGUF vocabulary of the same family beside "
           "it as "
           "tokenizer.gguf, or name one with the runtime parameter tokenizer_path");
  }
  return beside.string();
}

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f';
}
bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Byte-pair vocabularies split a text by a regular expression first, whose matching of a run
// without blanks (or of blanks) needs stack in proportion: only such runs are cut.
size_t cut_in_long_run(std::string_view text) {
  size_t run = 0;
  for (size_t i = 1; i < text.size(); ++i) {
    run = is_blank(text[i]) == is_blank(text[i - 1]) ? run + 1 : 0;
    if (run >= kMaxFragmentBytes && !continues_character(text[i])) return i;
  }
  return text.size();
}

// libllama's SentencePiece takes time in proportion to the square of a text's length where
// characters are not in the vocabulary: every text is cut, before a word or line where there is
// one, which no token spans.
size_t cut_before_blank(std::string_view text) {
  if (text.size() <= kMaxFragmentBytes) return text.size();
  for (size_t i = kMaxFragmentBytes; i > kMaxFragmentBytes / 2; --i) {
    if (is_blank(text[i]) && !is_blank(text[i - 1])) return i;
  }
  size_t cut = kMaxFragmentBytes;
  while (cut > kMaxFragmentBytes - 4 && continues_character(text[cut])) --cut;
  return cut;
}

}  // namespace

void Tokenizer::Free::operator()(llama_model* model) const { llama_model_free(model); }
Tokenizer::~Tokenizer() = default;

Tokenizer::Tokenizer(const std::string& path, const std::string& tokenizer_path)
    : path_(vocabulary_path(path, tokenizer_path)) {
  check_vocabulary(check_gguf(path_), path_);
  prepare_libllama();
  take_library_error();
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  params.load_mode = LLAMA_LOAD_MODE_NONE;
  model_.reset(llama_model_load_from_file(path_.c_str(), params));
  if (model_ == nullptr)
    refuse(path_, ": libllama cannot read the vocabulary: ", take_library_error());
  vocab_ = llama_model_get_vocab(model_.get());
  vocab_size_ = static_cast<uint32_t>(llama_vocab_n_tokens(vocab_));
  bpe_ = llama_vocab_type(vocab_) == LLAMA_VOCAB_TYPE_BPE;
  append_tokens("\n", false, newline_);
  // libllama aborts when it is told to add a token that the vocabulary lacks.
  if ((llama_vocab_get_add_bos(vocab_) && bos() == kNone) ||
      (llama_vocab_get_add_eos(vocab_) && eos() == kNone)) {
    refuse(path_, ": the tokenizer adds a begin or end token that the vocabulary does not have");
  }
  if (const char* text = llama_model_chat_template(model_.get(), nullptr)) chat_template_ = text;
  for (uint32_t i = 0; i < vocab_size_; ++i) {
    const auto id = static_cast<int32_t>(i);
    constexpr int kFound =
        LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_USER_DEFINED | LLAMA_TOKEN_ATTR_UNKNOWN;
    if ((llama_vocab_get_attr(vocab_, id) & kFound) != 0)
      special_texts_.push_back(llama_vocab_get_text(vocab_, id));
  }
}

void Tokenizer::append_tokens(std::string_view text, bool parse_special,
                              std::vector<int32_t>& out) const {
  const size_t start = out.size();
  const auto length = static_cast<int32_t>(text.size());
  out.resize(start + text.size() + 8);
  int32_t n = 0;
  try {
    n = llama_tokenize(vocab_, text.data(), length, out.data() + start,
                       static_cast<int32_t>(out.size() - start), false, parse_special);
    if (n < 0 && n != INT32_MIN) {
      out.resize(start + static_cast<size_t>(-n));
      n = llama_tokenize(vocab_, text.data(), length, out.data() + start, -n, false, parse_special);
    }
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    refuse(path_, ": the text cannot be tokenised with this vocabulary: ", e.what());
  }
  if (n < 0) refuse(path_, ": the text cannot be tokenised: more than 2^31 tokens");
  out.resize(start + static_cast<size_t>(n));
}

// Where to cut the start of `text` off: its whole length, or a place for the kind of vocabulary,
// and never inside a special token.
size_t Tokenizer::next_cut(std::string_view text, bool parse_special) const {
  size_t cut = bpe_ ? cut_in_long_run(text) : cut_before_blank(text);
  if (cut == text.size() || !parse_special) return cut;
  for (const std::string& special : special_texts_) {
    const size_t first = cut < special.size() ? 0 : cut - special.size() + 1;
    const size_t found = text.substr(0, cut + special.size()).find(special, first);
    if (found != std::string_view::npos && found < cut && found > 0) cut = found;
  }
  return cut;
}

// A SentencePiece text gets a blank put before it. A fragment that continues a text must not, so it
// is tokenised behind a newline, which never joins its neighbours, and that start is taken off
// again.
void Tokenizer::append_continued(std::string_view text, bool parse_special,
                                 std::vector<int32_t>& out) const {
  std::vector<int32_t> tokens;
  std::string line(1, '\n');
  line += text;
  append_tokens(line, parse_special, tokens);
  if (std::mismatch(newline_.begin(), newline_.end(), tokens.begin(), tokens.end()).first ==
      newline_.end()) {
    out.insert(out.end(), tokens.begin() + static_cast<std::ptrdiff_t>(newline_.size()),
               tokens.end());
  } else {
    append_tokens(text, parse_special, out);
  }
}

std::vector<int32_t> Tokenizer::tokenize(std::string_view text, bool add_special,
                                         bool parse_special) const {
  if (text.size() > kMaxTextBytes)
    refuse("a text of ", text.size(), " bytes; at most ", kMaxTextBytes, " are accepted");
  std::vector<int32_t> out;
  if (add_special && llama_vocab_get_add_bos(vocab_)) out.push_back(bos());
  for (bool first = true; !text.empty(); first = false) {
    const size_t cut = next_cut(text, parse_special);
    if (first || bpe_) {
      append_tokens(text.substr(0, cut), parse_special, out);
    } else {
      append_continued(text.substr(0, cut), parse_special, out);
    }
    text.remove_prefix(cut);
  }
  if (add_special && llama_vocab_get_add_eos(vocab_)) out.push_back(eos());
  return out;
}

std::string Tokenizer::piece(int32_t token, bool special) const {
  if (token < 0 || static_cast<uint32_t>(token) >= vocab_size_) return {};
  std::string out(64, '\0');
  int32_t n =
      llama_token_to_piece(vocab_, token, out.data(), static_cast<int32_t>(out.size()), 0, special);
  if (n < 0) {
    out.resize(static_cast<size_t>(-n));
    n = llama_token_to_piece(vocab_, token, out.data(), -n, 0, special);
  }
  out.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return out;
}

std::string Tokenizer::detokenize(std::span<const int32_t> tokens, bool special) const {
  TextStream stream;
  std::string out;
  for (const int32_t token : tokens) out += stream.push(piece(token, special));
  return out + stream.finish();
}

int32_t Tokenizer::bos() const { return llama_vocab_bos(vocab_); }
int32_t Tokenizer::eos() const { return llama_vocab_eos(vocab_); }
int32_t Tokenizer::eot() const { return llama_vocab_eot(vocab_); }
bool Tokenizer::is_end(int32_t token) const { return llama_vocab_is_eog(vocab_, token); }

std::string Tokenizer::apply_chat_template(std::span<const ChatMessage> messages,
                                           bool add_generation_prompt) const {
  if (chat_template_.empty())
    refuse(path_, ": the model has no chat template; give the prompt as plain text");
  std::vector<llama_chat_message> chat;
  size_t bytes = 256;
  for (const ChatMessage& m : messages) {
    chat.push_back({m.role.c_str(), m.content.c_str()});
    bytes += m.role.size() + m.content.size() + 64;
  }
  if (bytes > kMaxTextBytes)
    refuse("messages of ", bytes, " bytes; at most ", kMaxTextBytes, " are accepted");
  std::string out(bytes, '\0');
  const auto apply = [&] {
    return llama_chat_apply_template(chat_template_.c_str(), chat.data(), chat.size(),
                                     add_generation_prompt, out.data(),
                                     static_cast<int32_t>(out.size()));
  };
  int32_t n = apply();
  if (n > static_cast<int32_t>(out.size())) {
    out.resize(static_cast<size_t>(n));
    n = apply();
  }
  if (n < 0) {
    refuse(path_,
           ": the model's chat template is none of those that libllama knows; give the prompt as "
           "plain text");
  }
  out.resize(static_cast<size_t>(n));
  return out;
}

}  // namespace varve::light
