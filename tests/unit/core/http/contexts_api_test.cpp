#include <new>

#include "core/http/contexts.h"
#include "core/http/openapi.h"
#include "tests/unit/core/http/api_fixture.h"

namespace varve::http {
namespace {

using testing::HasSubstr;

constexpr char kPath[] = "/v1/contexts";
constexpr char kOne[] = "/v1/contexts/{id}";

class ContextsTest : public ApiTest {
 protected:
  std::string registered(const std::string& body) { return post(kPath, body)["id"]; }
  std::string chat(const std::string& context, const std::string& messages) {
    post("/v1/chat/completions", R"({"context":")" + context + R"(","messages":)" + messages + "}");
    EXPECT_EQ(status(), 200) << responder->sent[0].body;
    return *dispatcher.lane->text().detokenize(dispatcher.lane->requests.back().prompt, true);
  }
  bool shares_prefix() {
    const auto& read = dispatcher.lane->requests.front().prompt;
    const auto& asked_later = dispatcher.lane->requests.back().prompt;
    return asked_later.size() > read.size() &&
           std::equal(read.begin(), read.end(), asked_later.begin());
  }
};

TEST_F(ContextsTest, RegistersListsAndForgets) {
  const json made = post(kPath, R"({"text":"A document.","name":"doc"})");
  ASSERT_EQ(status(), 200) << made;
  EXPECT_EQ(made["object"], "context");
  EXPECT_EQ(made["name"], "doc");
  EXPECT_EQ(made["cached_tokens"], 1);
  EXPECT_EQ(made["tokens"], asked().prompt.size());
  EXPECT_TRUE(asked().pins_prefix);
  EXPECT_EQ(asked().max_tokens, 0u);
  EXPECT_EQ(asked().tenant, "tenant-a");
  EXPECT_EQ(dispatcher.arrivals[0].conversation, made["id"]);
  const std::string id = made["id"];
  call("GET", kPath, "");
  EXPECT_EQ(body_of()["data"], json::array({made}));
  call("GET", kOne, "", {{"id", id}});
  EXPECT_EQ(body_of(), made);
  call("DELETE", kOne, "", {{"id", id}});
  EXPECT_EQ(body_of()["deleted"], true);
  ASSERT_EQ(dispatcher.lane->forgotten.size(), 1u);
  EXPECT_EQ(dispatcher.lane->forgotten[0].first, "tenant-a");
  EXPECT_EQ(dispatcher.lane->forgotten[0].second, asked().prompt);
  call("DELETE", kOne, "", {{"id", id}});
  EXPECT_EQ(status(), 404);
}

TEST_F(ContextsTest, AChatGoesOnInTheDocumentsMessage) {
  const std::string id = registered(R"({"text":"DOC <|end|>"})");
  EXPECT_EQ(chat(id, R"([{"role":"user","content":"Q?"}])"),
            "<|start|>user\nDOC <|end|>\n\nQ?<|end|>\n<|start|>assistant\n");
  EXPECT_TRUE(shares_prefix());
  // The document's text is no mark; the template's marks are.
  EXPECT_EQ(std::count(asked(1).prompt.begin(), asked(1).prompt.end(), 257), 1);
  EXPECT_EQ(chat(id, R"([{"role":"system","content":"Be brief."},{"role":"user","content":"Q?"},
    {"role":"assistant","content":"A"},{"role":"user","content":"R?"}])"),
            "<|start|>user\nDOC <|end|>\n\nBe brief.\n\nQ?<|end|>\n<|start|>assistant\nA<|end|>\n"
            "<|start|>user\nR?<|end|>\n<|start|>assistant\n");
  EXPECT_TRUE(shares_prefix());
  EXPECT_EQ(dispatcher.arrivals.back().conversation, id);
}

TEST_F(ContextsTest, RegisteredMessagesComeFirst) {
  const std::string id = registered(
      R"({"messages":[{"role":"system","content":"S"},{"role":"user","content":"U"},
          {"role":"assistant","content":"A"}]})");
  EXPECT_EQ(chat(id, R"([{"role":"user","content":"Q"}])"),
            "<|start|>system\nS<|end|>\n<|start|>user\nU<|end|>\n<|start|>assistant\nA<|end|>\n"
            "<|start|>user\nQ<|end|>\n<|start|>assistant\n");
  EXPECT_TRUE(shares_prefix());
}

TEST_F(ContextsTest, PlainTextIsForCompletions) {
  const std::string id = registered(R"({"text":"DOC","template":false})");
  EXPECT_EQ(asked().prompt, bytes_of("DOC"));
  const json body =
      post("/v1/completions", R"({"context":")" + id + R"(","prompt":" Q","echo":true})");
  EXPECT_EQ(asked(1).prompt, bytes_of("DOC Q"));
  EXPECT_EQ(body["choices"][0]["text"], "DOC Qok");
  const json refused =
      post("/v1/chat/completions", R"({"context":")" + id + R"(","messages":[{"role":"user"}]})");
  EXPECT_EQ(status(), 400);
  EXPECT_EQ(refused["error"]["param"], "context");
  const std::string other = registered(R"({"text":"DOC"})");
  post("/v1/completions", R"({"context":")" + other + R"(","prompt":"Q"})");
  EXPECT_EQ(status(), 400);
}

TEST_F(ContextsTest, OtherTenantsSeeNothing) {
  const std::string id = registered(R"({"text":"secret"})");
  base.who.tenant = "tenant-b";
  call("GET", kPath, "");
  EXPECT_EQ(body_of()["data"], json::array());
  for (const char* method : {"GET", "DELETE"}) {
    call(method, kOne, "", {{"id", id}});
    EXPECT_EQ(status(), 404);
  }
  post("/v1/chat/completions", R"({"context":")" + id + R"(","messages":[{"role":"user"}]})");
  EXPECT_EQ(status(), 404);
  EXPECT_EQ(body_of()["error"]["param"], "context");
  EXPECT_TRUE(dispatcher.lane->forgotten.empty());
}

TEST_F(ContextsTest, ATenantHasSoManyAndNoMore) {
  const std::string first = registered(R"({"text":"one"})");
  post(kPath, R"({"text":""})");  // refused: takes no place
  EXPECT_EQ(status(), 400);
  registered(R"({"text":"two"})");
  const json refused = post(kPath, R"({"text":"three"})");
  EXPECT_EQ(status(), 409);
  EXPECT_EQ(refused["error"]["code"], "contexts_max");
  base.who.tenant = "tenant-b";
  post(kPath, R"({"text":"three"})");
  EXPECT_EQ(status(), 200);
  base.who.tenant = "tenant-a";
  call("DELETE", kOne, "", {{"id", first}});
  post(kPath, R"({"text":"three"})");
  EXPECT_EQ(status(), 200);
}

TEST_F(ContextsTest, OneThatFailsIsNotThere) {
  dispatcher.lane->n_accepted = 0;
  post(kPath, R"({"text":"one"})");
  EXPECT_EQ(status(), 429);
  dispatcher.lane->n_accepted = 10;
  dispatcher.lane->script = nullptr;
  call("POST", kPath, R"({"text":"one"})");
  call("GET", kPath, "");
  EXPECT_EQ(body_of()["data"], json::array());  // not before it has been read
  call("POST", kPath, R"({"text":"two"})");
  responder->leave();
  EXPECT_EQ(dispatcher.lane->cancel->load(), 1u);
  GenerateResult result;
  result.status = absl::UnavailableError("draining");
  for (const auto& sink : dispatcher.lane->sinks) sink->on_end(result);
  EXPECT_EQ(status(), 503);
  answer_with("");
  registered(R"({"text":"one"})");
  registered(R"({"text":"two"})");
}

TEST_F(ContextsTest, WhatThrowsTakesNoPlace) {
  dispatcher.throws = true;
  for (int i = 0; i < 3; ++i)
    EXPECT_THROW(call("POST", kPath, R"({"text":"one"})"), std::bad_alloc);
  dispatcher.throws = false;
  registered(R"({"text":"one"})");
  registered(R"({"text":"two"})");
}

// A lane keeps full blocks: texts that differ behind the last of them are one to it.
TEST_F(ContextsTest, WhoSharesAPrefixKeepsItForTheOther) {
  dispatcher.serve.server.contexts_max = 9;
  const std::string text(64, 'd');
  const auto completion = [](const std::string& t) {
    return R"({"template":false,"text":")" + t + R"("})";
  };
  const std::string first = registered(completion(text));
  const std::string twin = registered(completion(text));
  const std::string alike = registered(completion(text + "!"));
  dispatcher.lane->n_accepted = 0;
  post(kPath, completion(text));  // refused: takes nothing away
  dispatcher.lane->n_accepted = 100;
  dispatcher.lane->script = [](const GenerateRequest&, GenerateSink& sink) {
    GenerateResult result;
    result.status = absl::CancelledError("gone");
    sink.on_end(result);
  };
  post(kPath, completion(text));
  answer_with("");
  for (const std::string& id : {first, alike}) call("DELETE", kOne, "", {{"id", id}});
  EXPECT_TRUE(dispatcher.lane->forgotten.empty());
  call("DELETE", kOne, "", {{"id", twin}});
  ASSERT_EQ(dispatcher.lane->forgotten.size(), 1u);
  EXPECT_EQ(dispatcher.lane->forgotten[0].second, bytes_of(text));
}

TEST_F(ContextsTest, TogetherTheyHoldAShareOfTheMemory) {
  dispatcher.serve.server.contexts_max = 9;
  dispatcher.lane->now.budget_bytes = 1000;  // of which they may hold half
  dispatcher.lane->script = [](const GenerateRequest&, GenerateSink& sink) {
    GenerateResult result;
    result.reason = FinishReason::kLength;
    result.usage.hot_bytes = 100;
    result.usage.warm_bytes = 200;
    sink.on_end(result);
  };
  const std::string text(64, 'd');
  const std::string first = registered(R"({"text":")" + text + R"("})");
  registered(R"({"text":")" + text + R"("})");  // shares it
  base.who.tenant = "tenant-b";
  const json refused = post(kPath, R"({"text":"another"})");
  EXPECT_EQ(status(), 429);
  EXPECT_EQ(refused["error"]["code"], "held_memory");
  EXPECT_THAT(refused["error"]["message"], HasSubstr("server.held_memory_percent"));
  ASSERT_EQ(dispatcher.lane->forgotten.size(), 1u) << "what was read for it";
  EXPECT_EQ(dispatcher.lane->forgotten[0].first, "tenant-b");
  dispatcher.serve.server.held_memory_percent = 30;
  const size_t n_read = dispatcher.lane->requests.size();
  post(kPath, R"({"text":"another"})");
  EXPECT_EQ(status(), 429);
  EXPECT_EQ(dispatcher.lane->requests.size(), n_read) << "there is no room, so nothing is read";
  dispatcher.serve.server.held_memory_percent = 100;
  registered(R"({"text":"another"})");
}

TEST_F(ContextsTest, OneThatNeverFitsTheShareIsTheClientsMistake) {
  dispatcher.lane->now.budget_bytes = 1000;
  dispatcher.lane->script = [](const GenerateRequest&, GenerateSink& sink) {
    GenerateResult result;
    result.usage.hot_bytes = 501;
    sink.on_end(result);
  };
  const json refused = post(kPath, R"({"text":"a long one"})");
  EXPECT_EQ(status(), 400);
  EXPECT_EQ(refused["error"]["param"], "text");
  EXPECT_EQ(refused["error"]["code"], "context_length_exceeded");
}

TEST_F(ContextsTest, TokensOfAnotherModelAreRefused) {
  const std::string id = registered(R"({"text":"DOC"})");
  const std::string body =
      R"({"context":")" + id +
      R"(","service_tier":"other","messages":[{"role":"user","content":"Q"}]})";
  dispatcher.other->script = dispatcher.lane->script;
  post("/v1/chat/completions", body);
  EXPECT_EQ(status(), 200) << "another stack of the same model";
  EXPECT_EQ(dispatcher.other->requests.size(), 1u);
  dispatcher.other->model_.vocab_size = 300;
  const json refused = post("/v1/chat/completions", body);
  EXPECT_EQ(status(), 409);
  EXPECT_EQ(refused["error"]["param"], "context");
  EXPECT_EQ(refused["error"]["code"], "context_model");
}

TEST_F(ContextsTest, StreamsItsProgress) {
  dispatcher.lane->script = [](const GenerateRequest& request, GenerateSink& sink) {
    sink.on_prompt_progress(10, 20, 0);
    say("", request, sink);
  };
  call("POST", kPath, R"({"text":"one","stream":true})");
  const std::vector<json> all = events();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]["prompt_progress"]["total"], 20);
  EXPECT_EQ(all[1]["object"], "context");
}

TEST_F(ContextsTest, TooLongIsNeverCut) {
  dispatcher.max_prompt_tokens = 20;
  const json refused = post(kPath, R"({"text":"a text of more than that"})");
  EXPECT_EQ(status(), 400);
  EXPECT_EQ(refused["error"]["code"], "context_length_exceeded");
}

class TextApiTest : public ApiTest {};

TEST_F(TextApiTest, TokenizesInBothDialects) {
  const json plain = post("/tokenize", R"({"content":"a<|end|>"})");
  EXPECT_EQ(plain["tokens"], json({97, 257}));
  EXPECT_EQ(plain["count"], 2);
  EXPECT_EQ(post("/tokenize", R"({"prompt":"a<|end|>","add_special_tokens":false,
    "parse_special":false})")["count"],
            8);
  EXPECT_EQ(post("/tokenize", R"({"content":"a","with_pieces":true})")["tokens"],
            json::array({{{"id", 97}, {"piece", "a"}}}));
  EXPECT_EQ(post("/tokenize", R"({"prompt":"ü","return_token_strs":true})")["token_strs"],
            json({"bytes:\\xc3", "bytes:\\xbc"}));
  EXPECT_EQ(post("/tokenize", R"({"messages":[{"role":"user","content":"<|end|>"}]})")["count"],
            std::string("xuser\n<|end|>x\nxassistant\n").size());
  EXPECT_EQ(post("/tokenize", R"({"content":""})")["tokens"], json::array());
}

TEST_F(TextApiTest, Detokenizes) {
  const json body = post("/detokenize", R"({"tokens":[97,257]})");
  EXPECT_EQ(body["content"], "a<|end|>");
  EXPECT_EQ(body["prompt"], "a<|end|>");
  // Half a character is answered, not refused.
  EXPECT_EQ(post("/detokenize", R"({"tokens":[195]})")["content"], "\xEF\xBF\xBD");
}

TEST_F(TextApiTest, TellsTheSpecialTokens) {
  call("GET", "/tokenizer_info", "");
  const json info = body_of();
  EXPECT_EQ(info["eos_token"], "<|end|>");
  EXPECT_EQ(info["eos_token_id"], 257);
  EXPECT_TRUE(info["bos_token"].is_null());
  EXPECT_EQ(info["vocab_size"], 258);
}

class OpenapiTest : public ApiTest {};

TEST_F(OpenapiTest, HasEveryRouteAndNoOther) {
  call("GET", "/openapi.json", "");
  const json document = body_of();
  EXPECT_EQ(document["info"]["version"], "1.2.3");
  add_health_routes(service, routes);
  add_debug_routes(service, routes);
  add_admin_routes(service, routes);
  add_mri_routes(service, routes);
  add_openapi_route(service, routes);
  add_openai_routes(service, routes);
  std::set<std::string> served, documented;
  for (const Route& route : routes) {
    std::string method = route.method;
    for (char& c : method) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    served.insert(method + " " + route.pattern);
  }
  for (const auto& [path, operations] : document["paths"].items()) {
    for (const auto& [method, operation] : operations.items()) {
      documented.insert(method + " " + path);
      EXPECT_TRUE(operation["responses"].contains("500"));
      EXPECT_TRUE(operation.contains("operationId"));
    }
  }
  EXPECT_EQ(documented, served);
}

TEST_F(OpenapiTest, SaysWhatTheChecksAllow) {
  const json& schemas = openapi_document()["components"]["schemas"];
  const json& request = schemas["CompletionRequest"];
  EXPECT_FALSE(request.contains("x-includes"));
  EXPECT_EQ(request["properties"]["top_p"]["type"], json({"number", "null"}));
  EXPECT_EQ(request["properties"]["top_p"]["maximum"], 1);
  EXPECT_EQ(request["properties"]["prompt"]["anyOf"].size(), 4u);  // required: not null
  EXPECT_THAT(request["properties"]["grammar"]["pattern"].get<std::string>(), HasSubstr("u0000"));
  // Every $ref leads somewhere.
  const std::function<void(const json&)> walk = [&](const json& node) {
    if (node.is_object() && node.contains("$ref")) {
      const std::string ref = node["$ref"];
      EXPECT_TRUE(openapi_document().contains(json::json_pointer(ref.substr(1)))) << ref;
    }
    if (node.is_structured()) {
      for (const json& inner : node) walk(inner);
    }
  };
  walk(openapi_document());
}

}  // namespace
}  // namespace varve::http
