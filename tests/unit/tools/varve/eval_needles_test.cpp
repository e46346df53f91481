#include "tools/varve/eval_needles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

namespace varve::cli {
namespace {

using testing::HasSubstr;

// A vocabulary of bytes, and a template with one mark for each end of a message.
void write(std::string_view bytes, void* out, uint64_t width, uint64_t capacity, uint64_t* n_out) {
  *n_out = bytes.size();
  for (size_t i = 0; i < std::min<uint64_t>(bytes.size(), capacity); ++i) {
    if (width == 1) {
      static_cast<char*>(out)[i] = bytes[i];
    } else {
      static_cast<int32_t*>(out)[i] = static_cast<unsigned char>(bytes[i]);
    }
  }
}

mri_status space(uint64_t n_out, uint64_t capacity) {
  return n_out > capacity ? MRI_E_SPACE : MRI_OK;
}

mri_text_v1 byte_table() {
  mri_text_v1 table{};
  table.struct_size = sizeof(table);
  table.tokenize = [](void*, const char* text, uint64_t n_bytes, uint32_t, uint32_t, int32_t* out,
                      uint64_t capacity, uint64_t* n_out, mri_error*) {
    write({text, n_bytes}, out, 4, capacity, n_out);
    return space(*n_out, capacity);
  };
  table.detokenize = [](void*, const int32_t* tokens, uint64_t n_tokens, uint32_t, char* out,
                        uint64_t capacity, uint64_t* n_out, mri_error*) {
    const std::string bytes(tokens, tokens + n_tokens);
    write(bytes, out, 1, capacity, n_out);
    return space(*n_out, capacity);
  };
  table.chat = [](void*, const mri_chat_message* messages, uint64_t n_messages, uint32_t, char* out,
                  uint64_t capacity, uint64_t* n_out, mri_error*) {
    std::string text;
    for (uint64_t i = 0; i < n_messages; ++i)
      text.append("<").append(messages[i].role).append(":").append(messages[i].content).append(">");
    text += "<assistant:";
    write(text, out, 1, capacity, n_out);
    return space(*n_out, capacity);
  };
  return table;
}

class Needles : public testing::Test {
 protected:
  static std::string bytes(const std::vector<int32_t>& tokens) {
    return {tokens.begin(), tokens.end()};
  }
  const mri_text_v1 table_ = byte_table();
  const Text text_{&table_, nullptr};
};

TEST_F(Needles, AreDifferentKindsWithDifferentValuesAtAllDepths) {
  std::set<std::string> values, stems;
  std::vector<double> depths;
  for (uint64_t text = 0; text < 10; ++text) {
    const auto needles = make_needles(text, 10);
    std::set<std::string> kinds;
    for (const Needle& needle : needles) {
      EXPECT_EQ(needle.digits.size(), kNeedleDigits);
      EXPECT_EQ(needle.sentence, needle.stem + " " + needle.digits + ".");
      kinds.insert(needle.stem.substr(0, 8));
      values.insert(needle.digits);
      stems.insert(needle.stem);
      depths.push_back(needle.depth);
    }
    EXPECT_EQ(kinds.size(), kNeedlesPerText);
  }
  EXPECT_EQ(values.size(), 50u);
  EXPECT_EQ(stems.size(), 10u);
  std::sort(depths.begin(), depths.end());
  EXPECT_EQ(depths.front(), 0);
  EXPECT_EQ(depths.back(), 1);
  for (size_t i = 1; i < depths.size(); ++i) EXPECT_LT(depths[i] - depths[i - 1], 0.05);
}

TEST_F(Needles, NumbersAreDigitsBehindWhatLeadsToThem) {
  const Needle needle = make_needles(2, 5)[0];
  const auto number = number_tokens(text_, needle);
  ASSERT_TRUE(number.ok()) << number.status();
  EXPECT_EQ(bytes(number->lead), " ");
  EXPECT_EQ(bytes(number->digits), needle.digits);
  EXPECT_THAT(number->n_digits, testing::Each(1u));
}

TEST_F(Needles, WhatTheyTakeIsWhatIsAdded) {
  const auto needles = make_needles(1, 5);
  const ChatFrame frame = *chat_frame(text_, "");
  uint64_t expected = hide(text_, {}, needles)->size();
  for (const Needle& needle : needles)
    expected += question_tokens(text_, frame, needle)->size() + 1 + kNeedleDigits;
  EXPECT_EQ(*needle_tokens(text_, frame, needles), expected);
}

TEST_F(Needles, AreHiddenBetweenSentencesWithoutLosingText) {
  std::string filler;
  for (int i = 0; i < 100; ++i) filler += "A short sentence. ";
  const auto needles = make_needles(0, 1);
  const auto hidden = hide(text_, {filler.begin(), filler.end()}, needles);
  ASSERT_TRUE(hidden.ok()) << hidden.status();
  std::string text = bytes(*hidden);
  size_t last = 0;
  for (const Needle& needle : needles) {
    const std::string inserted = "\n\n" + needle.sentence + "\n\n";
    const size_t at = text.find(inserted);
    ASSERT_NE(at, std::string::npos) << needle.sentence;
    EXPECT_GE(at, last);
    EXPECT_EQ(text[at - 1], '.');
    EXPECT_NEAR(static_cast<double>(at) / static_cast<double>(filler.size()), needle.depth, 0.02);
    text.erase(at, inserted.size());
    last = at;
  }
  EXPECT_EQ(text, filler);
}

TEST_F(Needles, TheChatIsTheTemplatesOwn) {
  const absl::StatusOr<ChatFrame> frame = chat_frame(text_, "Be brief.");
  ASSERT_TRUE(frame.ok()) << frame.status();
  const Needle needle = make_needles(3, 5)[1];
  const auto question = question_tokens(text_, *frame, needle);
  ASSERT_TRUE(question.ok());
  EXPECT_EQ(bytes(frame->before_text), "<system:Be brief.><user:");
  EXPECT_EQ(bytes(*question), "\n\n" + needle.question + "><assistant:" + needle.stem);
}

TEST_F(Needles, ATemplateThatDropsTheMessageIsRefused) {
  mri_text_v1 table = byte_table();
  table.chat = [](void*, const mri_chat_message*, uint64_t, uint32_t, char*, uint64_t,
                  uint64_t* n_out, mri_error*) {
    *n_out = 0;
    return static_cast<mri_status>(MRI_OK);
  };
  EXPECT_THAT(std::string(chat_frame(Text(&table, nullptr), "").status().message()),
              HasSubstr("drops the message"));
}

}  // namespace
}  // namespace varve::cli
