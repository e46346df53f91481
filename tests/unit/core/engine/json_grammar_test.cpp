#include "core/engine/json_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "adapters/sampling/grammar.h"

namespace varve {
namespace {

using nlohmann::ordered_json;
using sampling::GrammarAutomaton;
using testing::HasSubstr;

// Does the whole text follow the grammar?
bool accepts(const std::string& grammar, std::string_view text) {
  GrammarAutomaton automaton(sampling::parse_grammar(grammar));
  automaton.start_token();
  GrammarAutomaton::Place place = automaton.place();
  if (!automaton.follow(text, place)) return false;
  automaton.move_to(place);
  return automaton.is_complete();
}

std::string grammar_of(std::string_view schema) {
  const absl::StatusOr<std::string> grammar = json_schema_grammar(ordered_json::parse(schema));
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  return grammar.ok() ? *grammar : "root ::= \"\"";
}

bool accepts_for(std::string_view schema, std::string_view text) {
  return accepts(grammar_of(schema), text);
}

std::string error_of(std::string_view schema) {
  const auto grammar = json_schema_grammar(ordered_json::parse(schema));
  if (grammar.ok()) return "";
  EXPECT_EQ(grammar.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(grammar.status().message());
}

TEST(ChoiceGrammar, TakesTheChoicesAndNothingElse) {
  const std::vector<std::string> choices = {"yes", "yes, \"sir\"", "a\\n\nb]", "é😀"};
  const std::string grammar = choice_grammar(choices);
  for (const std::string& choice : choices) EXPECT_TRUE(accepts(grammar, choice)) << choice;
  for (const char* other : {"", "ye", "yes, ", "no", "yesyes", "a\nb]"})
    EXPECT_FALSE(accepts(grammar, other)) << other;
}

TEST(JsonGrammar, AnyObject) {
  const std::string grammar = json_object_grammar();
  EXPECT_TRUE(accepts(grammar, R"({})"));
  EXPECT_TRUE(
      accepts(grammar, "{\n  \"a\": [1, -2.5e3, true, null],\n  \"b\": {\"é\": \"x\\n\\u00e9\"}}"));
  EXPECT_FALSE(accepts(grammar, R"([1])"));
  EXPECT_FALSE(accepts(grammar, R"({"a": 01})"));
  EXPECT_FALSE(accepts(grammar, R"({"a": 1,})"));
  EXPECT_FALSE(accepts(grammar, "{\"a\": \"\n\"}"));
  EXPECT_FALSE(accepts(grammar, R"({"a": "\ud800"})")) << "half a pair";
  EXPECT_FALSE(accepts(grammar, "{  }")) << "no padding";
  EXPECT_FALSE(accepts(grammar, "{\n" + std::string(17, ' ') + "}"));
}

TEST(JsonGrammar, Objects) {
  const char* schema = R"({"type": "object", "properties": {
      "z": {"type": "integer"}, "a": {"type": "boolean"}, "m": {"type": "null"}},
      "required": ["a"]})";
  EXPECT_TRUE(accepts_for(schema, R"({"a": true})"));
  EXPECT_TRUE(accepts_for(schema, R"({"z":-12,"a":false,"m":null})"));
  EXPECT_TRUE(accepts_for(schema, R"({"a": true, "m": null })"));
  EXPECT_FALSE(accepts_for(schema, R"({"z": 1})"));
  EXPECT_FALSE(accepts_for(schema, R"({})"));
  EXPECT_FALSE(accepts_for(schema, R"({"a": true, "z": 1})")) << "in the schema's order";
  EXPECT_FALSE(accepts_for(schema, R"({"a": true, "other": 1})"));
  EXPECT_FALSE(accepts_for(schema, R"({"a": true,})"));
  EXPECT_FALSE(accepts_for(schema, R"({,"a": true})"));
  const char* optional = R"({"properties": {"a": {}, "b": {}}})";
  for (const char* text : {"{}", R"({"a": 1})", R"({"b": [1]})", R"({"a": 1, "b": "x"})"})
    EXPECT_TRUE(accepts_for(optional, text)) << text;
}

TEST(JsonGrammar, OtherPropertiesNeverTakeADeclaredName) {
  const char* schema = R"({"type": "object", "properties": {
      "name": {"type": "string"}, "né": {"type": "null"}, "q\"]": {"type": "null"}},
      "additionalProperties": {"type": "integer"}, "required": ["id"]})";
  EXPECT_TRUE(accepts_for(schema, R"({"name": "x", "id": 3})"));
  for (const char* other : {"", "n", "nam", "names", "Name", "é", "q", "na-me"}) {
    EXPECT_TRUE(accepts_for(schema, std::string(R"({"id": 1, ")") + other + R"(": 5})")) << other;
  }
  EXPECT_FALSE(accepts_for(schema, R"({"id": 1, "name": 5})"));
  EXPECT_FALSE(accepts_for(schema, R"({"id": 1, "n\u0061me": 5})"));
  EXPECT_FALSE(accepts_for(schema, R"({"id": 1, "id": 5})"));
  EXPECT_FALSE(accepts_for(schema, R"({"id": 1, "né": 5})"));
  EXPECT_FALSE(accepts_for(schema, R"({"id": 1, "q\"]": 5})"));
  EXPECT_TRUE(accepts_for(R"({"type": "object"})", R"({"whatever": [1]})"));
  EXPECT_TRUE(accepts_for(R"({"type": "object", "additionalProperties": false})", "{}"));
  EXPECT_FALSE(accepts_for(R"({"type": "object", "additionalProperties": false})", R"({"a":1})"));
}

TEST(JsonGrammar, Arrays) {
  const char* two_to_three = R"({"items": {"type": "integer"}, "minItems": 2, "maxItems": 3})";
  EXPECT_FALSE(accepts_for(two_to_three, "[1]"));
  EXPECT_TRUE(accepts_for(two_to_three, "[1, 2]"));
  EXPECT_TRUE(accepts_for(two_to_three, "[1,2,3]"));
  EXPECT_FALSE(accepts_for(two_to_three, "[1,2,3,4]"));
  EXPECT_FALSE(accepts_for(two_to_three, "[1,\"2\"]"));
  EXPECT_TRUE(accepts_for(R"({"type": "array", "maxItems": 1})", "[]"));
  EXPECT_TRUE(accepts_for(R"({"type": "array", "maxItems": 1})", "[{}]"));
  EXPECT_FALSE(accepts_for(R"({"type": "array", "maxItems": 1})", "[1,2]"));
  EXPECT_TRUE(accepts_for(R"({"type": "array", "maxItems": 0})", "[]"));
  EXPECT_FALSE(accepts_for(R"({"type": "array", "minItems": 1})", "[]"));
  EXPECT_TRUE(accepts_for(R"({"type": "array"})", "[[], [[]]]"));
}

TEST(JsonGrammar, TextsNumbersAndConstants) {
  EXPECT_TRUE(accepts_for(R"({"minLength": 2, "maxLength": 3})", "\"é€\""));
  EXPECT_FALSE(accepts_for(R"({"minLength": 2, "maxLength": 3})", "\"a\""));
  EXPECT_FALSE(accepts_for(R"({"minLength": 2, "maxLength": 3})", "\"abcd\""));
  EXPECT_TRUE(accepts_for(R"({"type": "string", "maxLength": 1})", R"("\n")"));
  EXPECT_TRUE(accepts_for(R"({"type": "string", "format": "date"})", "\"2024-02-28\""));
  EXPECT_FALSE(accepts_for(R"({"type": "string", "format": "date"})", "\"2024-13-01\""));
  EXPECT_TRUE(accepts_for(R"({"format": "date-time"})", "\"2024-02-28T23:59:59Z\""));
  EXPECT_TRUE(accepts_for(R"({"format": "uuid"})", "\"123e4567-e89b-12d3-a456-426614174000\""));
  EXPECT_TRUE(accepts_for(R"({"type": "number"})", "-0.5e-12"));
  EXPECT_FALSE(accepts_for(R"({"type": "integer"})", "1.5"));
  EXPECT_FALSE(accepts_for(R"({"type": "number"})", "1e999"));
  const char* values = R"({"enum": ["a\"b\\", 1, null, {"k": [true]}, "é"]})";
  for (const char* text : {R"("a\"b\\")", "1", "null", R"({"k":[true]})", "\"é\""})
    EXPECT_TRUE(accepts_for(values, text)) << text;
  EXPECT_FALSE(accepts_for(values, "2"));
  EXPECT_FALSE(accepts_for(R"({"type": "string", "enum": ["a", null]})", "null"));
  EXPECT_TRUE(accepts_for(R"({"const": 4})", "4"));
}

TEST(JsonGrammar, AlternativesAndTypeLists) {
  const char* schema = R"({"anyOf": [{"type": ["string", "null"], "maxLength": 1},
                                     {"allOf": [{"type": "integer"}]}, {"const": "long"}]})";
  for (const char* text : {"null", "\"a\"", "17", "\"long\""})
    EXPECT_TRUE(accepts_for(schema, text)) << text;
  EXPECT_FALSE(accepts_for(schema, "\"ab\""));
  EXPECT_FALSE(accepts_for(schema, "true"));
  EXPECT_TRUE(accepts_for(R"({"oneOf": [{"type": "null"}, {"type": "array"}]})", "[]"));
  EXPECT_TRUE(accepts_for("{}", "[{\"a\": 1}]"));
  EXPECT_TRUE(accepts_for("true", "null"));
}

TEST(JsonGrammar, ReferencesMayRecurse) {
  const char* tree = R"({"$ref": "#/$defs/no~1de", "$defs": {"no/de": {
      "type": "object", "properties": {"v": {"type": "integer"},
      "kids": {"type": "array", "items": {"$ref": "#/$defs/no~1de"}}},
      "required": ["v", "kids"]}}})";
  EXPECT_TRUE(accepts_for(tree, R"({"v":1,"kids":[{"v":2,"kids":[]},{"v":3,"kids":[]}]})"));
  EXPECT_FALSE(accepts_for(tree, R"({"v":1,"kids":[{"v":2}]})"));
  const char* list = R"({"type": ["object", "null"], "properties": {"next": {"$ref": "#"}},
                         "required": ["next"]})";
  EXPECT_TRUE(accepts_for(list, R"({"next":{"next":null}})"));
  EXPECT_THROW(accepts_for(R"({"$ref": "#"})", ""), sampling::GrammarError);
}

TEST(JsonGrammar, NamesWhatItCannotHoldTo) {
  EXPECT_THAT(error_of(R"({"properties": {"a": {"type": "string", "pattern": "^a"}}})"),
              testing::AllOf(HasSubstr("#/properties/a:"), HasSubstr("\"pattern\"")));
  EXPECT_THAT(error_of(R"({"properties": {"a/b": {"type": "integer", "minimum": 3}}})"),
              testing::AllOf(HasSubstr("#/properties/a~1b:"), HasSubstr("\"minimum\"")));
  EXPECT_THAT(error_of(R"({"items": {"format": "email"}})"), HasSubstr("#/items/format"));
  EXPECT_THAT(error_of(R"({"type": "array", "uniqueItems": true})"), HasSubstr("uniqueItems"));
  EXPECT_EQ(error_of(R"({"type": "array", "uniqueItems": false})"), "");
  EXPECT_THAT(error_of(R"({"type": "text"})"), HasSubstr("found \"text\"; expected object"));
  EXPECT_THAT(error_of(R"({"type": []})"), HasSubstr("empty list"));
  EXPECT_THAT(error_of(R"({"type": "integer", "minLength": 1})"), HasSubstr("minLength"));
  EXPECT_THAT(error_of(R"({"allOf": [{}, {}]})"), HasSubstr("only one"));
  EXPECT_THAT(error_of(R"({"anyOf": []})"), HasSubstr("expected a list"));
  EXPECT_THAT(error_of(R"({"anyOf": [{}], "minLength": 1})"), HasSubstr("beside anyOf"));
  EXPECT_THAT(error_of(R"({"$ref": "http://a/b"})"), HasSubstr("begins with #"));
  EXPECT_THAT(error_of(R"({"$ref": "#/nothing"})"), HasSubstr("nothing there"));
  EXPECT_THAT(error_of(R"({"$ref": "#bad"})"), HasSubstr("nothing there"));
  EXPECT_THAT(error_of(R"({"minItems": 3, "maxItems": 2})"), HasSubstr("below minItems"));
  EXPECT_THAT(error_of(R"({"maxLength": 1000000})"), HasSubstr("expected 0 to 2000"));
  EXPECT_THAT(error_of(R"({"minLength": -1})"), HasSubstr("expected 0 to 2000"));
  EXPECT_THAT(error_of(R"({"enum": []})"), HasSubstr("found no value"));
  EXPECT_THAT(error_of(R"({"enum": 3})"), HasSubstr("expected a list"));
  EXPECT_THAT(error_of(R"({"required": ["a"], "additionalProperties": false})"),
              HasSubstr("lacks"));
  EXPECT_THAT(error_of(R"({"required": [1]})"), HasSubstr("list of names"));
  EXPECT_THAT(error_of(R"({"properties": 1})"), HasSubstr("expected an object"));
  EXPECT_THAT(error_of(R"({"items": false})"), HasSubstr("which nothing matches"));
  EXPECT_THAT(error_of("[]"), HasSubstr("expected a schema"));
}

TEST(JsonGrammar, BoundsDepthAndSize) {
  std::string deep = "{}";
  for (int i = 0; i < 100; ++i) deep = absl::StrCat(R"({"items": )", deep, "}");
  EXPECT_THAT(error_of(deep), HasSubstr("nested deeper than 64"));
  EXPECT_THAT(error_of(R"({"title": ")" + std::string(70000, 'x') + R"("})"), HasSubstr("bytes"));
  std::string wide = R"({"additionalProperties": {}, "properties": {)";
  for (int i = 0; i < 2000; ++i) wide += absl::StrCat("\"", i * 7919 % 100003, "\": {}, ");
  EXPECT_THAT(error_of(wide + R"("z": {}}})"), HasSubstr("more than 65536 bytes"));
  const std::string name(300, 'n');
  EXPECT_THAT(error_of(R"({"additionalProperties": {}, "properties": {")" + name + R"(": {}}})"),
              HasSubstr("256 bytes"));
}

// A walk that takes any character that may follow ends in JSON, whatever the schema.
TEST(JsonGrammar, WhateverFollowsTheGrammarIsJson) {
  const std::string grammars[] = {
      json_object_grammar(),
      grammar_of(R"({"properties": {"a": {"enum": ["x", "é"]}, "b": {"type": ["number", "null"]}},
                    "additionalProperties": {"maxLength": 3}})"),
      grammar_of(R"({"items": {"anyOf": [{"type": "string"}, {"format": "date-time"}]}})")};
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    GrammarAutomaton automaton(sampling::parse_grammar(grammars[round % 3]));
    std::string text;
    while (text.size() < 400 && !automaton.is_complete()) {
      automaton.start_token();
      std::vector<std::pair<char, GrammarAutomaton::Place>> next;
      for (int byte = 0; byte < 256; ++byte) {
        const char c = static_cast<char>(byte);
        GrammarAutomaton::Place place = automaton.place();
        if (automaton.follow({&c, 1}, place)) next.emplace_back(c, place);
      }
      ASSERT_FALSE(next.empty()) << text;
      // Closing signs often, so that most walks end.
      std::vector<size_t> closing;
      for (size_t i = 0; i < next.size(); ++i) {
        if (std::string_view("\"]}").find(next[i].first) != std::string_view::npos)
          closing.push_back(i);
      }
      const size_t pick = !closing.empty() && random() % 3 == 0 ? closing[random() % closing.size()]
                                                                : random() % next.size();
      text += next[pick].first;
      automaton.move_to(next[pick].second);
    }
    EXPECT_TRUE(!automaton.is_complete() || ordered_json::accept(text)) << text;
  }
}

}  // namespace
}  // namespace varve
