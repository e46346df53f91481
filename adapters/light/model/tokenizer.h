#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

struct llama_model;
struct llama_vocab;

namespace varve::light {

struct ChatMessage {
  std::string role;  // system, user, assistant, tool
  std::string content;
};

// A model's vocabulary, special tokens and chat template, through libllama (weights are not
// loaded). All members are const and may be called from any thread.
class Tokenizer {
 public:
  static constexpr int32_t kNone = -1;

  // `path`: the model itself. For a GGUF file its own vocabulary. For a HuggingFace folder, whose
  // tokenizer.json libllama cannot read: `tokenizer_path` (any GGUF file of the same family; its
  // weights do not matter), or without one the file tokenizer.gguf in the folder. A
  // `tokenizer_path` wins over the model's own vocabulary. The file is checked like a model file,
  // down to tokens only. Throws ModelError.
  explicit Tokenizer(const std::string& path, const std::string& tokenizer_path = "");
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  uint32_t vocab_size() const { return vocab_size_; }
  const llama_vocab* vocab() const { return vocab_; }  // valid as long as this

  // add_special: begin (and end) with the tokens the model wants there. parse_special: text such as
  // <|im_end|> becomes its token; leave it false for text that users wrote. Any bytes are accepted;
  // invalid UTF-8 becomes some tokens. Time grows in proportion to the text and stack use is
  // bounded: SentencePiece texts are tokenised in fragments of 8 KiB that end before a word,
  // byte-pair texts whole except that a run of more than 8 KiB of blanks or of other characters is
  // cut there. Throws ModelError for more than 1 GiB.
  std::vector<int32_t> tokenize(std::string_view text, bool add_special, bool parse_special) const;

  // The bytes of one token, which may be part of a character (see TextStream); special: control
  // tokens give their text instead of nothing. Tokens outside the vocabulary give nothing.
  std::string piece(int32_t token, bool special = false) const;

  // All pieces joined, made valid UTF-8.
  std::string detokenize(std::span<const int32_t> tokens, bool special = false) const;

  int32_t bos() const;  // these three are kNone when the model has no such token
  int32_t eos() const;
  int32_t eot() const;
  bool is_end(int32_t token) const;  // any token that ends an answer

  // The Jinja text in the file; "" when it has none.
  const std::string& chat_template() const { return chat_template_; }

  // The prompt text for `messages`, by the model's template; tokenise it with parse_special.
  // add_generation_prompt: end with the opening of the assistant's turn. libllama recognises the
  // template among those it knows and does not run the file's Jinja. Throws ModelError when there
  // is no template or it is not among them.
  std::string apply_chat_template(std::span<const ChatMessage> messages,
                                  bool add_generation_prompt) const;

 private:
  struct Free {
    void operator()(llama_model* model) const;
  };

  void append_tokens(std::string_view text, bool parse_special, std::vector<int32_t>& out) const;
  void append_continued(std::string_view text, bool parse_special, std::vector<int32_t>& out) const;
  size_t next_cut(std::string_view text, bool parse_special) const;

  std::string path_;
  std::unique_ptr<llama_model, Free> model_;
  const llama_vocab* vocab_ = nullptr;
  uint32_t vocab_size_ = 0;
  bool bpe_ = false;
  std::vector<int32_t> newline_;  // the tokens of "\n" alone
  std::string chat_template_;
  std::vector<std::string> special_texts_;  // tokens that parse_special finds in a text
};

// Joins pieces into valid UTF-8 while they arrive: an incomplete character waits for its next
// bytes, bytes that can never become one turn into U+FFFD. One thread at a time.
class TextStream {
 public:
  // What can be shown after these bytes; possibly "".
  std::string push(std::string_view bytes);
  // The rest, when no more bytes come.
  std::string finish();

 private:
  std::string held_;  // at most 3 bytes
};

}  // namespace varve::light
