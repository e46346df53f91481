#include "adapters/light/model/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <llama.h>

#include <string>

#include "adapters/light/model/libllama.h"
#include "adapters/light/model/model_error.h"
#include "tests/support/tiny_models.h"

namespace varve::light {
namespace {

using test::TempDir;
using test::tiny_model;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

// The two kinds of vocabulary: SentencePiece (llama) and byte-pair encoding (qwen2).
class TokenizerTest : public testing::TestWithParam<Architecture> {
 protected:
  TokenizerTest() { write_gguf(tiny_model(GetParam(), {.n_layers = 1}), dir_.path("m.gguf")); }

  bool bpe() const { return GetParam() == Architecture::kQwen2; }

  TempDir dir_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerTest,
                         testing::Values(Architecture::kLlama, Architecture::kQwen2));

TEST_P(TokenizerTest, TextComesBack) {
  const Tokenizer tokenizer(dir_.path("m.gguf"));
  EXPECT_EQ(tokenizer.vocab_size(), 264u);
  const std::string text = "the cat and the \xF0\x9F\x90\x88\nna\xC3\xAFve";
  const std::string start = bpe() ? "" : " ";  // SentencePiece begins a text with a blank
  EXPECT_EQ(tokenizer.detokenize(tokenizer.tokenize(text, false, false)), start + text);
}

TEST_P(TokenizerTest, SpecialTokensAreFoundOnlyWhenAsked) {
  const Tokenizer tokenizer(dir_.path("m.gguf"));
  const std::string text = bpe() ? "<|im_end|>" : "</s>";
  const int32_t id = bpe() ? 263 : 2;
  EXPECT_THAT(tokenizer.tokenize(text, false, true), ElementsAre(id));
  EXPECT_THAT(tokenizer.tokenize(text, false, false), testing::Not(testing::Contains(id)));
  EXPECT_EQ(tokenizer.piece(id, true), text);
  EXPECT_EQ(tokenizer.piece(id), "");
  EXPECT_TRUE(tokenizer.is_end(tokenizer.eos()));
  EXPECT_FALSE(tokenizer.is_end(5));
}

TEST_P(TokenizerTest, BeginTokenFollowsTheFile) {
  const Tokenizer tokenizer(dir_.path("m.gguf"));
  const auto with = tokenizer.tokenize("the", true, false);
  const auto without = tokenizer.tokenize("the", false, false);
  EXPECT_THAT(with, SizeIs(without.size() + (bpe() ? 0 : 1)));
  if (!bpe()) {
    EXPECT_EQ(with.front(), tokenizer.bos());
  }
}

TEST_P(TokenizerTest, LongRunsAndInvalidUtf8AreTokens) {
  const Tokenizer tokenizer(dir_.path("m.gguf"));
  const std::string start = bpe() ? "" : " ";
  for (const std::string& text :
       {std::string(131072, 'A'), std::string(1'000'000, '\n'), std::string(100'000, ' ')}) {
    EXPECT_EQ(tokenizer.detokenize(tokenizer.tokenize(text, false, true)), start + text);
  }
  std::string marks = "e";
  for (int i = 0; i < 50'000; ++i) marks += "\xCC\x81";
  EXPECT_EQ(tokenizer.detokenize(tokenizer.tokenize(marks, false, true)), start + marks);
  EXPECT_FALSE(tokenizer.tokenize(std::string("\xFF\xC3(\xE2\x82\x00 x", 8), false, true).empty());
  EXPECT_TRUE(tokenizer.tokenize("", false, true).empty());
}

// Fragments are not to be seen in the tokens: as libllama gives them for the whole text.
TEST_P(TokenizerTest, LongTextsHaveTheTokensOfTheWhole) {
  const Tokenizer tokenizer(dir_.path("m.gguf"));
  std::string text;
  while (text.size() < 40'000)
    text += "the end and the\nthin  thing and then in \xC3\xA9t\xC3\xA9. ";
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  llama_model* model = llama_model_load_from_file(dir_.path("m.gguf").c_str(), params);
  ASSERT_NE(model, nullptr);
  std::vector<int32_t> whole(text.size() + 8);
  const int32_t n =
      llama_tokenize(llama_model_get_vocab(model), text.data(), static_cast<int32_t>(text.size()),
                     whole.data(), static_cast<int32_t>(whole.size()), true, true);
  llama_model_free(model);
  ASSERT_GT(n, 0);
  whole.resize(static_cast<size_t>(n));
  EXPECT_EQ(tokenizer.tokenize(text, true, true), whole);
}

TEST_P(TokenizerTest, SpecialTokenInALongRunStaysWhole) {
  const Tokenizer tokenizer(dir_.path("m.gguf"));
  const std::string special = bpe() ? "<|im_end|>" : "</s>";
  const int32_t id = bpe() ? 263 : 2;
  for (size_t before = 8180; before < 8196; ++before) {
    const auto tokens =
        tokenizer.tokenize(std::string(before, 'A') + special + std::string(100, 'B'), false, true);
    EXPECT_THAT(tokens, testing::Contains(id)) << before;
  }
}

TEST_P(TokenizerTest, ChatTemplateIsApplied) {
  const Tokenizer tokenizer(dir_.path("m.gguf"));
  const ChatMessage messages[] = {{"system", "Be brief."}, {"user", "Hello"}};
  EXPECT_EQ(tokenizer.apply_chat_template(messages, true),
            "<|im_start|>system\nBe "
            "brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
  const ChatMessage many[] = {{"user", std::string(100'000, 'x')}};
  EXPECT_GT(tokenizer.apply_chat_template(many, false).size(), 100'000u);
}

TEST_P(TokenizerTest, TokensOutsideTheVocabularyGiveNothing) {
  const Tokenizer tokenizer(dir_.path("m.gguf"));
  EXPECT_EQ(tokenizer.piece(-1), "");
  EXPECT_EQ(tokenizer.piece(264), "");
}

TEST(TokenizerPathTest, FolderNeedsAGgufVocabulary) {
  const TempDir dir;
  const auto model = tiny_model(Architecture::kQwen2, {.n_layers = 1});
  write_hf_folder(model, dir.path());
  try {
    const Tokenizer tokenizer(dir.path());
    FAIL() << "expected a ModelError";
  } catch (const ModelError& e) {
    EXPECT_THAT(e.what(), HasSubstr("tokenizer_path"));
  }
  const TempDir other;
  write_gguf(model, other.path("vocabulary.gguf"));
  EXPECT_EQ(Tokenizer(dir.path(), other.path("vocabulary.gguf")).vocab_size(), 264u);
  write_gguf(model, dir.path("tokenizer.gguf"));
  EXPECT_EQ(Tokenizer(dir.path()).vocab_size(), 264u);
}

TEST(LibraryLogTest, ReachesTheSinkAndIsOtherwiseDropped) {
  const TempDir dir;
  write_gguf(tiny_model(Architecture::kLlama, {.n_layers = 1}), dir.path("m.gguf"));
  size_t lines = 0;
  set_library_log([&](LibraryLog, std::string_view) { ++lines; });
  const Tokenizer loud(dir.path("m.gguf"));
  set_library_log({});
  EXPECT_GT(lines, 0u);
  testing::internal::CaptureStderr();
  const Tokenizer quiet(dir.path("m.gguf"));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(TextStreamTest, HoldsBackUnfinishedCharacters) {
  TextStream stream;
  EXPECT_EQ(stream.push("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.push("\x90"), "");
  EXPECT_EQ(stream.push("\x88z"), "\xF0\x9F\x90\x88z");
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStreamTest, ReplacesWhatCanNeverBeACharacter) {
  TextStream stream;
  EXPECT_EQ(stream.push("\xFF"
                        "a\xC3("),
            "\xEF\xBF\xBD"
            "a\xEF\xBF\xBD(");
  EXPECT_EQ(stream.push("\xE2\x82"), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.finish(), "");
}

}  // namespace
}  // namespace varve::light
