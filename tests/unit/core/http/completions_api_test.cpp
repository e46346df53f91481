#include "tests/unit/core/http/api_fixture.h"

namespace varve::http {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kPath[] = "/v1/completions";

class CompletionsTest : public ApiTest {};

TEST_F(CompletionsTest, AnswersAText) {
  const json body = post(kPath, R"({"model":"any","prompt":"hi","temperature":null,"stop":null})");
  EXPECT_EQ(status(), 200);
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["id"], "cmpl-req-1");
  EXPECT_EQ(body["model"], "tiny");
  EXPECT_EQ(body["service_tier"], "default");
  EXPECT_EQ(body["choices"],
            json::parse(R"([{"index":0,"text":"ok","finish_reason":"stop","logprobs":null}])"));
  EXPECT_EQ(body["usage"], json::parse(R"({"prompt_tokens":2,"completion_tokens":2,
      "total_tokens":4,"prompt_tokens_details":{"cached_tokens":1}})"));
  EXPECT_TRUE(responder->sent[0].headers.empty());
  EXPECT_EQ(asked().prompt, bytes_of("hi"));
  EXPECT_EQ(asked().max_tokens, 16u);
  EXPECT_EQ(asked().sampling.temperature, 1);
  EXPECT_EQ(asked().tenant, "tenant-a");
}

TEST_F(CompletionsTest, ReadsEveryField) {
  post(kPath, R"({"prompt":"hi","max_tokens":9,"min_tokens":2,"temperature":0.5,"top_p":0.9,
    "top_k":7,"min_p":0.1,"presence_penalty":1,"frequency_penalty":-1,"repetition_penalty":1.2,
    "seed":-9007199254740991,"stop":["x","","y"],"ignore_eos":true,"cache_prompt":false,
    "logit_bias":{"65":-100,"foo":0},"grammar":"root ::= \"a\"","return_timings":true,
    "user":"u","metadata":{"a":null},"n_discard":-1})");
  ASSERT_EQ(status(), 200);
  const GenerateRequest& request = asked();
  EXPECT_EQ(request.max_tokens, 9u);
  EXPECT_EQ(request.min_tokens, 2u);
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.top_p, 0.9);
  EXPECT_EQ(request.sampling.top_k, 7u);
  EXPECT_EQ(request.sampling.min_p, 0.1);
  EXPECT_EQ(request.sampling.presence_penalty, 1);
  EXPECT_EQ(request.sampling.frequency_penalty, -1);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.2);
  EXPECT_EQ(request.sampling.seed, static_cast<uint64_t>(-9007199254740991));
  EXPECT_EQ(request.sampling.grammar, "root ::= \"a\"");
  EXPECT_THAT(request.sampling.logit_bias, ElementsAre(std::pair<int32_t, float>(65, -100)));
  EXPECT_THAT(request.stop, ElementsAre("x", "y"));
  EXPECT_TRUE(request.ignore_end);
  EXPECT_FALSE(request.keeps_prefix);
  EXPECT_TRUE(request.wants_timings);
  EXPECT_THAT(logged, ElementsAre(HasSubstr("foo")));
}

TEST_F(CompletionsTest, AnswersAreClippedToTheClassAndTheModel) {
  post(kPath, R"({"prompt":"hi","max_tokens":1000})");
  EXPECT_EQ(asked(0).max_tokens, 100u);  // of the class
  dispatcher.lane->model_.max_tokens = 12;
  const json body = post(kPath, R"({"prompt":"hi","max_tokens":50.0})");
  EXPECT_EQ(asked(1).max_tokens, 10u);
}

TEST_F(CompletionsTest, EveryFormOfPrompt) {
  post(kPath, R"({"prompt":[104,105]})");
  EXPECT_EQ(asked(0).prompt, bytes_of("hi"));
  const json texts = post(kPath, R"({"prompt":["a","b"],"n":2})");
  ASSERT_EQ(texts["choices"].size(), 4u);
  EXPECT_EQ(texts["choices"][3]["index"], 3);
  EXPECT_EQ(asked(2).prompt, bytes_of("a"));
  EXPECT_EQ(asked(3).prompt, bytes_of("b"));
  EXPECT_EQ(texts["usage"]["prompt_tokens"], 2);  // each prompt once
  EXPECT_EQ(texts["usage"]["completion_tokens"], 8);
  EXPECT_EQ(asked(2).sampling.seed, asked(1).sampling.seed + 1);
  const json lists = post(kPath, R"({"prompt":[[65],[66,67]]})");
  ASSERT_EQ(lists["choices"].size(), 2u);
  EXPECT_EQ(asked(6).prompt, bytes_of("BC"));
  // Marks in a raw prompt are marks.
  post(kPath, R"({"prompt":"<|start|>x"})");
  EXPECT_EQ(asked(7).prompt, (std::vector<int32_t>{256, 'x'}));
}

// The log-likelihood request of lm-eval.
TEST_F(CompletionsTest, EchoWithLogprobsScoresThePrompt) {
  answer_with("!?");
  const json body = post(kPath, R"({"prompt":[[65,195,188]],"echo":true,"logprobs":1,
    "max_tokens":1,"temperature":0,"seed":1234})");
  ASSERT_EQ(status(), 200) << body;
  EXPECT_EQ(asked().n_logprobs, 1);
  EXPECT_EQ(asked().n_prompt_logprobs, 1);
  EXPECT_TRUE(asked().ignore_end);
  const json& choice = body["choices"][0];
  EXPECT_EQ(choice["text"], "Aü!");
  EXPECT_EQ(choice["finish_reason"], "length");
  const json& logprobs = choice["logprobs"];
  EXPECT_EQ(logprobs["tokens"], json({"A", "bytes:\\xc3", "bytes:\\xbc", "!"}));
  EXPECT_EQ(logprobs["text_offset"], json({0, 1, 2, 2}));
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_FLOAT_EQ(logprobs["token_logprobs"][1].get<float>(), -19.5f);
  EXPECT_FLOAT_EQ(logprobs["token_logprobs"][3].get<float>(), -3.3f);
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  ASSERT_EQ(logprobs["top_logprobs"][3].size(), 2u);  // the likeliest and the token itself
  EXPECT_EQ(logprobs["top_logprobs"][3]["!"], logprobs["token_logprobs"][3]);
}

TEST_F(CompletionsTest, EchoWithoutAnAnswer) {
  answer_with("");
  dispatcher.lane->script = [](const GenerateRequest& request, GenerateSink& sink) {
    EXPECT_EQ(request.max_tokens, 0u);
    say("", request, sink);
  };
  const json body = post(kPath, R"({"prompt":"AB","echo":true,"logprobs":0,"max_tokens":0})");
  EXPECT_EQ(body["choices"][0]["text"], "AB");
  EXPECT_EQ(body["choices"][0]["logprobs"]["tokens"].size(), 2u);
  EXPECT_EQ(body["choices"][0]["logprobs"]["top_logprobs"][1], json({{"B", -6.6f}}));
}

TEST_F(CompletionsTest, BestOfAnswersTheLikeliest) {
  dispatcher.lane->script = [n = 0](const GenerateRequest& request, GenerateSink& sink) mutable {
    const char* texts[] = {"zz", "a", "mm"};  // logprobs fall with the letter
    say(texts[n++], request, sink);
  };
  const json body = post(kPath, R"({"prompt":"x","n":2,"best_of":3})");
  ASSERT_EQ(body["choices"].size(), 2u);
  EXPECT_EQ(body["choices"][0]["text"], "a");
  EXPECT_EQ(body["choices"][1]["text"], "mm");
  EXPECT_EQ(body["choices"][1]["index"], 1);
  EXPECT_TRUE(body["choices"][0]["logprobs"].is_null());  // not asked for
  EXPECT_EQ(body["usage"]["completion_tokens"], 5);
}

TEST_F(CompletionsTest, StreamsAChunkPerToken) {
  answer_with("abc");
  call("POST", kPath, R"({"prompt":"hi","stream":true,"logprobs":0,
    "stream_options":{"include_usage":true,"continuous_usage_stats":false,"other":1}})");
  const std::vector<json> all = events();
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all[0]["choices"][0]["text"], "a");
  EXPECT_TRUE(all[0]["choices"][0]["finish_reason"].is_null());
  EXPECT_EQ(all[2]["choices"][0]["logprobs"]["text_offset"], json({2}));
  EXPECT_EQ(all[3]["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(all[3]["choices"][0]["text"], "");
  for (size_t i = 0; i < 4; ++i) EXPECT_FALSE(all[i].contains("usage"));
  EXPECT_EQ(all[4]["choices"], json::array());
  EXPECT_EQ(all[4]["usage"]["completion_tokens"], 3);
  EXPECT_EQ(responder->heads.size(), 1u);
  EXPECT_EQ(responder->heads[0].content_type, "text/event-stream");
}

TEST_F(CompletionsTest, ContinuousUsageCounts) {
  call("POST", kPath, R"({"prompt":"hi","stream":true,
    "stream_options":{"include_usage":true,"continuous_usage_stats":true}})");
  const std::vector<json> all = events();
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0]["usage"]["completion_tokens"], 1);
  EXPECT_EQ(all[1]["usage"]["completion_tokens"], 2);
  EXPECT_EQ(all[1]["usage"]["prompt_tokens"], 2);
}

TEST_F(CompletionsTest, StreamEchoesFirst) {
  call("POST", kPath, R"({"prompt":"hi","stream":true,"echo":true,"logprobs":0})");
  const std::vector<json> all = events();
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0]["choices"][0]["text"], "hi");
  EXPECT_EQ(all[0]["choices"][0]["logprobs"]["tokens"], json({"h", "i"}));
  EXPECT_EQ(all[1]["choices"][0]["logprobs"]["text_offset"], json({2}));
}

TEST_F(CompletionsTest, AFullQueueIsA429AlsoForTheSecondChoice) {
  dispatcher.lane->n_accepted = 0;
  post(kPath, R"({"prompt":"hi"})");
  EXPECT_EQ(status(), 429);
  EXPECT_THAT(responder->sent[0].headers, testing::Contains(testing::Pair("Retry-After", "3")));
  dispatcher.lane->n_accepted = 1;
  for (const char* stream : {"true", "false"}) {
    dispatcher.lane->requests.clear();
    post(kPath, std::string(R"({"prompt":"hi","n":2,"stream":)") + stream + "}");
    EXPECT_EQ(status(), 429);
    EXPECT_EQ(responder->written, "");
  }
  // The first choice still runs: it is cancelled, and the answer waits for its end.
  dispatcher.lane->requests.clear();
  dispatcher.lane->script = nullptr;
  call("POST", kPath, R"({"prompt":"hi","n":2})");
  EXPECT_TRUE(responder->sent.empty());
  EXPECT_EQ(dispatcher.lane->cancel->load(), 1u);
  GenerateResult result;
  result.reason = FinishReason::kCancelled;
  result.status = absl::CancelledError("cancelled");
  dispatcher.lane->sinks.back()->on_end(result);
  EXPECT_EQ(status(), 429);
}

TEST_F(CompletionsTest, AFailedChoiceEndsTheOthers) {
  dispatcher.lane->script = nullptr;
  call("POST", kPath, R"({"prompt":"hi","n":2})");
  GenerateResult result;
  result.status = absl::DeadlineExceededError("too slow");
  dispatcher.lane->sinks[0]->on_end(result);
  EXPECT_TRUE(responder->sent.empty());
  EXPECT_EQ(dispatcher.lane->cancel->load(), 1u);
  result.status = absl::CancelledError("cancelled");
  dispatcher.lane->sinks[1]->on_end(result);
  EXPECT_EQ(status(), 504);
}

TEST_F(CompletionsTest, ErrorsInAStream) {
  dispatcher.lane->script = nullptr;
  call("POST", kPath, R"({"prompt":"hi","stream":true})");
  GenerateResult result;
  result.status = absl::UnavailableError("draining");
  dispatcher.lane->sinks[0]->on_end(result);
  EXPECT_EQ(status(), 503);  // nothing was sent before

  call("POST", kPath, R"({"prompt":"hi","stream":true})");
  dispatcher.lane->sinks[1]->on_piece({65, "A", {}});
  dispatcher.lane->sinks[1]->on_end(result);
  EXPECT_TRUE(responder->sent.empty());
  const std::vector<json> all = events();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[1]["error"]["message"], "draining");
}

TEST_F(CompletionsTest, ALeavingClientCancels) {
  dispatcher.lane->script = nullptr;
  call("POST", kPath, R"({"prompt":"hi","stream":true})");
  EXPECT_EQ(dispatcher.lane->cancel->load(), 0u);
  responder->leave();
  EXPECT_EQ(dispatcher.lane->cancel->load(), 1u);
}

TEST_F(CompletionsTest, AdminsSeeAndChooseTheArm) {
  base.who.scope = Scope::kAdmin;
  base.headers = {{"x-varve-arm", "b"}, {"x-conversation-id", "talk"}};
  post(kPath, R"({"prompt":"hi","return_timings":true})");
  EXPECT_EQ(
      responder->sent[0].headers,
      (Headers{{"X-Varve-Class", "standard"}, {"X-Varve-Arm", "b"}, {"X-Varve-Stack", "main"}}));
  EXPECT_EQ(dispatcher.arrivals[0].forced_arm, "b");
  EXPECT_EQ(dispatcher.arrivals[0].conversation, "talk");
}

TEST_F(CompletionsTest, TimingsWhenAsked) {
  dispatcher.lane->script = [](const GenerateRequest&, GenerateSink& sink) {
    GenerateResult result;
    result.reason = FinishReason::kStop;
    result.arrived = absl::FromUnixMillis(1000);
    result.started = absl::FromUnixMillis(1005);
    result.first_token = absl::FromUnixMillis(1025);
    result.ended = absl::InfinitePast();
    result.has_timings = true;
    result.timings.local_attn_ns = 2'000'000;
    sink.on_end(result);
  };
  const json timings = post(kPath, R"({"prompt":"hi","return_timings":true})")["timings"];
  EXPECT_EQ(timings["queue_ms"], 5);
  EXPECT_EQ(timings["prefill_ms"], 20);
  EXPECT_EQ(timings["ttft_ms"], 25);
  EXPECT_TRUE(timings["total_ms"].is_null());
  EXPECT_EQ(timings["local_attn_ms"], 2);
  EXPECT_FALSE(post(kPath, R"({"prompt":"hi"})").contains("timings"));
}

}  // namespace
}  // namespace varve::http
