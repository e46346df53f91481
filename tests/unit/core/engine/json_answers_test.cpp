// Answers of a model under a schema: the default model when there is one, else a random small one.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "core/engine/json_grammar.h"
#include "core/engine/session.h"
#include "tests/support/light_stack.h"
#include "tests/support/tiny_models.h"

namespace varve {
namespace {

using nlohmann::json;

class JsonAnswersTest : public testing::Test {
 protected:
  JsonAnswersTest() {
    const char* model = std::getenv("VARVE_MODEL");
    options_.model_path = model != nullptr ? model : folder_.path("tiny.gguf");
    if (model == nullptr) {
      test::write_gguf(test::tiny_model(light::Architecture::kLlama), options_.model_path);
      options_.runtime_params = {{"max_tokens", Value(int64_t{4096})}};
    }
    stack_ = std::make_unique<test::LightStack>(options_);
  }

  // The answer to `question` in the schema's form.
  json ask(const std::string& question, const char* schema, SamplerOptions sampling) {
    const auto grammar = json_schema_grammar(nlohmann::ordered_json::parse(schema));
    EXPECT_TRUE(grammar.ok()) << grammar.status();
    sampling.grammar = *grammar;
    const mri::Peer<mri_text_v1> table = stack_->stack().text();
    const Text text(table.table, table.self);
    const auto sampler = Sampler::make(sampling, stack_->stack());
    EXPECT_TRUE(sampler.ok()) << sampler.status();
    const auto session =
        Session::start(stack_->runtime().table, stack_->runtime().self,
                       text.model_info()->vocab_size, *text.tokenize(question, true, false), {});
    EXPECT_TRUE(session.ok()) << session.status();
    const auto answer = generate(**session, text, **sampler, 1500, [](std::string_view) {});
    EXPECT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->finish, Finish::kEnd) << answer->text;
    json value = json::parse(answer->text, nullptr, false);
    EXPECT_FALSE(value.is_discarded()) << answer->text;
    return value;
  }

  test::TempDir folder_;
  test::LightStackOptions options_;
  std::unique_ptr<test::LightStack> stack_;
};

TEST_F(JsonAnswersTest, KeepToTheSchemaAndEnd) {
  const char* person = R"({"type": "object", "properties": {
      "name": {"type": "string", "minLength": 1, "maxLength": 20},
      "age": {"type": "integer"},
      "kind": {"enum": ["adult", "child", null]},
      "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3},
      "born": {"type": "string", "format": "date"}},
      "required": ["name", "age", "kind", "tags"], "additionalProperties": false})";
  for (uint64_t seed = 0; seed < 4; ++seed) {
    SamplerOptions sampling;
    sampling.temperature = seed == 0 ? 0 : 1;
    sampling.top_p = 0.95;
    sampling.seed = seed;
    const json value = ask("Describe Anna, 34 years old, as JSON: ", person, sampling);
    ASSERT_TRUE(value.is_object());
    EXPECT_TRUE(value.size() == 4 || value.contains("born")) << value;
    EXPECT_TRUE(value["name"].is_string() && !value["name"].get<std::string>().empty()) << value;
    EXPECT_TRUE(value["age"].is_number_integer()) << value;
    EXPECT_TRUE(value["kind"] == "adult" || value["kind"] == "child" || value["kind"].is_null());
    ASSERT_TRUE(value["tags"].is_array());
    EXPECT_LE(value["tags"].size(), 3u);
  }
}

TEST_F(JsonAnswersTest, TakeOneOfSeveralForms) {
  const char* forms = R"({"anyOf": [
      {"properties": {"yes": {"const": true}}, "required": ["yes"]},
      {"properties": {"no": {"type": "string", "maxLength": 10}}, "required": ["no"]},
      {"items": {"type": "number"}, "minItems": 1, "maxItems": 2}]})";
  for (uint64_t seed = 0; seed < 4; ++seed) {
    SamplerOptions sampling;
    sampling.temperature = 1;
    sampling.seed = seed;
    const json value = ask("Is water wet? ", forms, sampling);
    const bool is_list = value.is_array() && !value.empty() && value.size() <= 2;
    EXPECT_TRUE(is_list || value.contains("yes") || value.contains("no")) << value;
  }
}

}  // namespace
}  // namespace varve
