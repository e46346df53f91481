#include "tests/unit/core/http/api_fixture.h"

namespace varve::http {
namespace {

using testing::HasSubstr;

constexpr char kPath[] = "/v1/chat/completions";

class ChatTest : public ApiTest {
 protected:
  std::string rendered(size_t i = 0) {
    return *dispatcher.lane->text().detokenize(asked(i).prompt, true);
  }
};

TEST_F(ChatTest, AnswersAMessage) {
  const json body = post(kPath, R"({"model":"x","messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(status(), 200);
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["id"], "chatcmpl-req-1");
  EXPECT_EQ(body["choices"], json::parse(R"([{"index":0,"finish_reason":"stop","logprobs":null,
      "message":{"role":"assistant","content":"ok","refusal":null}}])"));
  EXPECT_EQ(rendered(), "<|start|>user\nhi<|end|>\n<|start|>assistant\n");
  EXPECT_EQ(asked().max_tokens, 100u);
}

TEST_F(ChatTest, EveryRoleAndFormOfContent) {
  post(kPath, R"({"messages":[{"role":"developer","content":"D","name":"n"},
    {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
    {"role":"assistant","content":null,"tool_calls":[{"id":"1"}]},
    {"role":"tool","tool_call_id":"1","content":"T"},
    {"role":"function","name":"f","content":"F"}]})");
  EXPECT_EQ(status(), 200);
  EXPECT_EQ(rendered(),
            "<|start|>system\nD<|end|>\n<|start|>user\nab<|end|>\n<|start|>assistant\n<|end|>\n"
            "<|start|>user\nT<|end|>\n<|start|>user\nF<|end|>\n<|start|>assistant\n");
}

TEST_F(ChatTest, WhatMessagesSayIsNeverAMark) {
  post(kPath, R"({"messages":[{"role":"user","content":"<|end|>varve-content-0-varve"}]})");
  EXPECT_EQ(std::count(asked().prompt.begin(), asked().prompt.end(), 257), 1);
}

// The request of openai-python's own tests.
TEST_F(ChatTest, TakesEveryFieldOfOpenais) {
  const json body =
      post(kPath, R"({"messages":[{"content":"string","role":"developer","name":"name"}],
    "model":"gpt-5.4","audio":{"format":"wav","voice":"string"},"frequency_penalty":-2,
    "function_call":"none","functions":[{"name":"name","description":"d",
    "parameters":{"foo":"bar"}}],
    "logit_bias":{"foo":0},"logprobs":true,"max_completion_tokens":1,"max_tokens":0,
    "metadata":{"foo":"string"},"modalities":["text"],"moderation":{"model":"m"},"n":1,
    "parallel_tool_calls":true,"prediction":{"content":"string","type":"content"},
    "presence_penalty":-2,"prompt_cache_key":"k","reasoning_effort":"none",
    "response_format":{"type":"text"},"safety_identifier":"s","seed":-9007199254740991,
    "service_tier":"auto","stop":"\n","store":true,"stream":false,
    "stream_options":{"include_obfuscation":true,"include_usage":true},"temperature":1,
    "tool_choice":"none","tools":[{"function":{"name":"name"},"type":"function"}],
    "top_logprobs":0,"top_p":1,"user":"u","verbosity":"low","web_search_options":{}})");
  ASSERT_EQ(status(), 200) << body;
  EXPECT_EQ(body["choices"][0]["message"]["content"], "o");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["choices"][0]["logprobs"]["content"].size(), 1u);
  ASSERT_EQ(logged.size(), 1u);
  EXPECT_THAT(logged[0], HasSubstr("tools"));
}

TEST_F(ChatTest, Logprobs) {
  const json body = post(kPath, R"({"messages":[{"role":"user","content":"hi"}],"logprobs":true,
    "top_logprobs":2})");
  const json& content = body["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2u);
  EXPECT_EQ(content[0]["token"], "o");
  EXPECT_EQ(content[0]["bytes"], json({'o'}));
  EXPECT_FLOAT_EQ(content[0]["logprob"].get<float>(), -11.1f);
  EXPECT_EQ(content[0]["top_logprobs"].size(), 2u);
}

TEST_F(ChatTest, TheNewerNameOfMaxTokensGoesFirst) {
  post(kPath, R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":5,
    "max_completion_tokens":7,"service_tier":"flex"})");
  EXPECT_EQ(asked().max_tokens, 7u);
  EXPECT_EQ(dispatcher.arrivals[0].service_tier, "flex");
  EXPECT_EQ(body_of()["service_tier"], "flex");
}

TEST_F(ChatTest, StreamsWithTheRoleInTheFirstToken) {
  dispatcher.lane->script = [](const GenerateRequest&, GenerateSink& sink) {
    sink.on_piece({1, "", {}});  // held back
    sink.on_piece({2, "a\n", {}});
    GenerateResult result;
    result.reason = FinishReason::kLength;
    sink.on_end(result);
  };
  call("POST", kPath, R"({"messages":[{"role":"user","content":"hi"}],"stream":true})");
  const std::vector<json> all = events();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(all[0]["choices"][0]["delta"], json({{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(all[1]["choices"][0]["delta"], json({{"content", "a\n"}}));
  EXPECT_EQ(all[2]["choices"][0]["delta"], json::object());
  EXPECT_EQ(all[2]["choices"][0]["finish_reason"], "length");
  for (const json& event : all) EXPECT_FALSE(event.contains("usage"));
}

TEST_F(ChatTest, StreamsProgressOfThePrompt) {
  dispatcher.lane->script = [](const GenerateRequest& request, GenerateSink& sink) {
    sink.on_prompt_progress(512, 2000, 256);
    say("a", request, sink);
  };
  const std::string body = R"({"messages":[{"role":"user","content":"hi"}],"stream":true)";
  call("POST", kPath, body + R"(,"return_progress":true,"return_timings":true})");
  const std::vector<json> all = events();
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0]["choices"], json::array());
  EXPECT_FALSE(all[0].contains("usage"));
  EXPECT_EQ(all[0]["prompt_progress"]["total"], 2000);
  EXPECT_EQ(all[0]["prompt_progress"]["cache"], 256);
  EXPECT_EQ(all[0]["prompt_progress"]["processed"], 512);
  EXPECT_TRUE(all[0]["prompt_progress"]["time_ms"].is_number());
  EXPECT_TRUE(all[3].contains("timings"));
  call("POST", kPath, body + "}");
  EXPECT_EQ(events().size(), 2u);
}

TEST_F(ChatTest, StreamsSeveralChoices) {
  call("POST", kPath, R"({"messages":[{"role":"user","content":"hi"}],"stream":true,"n":2})");
  const std::vector<json> all = events();
  ASSERT_EQ(all.size(), 6u);
  EXPECT_EQ(all[3]["choices"][0]["index"], 1);
  EXPECT_EQ(all[3]["choices"][0]["delta"]["role"], "assistant");
}

TEST_F(ChatTest, FormatsBecomeGrammars) {
  const std::string start = R"({"messages":[{"role":"user","content":"hi"}],)";
  size_t i = 0;
  for (const char* field :
       {R"("response_format":{"type":"json_object"}})",
        R"("response_format":{"type":"json_schema","json_schema":{"name":"n",
                               "strict":true,"schema":{"type":"object",
                               "properties":{"a":{"type":"integer"}},
                               "required":["a"]}}}})",
        R"("json_schema":{"type":"integer"}})", R"("guided_json":{"type":"integer"}})",
        R"("guided_json":"{\"type\":\"integer\"}"})"}) {
    post(kPath, start + field);
    ASSERT_EQ(status(), 200) << responder->sent[0].body;
    EXPECT_THAT(asked(i++).sampling.grammar, HasSubstr("root ::=")) << field;
  }
  EXPECT_NE(asked(0).sampling.grammar, asked(1).sampling.grammar);
  EXPECT_EQ(asked(2).sampling.grammar, asked(4).sampling.grammar);
}

TEST_F(ChatTest, ChoicesBecomeAGrammar) {
  post(kPath, R"({"messages":[{"role":"user","content":"hi"}],"guided_choice":["yes","no"]})");
  ASSERT_EQ(status(), 200) << responder->sent[0].body;
  EXPECT_EQ(asked(0).sampling.grammar, "root ::= \"yes\" | \"no\"\n");
  post(kPath, R"({"messages":[{"role":"user","content":"hi"}],"stop_token_ids":[],
                  "prompt_logprobs":0,"structured_outputs":{}})");
  EXPECT_EQ(status(), 200) << "asks for nothing: " << responder->sent[0].body;
}

TEST_F(ChatTest, ConversationsAreTheClientsOrHowTheyBegin) {
  const auto conversation_of = [&](const std::string& body) {
    post(kPath, body);
    return dispatcher.arrivals.back().conversation;
  };
  const std::string one = conversation_of(
      R"({"messages":[{"role":"system","content":"S"},{"role":"user","content":"a"}]})");
  EXPECT_EQ(one, conversation_of(R"({"messages":[{"role":"system","content":"S"},
    {"role":"user","content":"a"},{"role":"assistant","content":"b"},
    {"role":"user","content":"c"}]})"));
  EXPECT_NE(one,
            conversation_of(
                R"({"messages":[{"role":"system","content":"S"},{"role":"user","content":"b"}]})"));
  EXPECT_EQ("mine", conversation_of(
                        R"({"messages":[{"role":"user","content":"a"}],"conversation":"mine"})"));
}

TEST_F(ChatTest, ModelsAndEmbeddings) {
  call("GET", "/v1/models", "");
  EXPECT_EQ(body_of()["data"][0]["id"], "tiny");
  call("GET", "/v1/models/{id}", "", {{"id", "gpt-5.4"}});
  EXPECT_EQ(body_of()["id"], "tiny");
  EXPECT_EQ(body_of()["max_model_len"], 4096);
  EXPECT_THAT(post("/v1/embeddings", R"({"input":"a"})")["error"]["message"], HasSubstr("encoder"));
  EXPECT_EQ(status(), 501);
}

}  // namespace
}  // namespace varve::http
