#include "adapters/sampling/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace varve::sampling {
namespace {

using testing::HasSubstr;

enum Verdict { kNo, kPrefix, kWhole };

// How far `text` follows the grammar, byte by byte as one token or as many.
Verdict follow(GrammarAutomaton& automaton, std::string_view text) {
  automaton.start_token();
  GrammarAutomaton::Place place = automaton.place();
  if (!automaton.follow(text, place)) return kNo;
  const GrammarAutomaton::Place before = automaton.place();
  automaton.move_to(place);
  const Verdict verdict = automaton.is_complete() ? kWhole : kPrefix;
  automaton.move_to(before);
  return verdict;
}

Verdict follow(std::string_view grammar, std::string_view text) {
  GrammarAutomaton automaton(parse_grammar(grammar));
  return follow(automaton, text);
}

std::string error_of(std::string_view grammar) {
  try {
    GrammarAutomaton automaton(parse_grammar(grammar));
  } catch (const GrammarError& e) {
    return e.what();
  }
  return "";
}

TEST(Grammar, FollowsTextsClassesAndAlternatives) {
  const char* grammar =
      "# a comment\n"
      "root ::= greeting \" \" name [.!]  # another\n"
      "greeting ::= \"Hello\" | \"Hi\"\n"
      "name ::= [A-Z] [a-z-]+";
  EXPECT_EQ(follow(grammar, ""), kPrefix);
  EXPECT_EQ(follow(grammar, "H"), kPrefix);
  EXPECT_EQ(follow(grammar, "Hi Anne-marie!"), kWhole);
  EXPECT_EQ(follow(grammar, "Hello Bob."), kWhole);
  EXPECT_EQ(follow(grammar, "Hello bob"), kNo);
  EXPECT_EQ(follow(grammar, "Hello B."), kNo);
  EXPECT_EQ(follow(grammar, "Hello Bob.x"), kNo);
}

TEST(Grammar, CountsRepetitions) {
  const char* grammar = "root ::= \"ab\"{2,4} [0-9]{3} \"x\"? (\"y\" | \"zz\")* \"q\"{1,}";
  EXPECT_EQ(follow(grammar, "ab123q"), kNo);
  EXPECT_EQ(follow(grammar, "abab123q"), kWhole);
  EXPECT_EQ(follow(grammar, "abababab123xyzzyqqq"), kWhole);
  EXPECT_EQ(follow(grammar, "ababababab"), kNo);
  EXPECT_EQ(follow(grammar, "abab12q"), kNo);
  EXPECT_EQ(follow(grammar, "abab123xz"), kPrefix);
  EXPECT_EQ(follow("root ::= \"a\"{0}", ""), kWhole);
  EXPECT_EQ(follow("root ::= \"a\"{0}", "a"), kNo);
}

TEST(Grammar, RecursesWhereItNests) {
  const char* grammar = "root ::= \"(\" root \")\" root | \"\"";
  EXPECT_EQ(follow(grammar, ""), kWhole);
  EXPECT_EQ(follow(grammar, "(()(()))()"), kWhole);
  EXPECT_EQ(follow(grammar, "(()"), kPrefix);
  EXPECT_EQ(follow(grammar, "())"), kNo);
  EXPECT_EQ(follow(grammar, std::string(3000, '(') + std::string(3000, ')')), kWhole);
}

TEST(Grammar, RepeatsWhatMayBeEmpty) {
  EXPECT_EQ(follow("root ::= (\"a\"? \"b\"?)* \"c\"", "abbac"), kWhole);
  EXPECT_EQ(follow("root ::= (\"a\"*)* \"c\"", "aac"), kWhole);
}

TEST(Grammar, ReadsEscapesAndUtf8) {
  EXPECT_EQ(follow(R"(root ::= "\"\\\n\t\x41\u00e9\U0001F600")", "\"\\\n\tAé😀"), kWhole);
  EXPECT_EQ(follow("root ::= [^a-zß]+", "ÄÖ€"), kWhole);
  EXPECT_EQ(follow("root ::= [^a-zß]+", "Äß"), kNo);
  EXPECT_EQ(follow("root ::= [à-ü]", "é"), kWhole);
  EXPECT_EQ(follow(R"(root ::= [\]\-^])", "]"), kWhole);
  EXPECT_EQ(follow(R"(root ::= [\]\-^] [-a])", "--"), kWhole);
  EXPECT_EQ(follow("root ::= . .", "\n€"), kWhole);
}

TEST(Grammar, FollowsCharactersThatAreSplitBetweenTokens) {
  const char* grammar = "root ::= [à-ü€]+";
  EXPECT_EQ(follow(grammar, "\xC3"), kPrefix);
  EXPECT_EQ(follow(grammar, "\xE2\x82"), kPrefix);
  EXPECT_EQ(follow(grammar, "\xE2\x81"), kNo) << "no euro begins so";
  EXPECT_EQ(follow(grammar, "\xC4"), kNo);
  EXPECT_EQ(follow(grammar, "\xE2\x82z"), kNo);
  for (const char* invalid : {"\x80", "\xC0\x80", "\xFF", "\xED\xA0", "\xF4\x90", "\xE0\x80"})
    EXPECT_EQ(follow("root ::= .*", invalid), kNo);
  GrammarAutomaton automaton(parse_grammar(grammar));
  GrammarAutomaton::Place place = automaton.place();
  ASSERT_TRUE(automaton.follow("\xE2", place));
  automaton.move_to(place);
  EXPECT_FALSE(automaton.is_complete());
  ASSERT_TRUE(automaton.follow("\x82\xAC", place));
  automaton.move_to(place);
  EXPECT_TRUE(automaton.is_complete());
}

TEST(Grammar, SaysWhatItCannotRead) {
  EXPECT_THAT(error_of(""), HasSubstr("no rule named root"));
  EXPECT_THAT(error_of("start ::= \"a\""), HasSubstr("no rule named root"));
  EXPECT_THAT(error_of("root ::= \"a\"\n\nroot ::= \"b\""), HasSubstr("line 3: rule root"));
  EXPECT_THAT(error_of("root ::= missing"), HasSubstr("rule missing is used but not defined"));
  EXPECT_THAT(error_of("root := \"a\""), HasSubstr("found '='; expected ':'"));
  EXPECT_THAT(error_of("root ::= \"a"), HasSubstr("found the end inside a text"));
  EXPECT_THAT(error_of("root ::= [a"), HasSubstr("found the end inside"));
  EXPECT_THAT(error_of("root ::= [z-a]"), HasSubstr("end lies before"));
  EXPECT_THAT(error_of("root ::= (\"a\""), HasSubstr("found the end; expected ')'"));
  EXPECT_THAT(error_of("root ::= \"a\")"), HasSubstr("found ')'"));
  EXPECT_THAT(error_of("root ::= \"a\" ::= b"), HasSubstr("found ':'"));
  EXPECT_THAT(error_of("root ::= *"), HasSubstr("repetition of nothing"));
  EXPECT_THAT(error_of("root ::= \"a\"{3,2}"), HasSubstr("n below m"));
  EXPECT_THAT(error_of("root ::= \"a\"{x}"), HasSubstr("expected a number"));
  EXPECT_THAT(error_of(R"(root ::= "\q")"), HasSubstr("found 'q' after a backslash"));
  EXPECT_THAT(error_of(R"(root ::= "\x4")"), HasSubstr("expected 2 hex digits"));
  EXPECT_THAT(error_of(R"(root ::= "\UFFFFFFFF")"), HasSubstr("above 10FFFF"));
  EXPECT_THAT(error_of("root ::= \"\xC3\""), HasSubstr("not UTF-8"));
  EXPECT_THAT(error_of("root ::= <|im_end|>"), HasSubstr("found '<'"));
  EXPECT_THAT(error_of("root ::= root"), HasSubstr("no text can match"));
  EXPECT_THAT(error_of("root ::= \"a\" \\"), HasSubstr("found '\\'"));
  EXPECT_THAT(error_of(R"(root ::= "\)"), HasSubstr("found the end"));
}

TEST(Grammar, BoundsSizeNestingAndRepetitions) {
  EXPECT_THAT(error_of(std::string(kGrammarBytesMax + 1, ' ')), HasSubstr("expected at most"));
  EXPECT_THAT(error_of("root ::= " + std::string(30000, '(') + "\"a\"" + std::string(30000, ')')),
              HasSubstr("nested deeper than 64"));
  EXPECT_THAT(error_of("root ::= \"a\"{1,1000000}"), HasSubstr("more than 2000 repetitions"));
  EXPECT_THAT(error_of("root ::= \"a\"{99999999999999999999}"), HasSubstr("repetitions"));
  std::string large = "root ::= a";
  for (int i = 0; i < 200; ++i) large += " \"x\"{2000}";
  EXPECT_THAT(error_of(large + "\na ::= \"a\""), HasSubstr("too large"));
  // 2000^3 characters: nothing is multiplied out.
  EXPECT_EQ(follow("root ::= ((\"a\"{2000}){2000}){2000}", std::string(5000, 'a')), kPrefix);
}

TEST(Grammar, FindsLeftRecursion) {
  for (const char* grammar :
       {"root ::= root \"x\" | \"x\"", "root ::= a\na ::= b \"x\"\nb ::= a | \"y\"",
        "root ::= a root \"x\" | \"x\"\na ::= b\nb ::= \"y\"?",
        "root ::= \"k\" a\na ::= a a | \"x\"", "root ::= \"k\"\nunused ::= unused \"x\" | \"y\""}) {
    EXPECT_THAT(error_of(grammar), HasSubstr("recurse on the left")) << grammar;
  }
}

// Each character doubles the ways in which such a text may go on: libllama needs memory for all.
TEST(Grammar, GivesUpWhereAmbiguityGrowsWithoutEnd) {
  GrammarAutomaton automaton(parse_grammar("root ::= \"x\" root \"y\" | \"x\" root \"z\" | \"x\""));
  EXPECT_THROW(
      {
        for (int i = 0; i < 1000; ++i) {
          automaton.start_token();
          GrammarAutomaton::Place place = automaton.place();
          ASSERT_TRUE(automaton.follow("x", place));
          automaton.move_to(place);
        }
      },
      GrammarError);
  EXPECT_THAT(error_of("root ::= ((\"a\"?){2000}){2000}"), HasSubstr("too ambiguous"));
}

TEST(Grammar, LongAnswersKeepNoMoreThanTheirNesting) {
  GrammarAutomaton automaton(
      parse_grammar("root ::= \"[\" item (\",\" item)* \"]\"\nitem ::= [0-9]+ | root"));
  GrammarAutomaton::Place place = automaton.place();
  std::string text = "[";
  for (int i = 0; i < 20000; ++i) text += "[12,[3]],45,";
  for (const char c : text) {
    automaton.start_token();
    place = automaton.place();
    ASSERT_TRUE(automaton.follow({&c, 1}, place));
    automaton.move_to(place);
  }
}

}  // namespace
}  // namespace varve::sampling
