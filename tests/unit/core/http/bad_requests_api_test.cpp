// Requests that must be refused: what is sent, and the status, param and code that come back.
#include "tests/unit/core/http/api_fixture.h"

namespace varve::http {
namespace {

using testing::HasSubstr;

constexpr char kChat[] = "/v1/chat/completions";
constexpr char kText[] = "/v1/completions";

struct Row {
  std::string route, body, param, code = "";
  int status = 400;
};

std::string chat(const std::string& fields) {
  return R"({"messages":[{"role":"user","content":"hi"}],)" + fields + "}";
}
std::string text(const std::string& fields) { return R"({"prompt":"hi",)" + fields + "}"; }
std::string nested(size_t depth) {
  return R"({"metadata":)" + std::string(depth, '[') + std::string(depth, ']') + "}";
}
std::string repeated(const std::string& part, size_t n) {
  std::string all;
  for (size_t i = 0; i < n; ++i) all += (i == 0 ? "" : ",") + part;
  return all;
}

class BadRequest : public ApiTest {
 protected:
  void expect(const Row& row) {
    SCOPED_TRACE(row.route + " " + row.body.substr(0, 200));
    json body = post(row.route, row.body);
    EXPECT_EQ(status(), row.status) << body;
    EXPECT_EQ(body["error"]["param"], row.param.empty() ? json() : json(row.param)) << body;
    if (!row.code.empty()) {
      EXPECT_EQ(body["error"]["code"], row.code) << body;
    }
    EXPECT_FALSE(body["error"]["message"].get<std::string>().empty());
    EXPECT_TRUE(dispatcher.lane->requests.empty());
  }
};

TEST_F(BadRequest, NotJson) {
  for (const std::string& body :
       {std::string(), std::string("{"), std::string("[]"), std::string("null"), std::string("1"),
        std::string("{\"prompt\":\"a\"} x"), std::string("\xEF\xBB\xBF{\"prompt\":\"a\"}"),
        std::string("{\"prompt\":\"a\"}\0", 15), std::string("{'prompt':'a'}"),
        std::string(100000, '['), std::string(100000, '{')})
    expect({kText, body, ""});
  expect({kText, R"({"temperature":NaN})", "temperature"});
  expect({kText, R"({"temperature":Infinity})", "temperature"});
  expect({kText, R"({"temperature":1e400})", "temperature"});
  expect({kText, "{\"prompt\":\"\xff\"}", "prompt"});
  expect({kText, "{\"prompt\":\"\xc0\xaf\"}", "prompt"});
  expect({kText, R"({"prompt":"\ud800"})", "prompt"});
  expect({kText, R"({"prompt":"\udc00 x"})", "prompt"});
  expect({kText, R"({"prompt":"a\u0000b"})", "prompt"});
  expect({kText, R"({"prompt":"a","pro\u0000mpt":"b"})", std::string("pro?mpt")});
  expect({kText, R"({"prompt":"a","prompt":"b"})", "prompt"});
  expect({kChat, R"({"messages":[{"role":"user","role":"system"}]})", "messages[0].role"});
}

TEST_F(BadRequest, TooDeepOrTooMany) {
  const std::string body = nested(100000);
  const json answer = post(kText, body);
  EXPECT_EQ(status(), 400);
  EXPECT_THAT(answer["error"]["message"], HasSubstr("64"));
  expect({kText, nested(64), "metadata"});  // one level is the object's
  call("POST", kText, R"({"prompt":"a","metadata":)" + nested(62).substr(12));
  EXPECT_EQ(status(), 200);
  dispatcher.lane->requests.clear();
  std::string members = R"({"metadata":{)";
  for (int i = 0; i <= 4096; ++i) members += "\"k" + std::to_string(i) + "\":1,";
  members.back() = '}';
  expect({kText, members + "}", "metadata.k4096"});
  std::string many = R"({"prompt":[)" + std::string(2 * ((size_t{1} << 21) + 10), '1');
  for (size_t i = 12; i < many.size(); i += 2) many[i] = ',';
  many.back() = '1';
  EXPECT_EQ(post(kText, many + "]}")["error"]["param"].get<std::string>().substr(0, 7), "prompt[");
}

TEST_F(BadRequest, NumbersOutOfRange) {
  const std::pair<const char*, const char*> fields[] = {
      {"max_tokens", "-1"},
      {"max_tokens", "-2147483648"},
      {"max_tokens", "9223372036854775808"},
      {"max_tokens", "1e300"},
      {"max_tokens", "1.5"},
      {"max_tokens", "\"1\""},
      {"max_tokens", "true"},
      {"max_tokens", "[1]"},
      {"min_tokens", "-1"},
      {"temperature", "-0.1"},
      {"temperature", "5.1"},
      {"temperature", "\"1\""},
      {"temperature", "1e308"},
      {"top_p", "1.01"},
      {"top_p", "-1"},
      {"top_k", "-2"},
      {"top_k", "1e10"},
      {"min_p", "2"},
      {"presence_penalty", "2.1"},
      {"frequency_penalty", "-3"},
      {"repetition_penalty", "0"},
      {"n", "0"},
      {"n", "-1"},
      {"n", "129"},
      {"n", "99999999999999999999"},
      {"seed", "9223372036854775808"},
      {"seed", "-9223372036854775809"},
      {"seed", "0.5"},
      {"stream", "1"},
      {"stream", "\"true\""},
      {"ignore_eos", "0"},
      {"stop", "1"},
      {"stream_options", "true"},
      {"logit_bias", "[]"},
      {"user_id", "1"},
  };
  for (const auto& [name, value] : fields) {
    if (std::string(name) == "user_id") continue;  // unknown: ignored
    const std::string field = std::string("\"") + name + "\":" + value;
    expect({kText, text(field), name});
    expect({kChat, chat(field), name});
  }
  EXPECT_THAT(post(kText, text(R"("seed":0.5)"))["error"]["message"].get<std::string>(),
              testing::EndsWith("from -9223372036854775808 to 9223372036854775807"));
  expect({kText, text(R"("logit_bias":{"5":101})"), "logit_bias.5"});
  expect({kText, text(R"("logit_bias":{"258":1})"), "logit_bias"});
  expect({kText, text(R"("logit_bias":{"99999999":1})"), "logit_bias"});
  expect({kText, text(R"("stop":["a",1])"), "stop[1]"});
  expect({kText, text("\"stop\":[" + repeated("\"a\"", 17) + "]"), "stop"});
  expect({kText, text(R"("stream_options":{"include_usage":1})"), "stream_options.include_usage"});
  expect({kText, text(R"("logprobs":21)"), "logprobs"});
  expect({kText, text(R"("logprobs":-1)"), "logprobs"});
  expect({kText, text(R"("logprobs":true)"), "logprobs"});
  expect({kText, text(R"("best_of":129)"), "best_of"});
  expect({kText, text(R"("max_tokens":2,"min_tokens":3)"), "min_tokens"});
  expect({kChat, chat(R"("logprobs":1)"), "logprobs"});
  expect({kChat, chat(R"("logprobs":true,"top_logprobs":21)"), "top_logprobs"});
  expect({kChat, chat(R"("top_logprobs":1)"), "top_logprobs"});
  expect({kChat, chat(R"("max_completion_tokens":-5)"), "max_completion_tokens"});
}

TEST_F(BadRequest, FanOut) {
  expect({kText, text(R"("n":9)"), "n"});
  expect({kChat, chat(R"("n":9)"), "n"});
  expect({kText, text(R"("n":1,"best_of":9)"), "best_of"});
  expect({kText, text(R"("n":3,"best_of":2)"), "best_of"});
  expect({kText, text(R"("n":1,"best_of":2,"stream":true)"), "best_of"});
  expect({kText, "{\"prompt\":[" + repeated("\"a\"", 9) + "]}", "prompt"});
  expect({kText, "{\"prompt\":[" + repeated("[1]", 9) + "]}", "prompt"});
  expect({kText, "{\"n\":3,\"prompt\":[" + repeated("[1]", 3) + "]}", "prompt"});
  expect({kText, "{\"prompt\":[" + repeated("\"a\"", 100000) + "]}", "prompt"});
}

TEST_F(BadRequest, Prompts) {
  for (const char* prompt :
       {"1", "{}", "true", "[]", "\"\"", "[1,\"a\"]", "[\"a\",1]", "[[]]", "[[\"a\"]]", "[[[1]]]",
        "[-1]", "[1.5]", "[2147483648]", "[1e400]", "[\"\"]"}) {
    const std::string body = std::string("{\"prompt\":") + prompt + "}";
    const json answer = post(kText, body);
    EXPECT_EQ(status(), 400) << body;
    EXPECT_EQ(answer["error"]["param"].get<std::string>().substr(0, 6), "prompt") << answer;
  }
  expect({kText, "{}", "prompt"});
  expect({kText, R"({"prompt":null})", "prompt"});
  expect({kText, R"({"prompt":[258]})", "prompt"});
  expect({kText, R"({"prompt":[[1],[2147483647]]})", "prompt"});
  expect({kText, text(R"("suffix":"x")"), "suffix"});
}

TEST_F(BadRequest, Messages) {
  const std::pair<const char*, const char*> rows[] = {
      {"null", "messages"},
      {"[]", "messages"},
      {"\"hi\"", "messages"},
      {"[\"hi\"]", "messages[0]"},
      {"[{}]", "messages[0].role"},
      {R"([{"role":"wizard","content":"x"}])", "messages[0].role"},
      {R"([{"role":1}])", "messages[0].role"},
      {R"([{"role":"user","content":1}])", "messages[0].content"},
      {R"([{"role":"user","content":{}}])", "messages[0].content"},
      {R"([{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0].text"},
      {R"([{"role":"user","content":["x"]}])", "messages[0].content[0]"},
      {R"([{"role":"user"},
           {"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}])",
       "messages[1].content[0].type"},
      {R"([{"role":"user","content":[{"type":"image_url","text":"x"}]}])",
       "messages[0].content[0].type"},
  };
  for (const auto& [messages, param] : rows)
    expect({kChat, std::string("{\"messages\":") + messages + "}", param});
  expect({kChat, "{}", "messages"});
  expect({kChat, "{\"messages\":[" + repeated(R"({"role":"user"})", 4097) + "]}", "messages"});
  expect({kChat, chat(R"("tool_choice":"required","tools":[{"type":"function"}])"), "tool_choice"});
  expect(
      {kChat, chat(R"("tool_choice":{"type":"function","function":{"name":"f"}})"), "tool_choice"});
}

TEST_F(BadRequest, Formats) {
  const std::pair<const char*, const char*> rows[] = {
      {R"("response_format":"json")", "response_format"},
      {R"("response_format":{})", "response_format.type"},
      {R"("response_format":{"type":"xml"})", "response_format.type"},
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema"},
      {R"("response_format":{"type":"json_schema","json_schema":{}})",
       "response_format.json_schema.schema"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":{"type":"nonsense"}}})",
       "response_format.json_schema.schema"},
      {R"("json_schema":{"type":"nonsense"})", "json_schema"},
      {R"("guided_json":"{")", "guided_json"},
      {R"("guided_json":1)", "guided_json"},
      {R"("grammar":1)", "grammar"},
      {R"("grammar":"root ::= \"a\"","response_format":{"type":"json_object"})", "grammar"},
      {R"("guided_choice":["a"],"grammar":"root ::= \"a\"")", "guided_choice"},
      {R"("guided_choice":["a"],"json_schema":{"type":"object"})", "guided_choice"},
      {R"("guided_choice":[])", "guided_choice"},
      {R"("guided_choice":["a",""])", "guided_choice[1]"},
      {R"("guided_regex":"a+")", "guided_regex"},
      {R"("structured_outputs":{"choice":["a"]})", "structured_outputs"},
      {R"("stop_token_ids":[2])", "stop_token_ids"},
      {R"("prompt_logprobs":1)", "prompt_logprobs"},
  };
  for (const auto& [field, param] : rows) expect({kChat, chat(field), param});
}

TEST_F(BadRequest, AnAnswerHasATokenAtLeast) {
  expect({kText, R"({"prompt":"1234","max_tokens":0})", "max_tokens"});
  expect({kText, R"({"prompt":"1234","max_tokens":0,"logprobs":1})", "max_tokens"});
  expect({kChat, chat("\"max_tokens\":0"), "max_tokens"});
  expect({kChat, chat("\"max_completion_tokens\":0"), "max_tokens"});
}

// What only a lane can know is answered as what was known before.
TEST_F(BadRequest, WhatNeverFitsTheMemory) {
  dispatcher.lane->script = [this](const GenerateRequest&, GenerateSink& sink) {
    dispatcher.lane->requests.clear();
    GenerateResult result;
    result.status = absl::OutOfRangeError("found a prompt of 9 tokens");
    sink.on_end(result);
  };
  expect({kText, R"({"prompt":"1234"})", "prompt", "context_length_exceeded"});
  expect({kChat, chat("\"n\":1"), "messages", "context_length_exceeded"});
  expect({"/v1/contexts", R"({"text":"1234"})", "text", "context_length_exceeded"});
}

// A runtime that names no limit has none.
TEST_F(BadRequest, AModelWithoutALimitTakesEveryLength) {
  dispatcher.lane->model_.max_tokens = 0;
  call("POST", kText, R"({"prompt":"1234","max_tokens":0,"echo":true})");
  EXPECT_EQ(status(), 200);
  call("POST", kText, R"({"prompt":"1234"})");
  EXPECT_EQ(status(), 200);
}

TEST_F(BadRequest, TooLongIsNeverCut) {
  dispatcher.max_prompt_tokens = 10;
  const json answer = post(kText, R"({"prompt":"01234567890"})");
  EXPECT_EQ(status(), 400);
  EXPECT_EQ(answer["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(answer["error"]["param"], "prompt");
  EXPECT_THAT(answer["error"]["message"], HasSubstr("found 11 tokens, expected at most 10"));
  expect({kChat, chat("\"n\":1"), "messages", "context_length_exceeded"});
  dispatcher.max_prompt_tokens = 0;
  dispatcher.lane->model_.max_tokens = 4;
  expect({kText, R"({"prompt":"1234"})", "prompt", "context_length_exceeded"});
  call("POST", kText, R"({"prompt":"1234","max_tokens":0,"echo":true})");
  EXPECT_EQ(status(), 200);
  call("POST", kText, R"({"prompt":"123"})");
  EXPECT_EQ(status(), 200);
}

TEST_F(BadRequest, OtherRoutes) {
  expect({"/tokenize", "{}", "prompt"});
  expect({"/tokenize", R"({"content":1})", "content"});
  expect({"/tokenize", R"({"content":"a","add_special":"yes"})", "add_special"});
  expect({"/detokenize", "{}", "tokens"});
  expect({"/detokenize", R"({"tokens":[258]})", "tokens[0]"});
  expect({"/detokenize", R"({"tokens":[-1]})", "tokens[0]"});
  expect({"/detokenize", R"({"tokens":"abc"})", "tokens"});
  expect({"/v1/contexts", "{}", "text"});
  expect({"/v1/contexts", R"({"text":""})", "text"});
  expect({"/v1/contexts", R"({"text":"a","messages":[{"role":"user"}]})", "text"});
  expect({"/v1/contexts", R"({"template":false,"messages":[{"role":"user"}]})", "messages"});
  expect({kChat, chat(R"("context":"ctx_none")"), "context", "not_found", 404});
  expect({kChat, chat(R"("service_tier":"priority")"), "", "permission_denied", 403});
  expect({"/v1/embeddings", "{}", "", "unsupported", 501});
}

TEST_F(BadRequest, UnknownFields) {
  dispatcher.serve.server.unknown_fields = "reject";
  expect({kText, text(R"("n_discard":-1)"), "n_discard"});
  expect({kChat, R"({"messages":[{"role":"user","chat_parser":"x"}]})", "messages[0].chat_parser"});
  dispatcher.serve.server.unknown_fields = "warn";
  call("POST", kText, text(R"("n_discard":-1)"));
  EXPECT_EQ(status(), 200);
  EXPECT_THAT(logged, testing::ElementsAre(HasSubstr("n_discard")));
  dispatcher.serve.server.unknown_fields = "ignore";
  call("POST", kText, text(R"("n_discard":-1)"));
  EXPECT_EQ(status(), 200);
  EXPECT_EQ(logged.size(), 1u);
}

TEST_F(BadRequest, HeadersAreChecked) {
  base.headers = {{"X-Conversation-Id", std::string(257, 'a')}};
  expect({kText, text("\"n\":1"), "X-Conversation-Id"});
  base.headers = {{"X-Varve-Arm", "b"}};
  expect({kText, text("\"n\":1"), "", "permission_denied", 403});
  base.headers = {{"X-Varve-Arm", ""}};  // as if it were not there
  call("POST", kText, text("\"n\":1"));
  EXPECT_EQ(status(), 200);
}

}  // namespace
}  // namespace varve::http
