#include <cstring>
#include <fstream>
#include <sstream>

#include "core/http/mri_version.h"
#include "mri_fixture.h"

namespace varve::http {
namespace {

using testing::HasSubstr;
using testing::Not;

size_t count_in_file(const std::string& path, const std::string& what) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  size_t n = 0;
  for (size_t at = text.str().find(what); at != std::string::npos;
       at = text.str().find(what, at + 1)) {
    ++n;
  }
  return n;
}

TEST_F(MriTest, NegotiatesTheVersionAsTheTableSays) {
  start_mri();
  const uint64_t ctx = make_context("hello");
  struct Row {
    std::string headers;
    int status;
    std::string echo, code;
  };
  const std::string name = "X-MRI-Version: ";
  const std::vector<Row> rows = {
      {"", 200, "1.0", ""},
      {name + "1.0\r\n", 200, "1.0", ""},
      {name + "1.1\r\n", 200, "1.1", ""},
      {"x-mri-version:1.1 \r\n", 200, "1.1", ""},
      {name + "1.7\r\n", 200, "1.1", ""},
      {name + "2.0\r\n", 400, "1.0", "MRI-E012"},
      {name + "0.9\r\n", 400, "1.0", "MRI-E012"},
      {name + "\r\n", 400, "1.0", "MRI-E010"},
      {name + "1\r\n", 400, "1.0", "MRI-E010"},
      {name + "v1.1\r\n", 400, "1.0", "MRI-E010"},
      {name + "1.1.0\r\n", 400, "1.0", "MRI-E010"},
      {name + "1.01\r\n", 400, "1.0", "MRI-E010"},
      {name + "1,1\r\n", 400, "1.0", "MRI-E010"},
      {name + "1.1 x\r\n", 400, "1.0", "MRI-E010"},
      {name + "1.-1\r\n", 400, "1.0", "MRI-E010"},
      {name + "1.+1\r\n", 400, "1.0", "MRI-E010"},
      {name + "1.\r\n", 400, "1.0", "MRI-E010"},
      {name + "1.1\r\n" + name + "1.1\r\n", 400, "1.0", "MRI-E010"},
      {name + "1." + std::string(10'000, '1') + "\r\n", 400, "1.0", "MRI-E010"},
  };
  const json evict = {{"ctx", ctx}, {"ranges", {{{"first", 0}, {"count", 1}}}}, {"granularity", 1}};
  for (const Row& row : rows) {
    const Answer answer = post("evict_kv", evict, row.headers);
    const std::string shown = row.headers.substr(0, 60);
    ASSERT_EQ(answer.status, row.status) << shown << answer.body;
    EXPECT_EQ(answer.headers.at("x-mri-version"), row.echo) << shown;
    EXPECT_EQ(answer.headers.at("x-mri-supported"), "1.0-1.1") << shown;
    const json body = json::parse(answer.body);
    if (row.status != 200) {
      EXPECT_EQ(body["error"]["code"], row.code) << shown;
      EXPECT_THAT(body["error"]["message"].get<std::string>(), HasSubstr("1.0-1.1"));
      continue;
    }
    for (const char* field : {"confirm_state", "n_refused", "confirm_epoch"}) {
      EXPECT_EQ(body.contains(field), row.echo == "1.1") << shown << field;
    }
  }
}

TEST_F(MriTest, GoesThroughTheFourMethods) {
  start_mri();
  const Answer made =
      post("init_context", {{"tokens", tokens("abcabc")}, {"logits", true}, {"chunk_tokens", 4}});
  ASSERT_EQ(made.status, 200) << made.body;
  const json context = json::parse(made.body);
  EXPECT_EQ(context["n_chunks"], 2);
  EXPECT_EQ(context["usage"]["hot_tokens"], 6);
  ASSERT_EQ(context["logits"].size(), 258u);
  EXPECT_EQ(context["logits"]['a'], 20.0) << "the fake runtime repeats its prompt";

  const json one = {{"ctx", context["ctx"]}, {"tokens", tokens("ab")}, {"all_logits", 1}};
  const Answer stepped = post("forward_step", {{"seqs", {one}}});
  ASSERT_EQ(stepped.status, 200) << stepped.body;
  const json step = json::parse(stepped.body);
  EXPECT_EQ(step["n_tokens"], 2);
  EXPECT_EQ(step["seqs"][0]["position"], 6);
  EXPECT_EQ(step["seqs"][0]["status"], 0);
  EXPECT_EQ(step["seqs"][0]["logits"].size(), 2u);
  EXPECT_EQ(step["seqs"][0]["logits"][1]['c'], 20.0);

  const Answer early = post("get_kv_summary", {{"ctx", context["ctx"]}});
  EXPECT_EQ(early.status, 409);
  EXPECT_EQ(json::parse(early.body)["error"]["code"], "invalid_state");

  const Answer evicted = post("evict_kv",
                              {{"ctx", context["ctx"]},
                               {"granularity", MRI_EVICT_TOKEN},
                               {"ranges", {{{"first", 1}, {"count", 3}}}}},
                              "X-MRI-Version: 1.1\r\n");
  EXPECT_EQ(json::parse(evicted.body)["n_evicted"], 3);
  EXPECT_EQ(json::parse(evicted.body)["confirm_state"], MRI_CONFIRM_DONE);

  const json summary = json::parse(post("get_kv_summary", {{"ctx", context["ctx"]}}).body);
  EXPECT_EQ(summary["kv_epoch"], 1);
  EXPECT_EQ(summary["n_out"], 1);
  EXPECT_EQ(summary["out"][0]["n_tokens"], 5);

  const std::string path = absl::StrCat("DELETE /mri/contexts/", context["ctx"].get<uint64_t>());
  EXPECT_EQ(ask(request_text(path, "X-Api-Key: a\r\n")).status, 200);
  EXPECT_EQ(ask(request_text(path, "X-Api-Key: a\r\n")).status, 404);
  EXPECT_EQ(post("get_kv_summary", {{"ctx", context["ctx"]}}).status, 404);
  EXPECT_EQ(count_in_file(record_path(), "release_context"), 1u);
}

std::string frame_text(std::string text, const std::vector<int32_t>& tokens) {
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint32_t head[3] = {1, static_cast<uint32_t>(text.size()), 0};
  std::string body = "MRIF";
  body.append(reinterpret_cast<const char*>(head), sizeof(head));
  body += text;
  return body.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * 4);
}

TEST_F(MriTest, TakesAndGivesTensors) {
  start_mri();
  const auto post_binary = [&](const std::string& method, const std::string& body) {
    return ask(absl::StrCat("POST /mri/", method,
                            " HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: a\r\nAccept: "
                            "application/octet-stream\r\nContent-Type: application/octet-stream\r\n"
                            "Content-Length: ",
                            body.size(), "\r\n\r\n", body));
  };
  const std::string tensor = R"({"dtype":"i32","shape":[3],"offset":4})";
  const Answer answer =
      post_binary("init_context",
                  frame_text(R"({"logits":true,"tokens":)" + tensor + "}", {999, 'x', 'y', 'z'}));
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.headers.at("content-type"), "application/octet-stream");
  uint32_t head[4];
  ASSERT_GE(answer.body.size(), sizeof(head));
  std::memcpy(head, answer.body.data(), sizeof(head));
  EXPECT_EQ(answer.body.substr(0, 4), "MRIF");
  EXPECT_EQ(head[1], 1u);
  EXPECT_EQ(head[2] % 8, 0u);
  const json body = json::parse(answer.body.substr(16, head[2]));
  EXPECT_EQ(body["logits"], json::parse(R"({"dtype":"f32","shape":[258],"offset":0})"));
  ASSERT_EQ(answer.body.size(), 16 + head[2] + 258 * sizeof(float));
  float logit;
  std::memcpy(&logit, answer.body.data() + 16 + head[2] + 'x' * sizeof(float), sizeof(logit));
  EXPECT_EQ(logit, 20.0f);

  const std::vector<std::string> bad = {
      "",
      "MRIF",
      frame_text("{}", {}).replace(0, 1, "X"),
      frame_text("{}", {}).replace(4, 1, "\2"),
      frame_text("{}", {}).replace(12, 1, "\1"),
      frame_text("{}", {}).replace(8, 4, "\xff\xff\xff\xff"),
      frame_text("{}", {}).replace(8, 1, "\3"),
      frame_text("[", {}),
      frame_text(R"({"tokens":{"dtype":"i32","shape":[2],"offset":0}})", {1}),
      frame_text(R"({"tokens":{"dtype":"i32","shape":[1],"offset":1}})", {1, 2}),
      frame_text(R"({"tokens":{"dtype":"i32","shape":[4611686018427387905],"offset":0}})", {1}),
      frame_text(R"({"tokens":{"dtype":"i32","shape":[1],"offset":18446744073709551612}})", {1}),
      frame_text(R"({"tokens":{"dtype":"f32","shape":[1],"offset":0}})", {1}),
      frame_text(R"({"tokens":{"dtype":"i32","shape":[-1],"offset":0}})", {1}),
      frame_text(R"({"tokens":{"dtype":"i32","shape":[1,1],"offset":0}})", {1}),
      frame_text(R"({"tokens":{}})", {1})};
  for (const std::string& text : bad) {
    const Answer refused = post_binary("init_context", text);
    EXPECT_EQ(refused.status, 400) << text;
    EXPECT_EQ(refused.headers.at("content-type"), "application/json");
  }
}

TEST_F(MriTest, RefusesBadRequests) {
  start_mri();
  const uint64_t ctx = make_context("abc");
  const json range = {{"first", 0}, {"count", 1}};
  const json seq = {{"ctx", ctx}, {"tokens", {1}}};
  const auto with = [](json object, const char* name, json value) {
    object[name] = std::move(value);
    return object;
  };
  const json evict = {{"ctx", ctx}, {"ranges", {range}}};
  const std::vector<std::pair<std::string, json>> bad = {
      {"init_context", {{"tokens", "abc"}}},
      {"init_context", {{"tokens", {1, -1}}}},
      {"init_context", {{"tokens", {1.5}}}},
      {"init_context", {{"tokens", {2147483648}}}},
      {"init_context", {{"tokens", {258}}}},
      {"init_context", {{"tokens", json::array()}, {"logits", true}}},
      {"init_context", {{"tokens", std::vector<int>(4001, 1)}}},
      {"init_context", {{"tokens", {1}}, {"max_tokens", -1}}},
      {"init_context", {{"tokens", {1}}, {"max_tokens", 4001}}},
      {"init_context", {{"tokens", {1}}, {"chunk_tokens", 4294967296}}},
      {"init_context", {{"tokens", {1}}, {"pinned", {{{"first", UINT64_MAX}, {"count", 1}}}}}},
      {"init_context", json::array()},
      {"forward_step", json::object()},
      {"forward_step", {{"seqs", json::array()}}},
      {"forward_step", {{"seqs", {1}}}},
      {"forward_step", {{"seqs", {with(seq, "tokens", json::array())}}}},
      {"forward_step", {{"seqs", {with(seq, "flags", 8)}}}},
      {"forward_step", {{"seqs", {with(seq, "ctx", 0)}}}},
      {"forward_step", {{"seqs", {seq, seq}}}},
      {"forward_step", {{"seqs", {with(seq, "tokens", std::vector<int>(1025, 1))}}}},
      {"get_kv_summary", {{"ctx", ctx}, {"what", 1}}},
      {"get_kv_summary", json::object()},
      {"evict_kv", {{"ctx", ctx}}},
      {"evict_kv", with(evict, "granularity", 4)},
      {"evict_kv", with(evict, "reason", 3)},
      {"evict_kv", with(evict, "ranges", {{{"first", 0}, {"count", "all"}}})},
  };
  for (const auto& [method, body] : bad) {
    const Answer answer = post(method, body);
    EXPECT_EQ(answer.status, 400) << method << body.dump().substr(0, 80) << answer.body;
    EXPECT_TRUE(answer.headers.contains("x-mri-version"));
  }
  EXPECT_EQ(post("forward_step", {{"seqs", {with(seq, "ctx", ctx + 1)}}}).status, 404);
  EXPECT_EQ(ask(request_text("DELETE /mri/contexts/x", "X-Api-Key: a\r\n")).status, 404);
  EXPECT_EQ(post("forward_step", {{"seqs", {seq}}, {"new_in_1_9", {1, 2}}}).status, 200);
}

TEST_F(MriTest, OneFailedSequenceLeavesTheOthers) {
  start_mri();
  const uint64_t first = make_context("abc"), second = make_context("xyz");
  const Answer answer =
      post("forward_step", {{"seqs",
                             {{{"ctx", first}, {"tokens", {300}}, {"logits", true}},
                              {{"ctx", second}, {"tokens", {'x'}}}}}});
  ASSERT_EQ(answer.status, 200) << answer.body;
  const json seqs = json::parse(answer.body)["seqs"];
  EXPECT_EQ(seqs[0]["status"], MRI_E_ARG);
  EXPECT_FALSE(seqs[0].contains("logits"));
  EXPECT_EQ(seqs[1]["status"], MRI_OK);
}

TEST_F(MriTest, ContextsBelongToTheirTenantAndAreCapped) {
  start_mri();
  const uint64_t mine = make_context("secret");
  const json seq = {{"ctx", mine}, {"tokens", {1}}};
  EXPECT_EQ(post("forward_step", {{"seqs", {seq}}}, "", "b").status, 404);
  EXPECT_EQ(post("get_kv_summary", {{"ctx", mine}}, "", "b").status, 404);
  EXPECT_EQ(
      post("evict_kv", {{"ctx", mine}, {"ranges", {{{"first", 0}, {"count", 1}}}}}, "", "b").status,
      404);
  const std::string path = absl::StrCat("DELETE /mri/contexts/", mine);
  EXPECT_EQ(ask(request_text(path, "X-Api-Key: b\r\n")).status, 404);

  // A context that could not be made does not count.
  EXPECT_EQ(post("init_context", {{"tokens", {999}}}).status, 400);
  make_context("two");
  make_context("three");
  const Answer full = post("init_context", {{"tokens", {1}}});
  EXPECT_EQ(full.status, 429);
  EXPECT_TRUE(full.headers.contains("retry-after"));
  make_context("of another", "b");
  EXPECT_EQ(ask(request_text(path, "X-Api-Key: a\r\n")).status, 200);
  make_context("again");
}

// So that the lane's own requests find the rest, whatever clients leave behind.
TEST_F(MriTest, ContextsTogetherHoldAShareOfTheMemory) {
  constexpr int64_t kTokens = 40, kTokenBytes = 64;
  add_lane("fast", 0, kTokens * kTokenBytes);
  start_mri();
  const Answer never = post("init_context", {{"tokens", tokens(std::string(21, 'n'))}});
  EXPECT_EQ(never.status, 400) << "half of them may be held";
  EXPECT_EQ(json::parse(never.body)["error"]["code"], "context_length_exceeded");
  const uint64_t first = make_context(std::string(15, 'a'));
  const Answer beside = post("init_context", {{"tokens", tokens(std::string(6, 'b'))}}, "", "b");
  EXPECT_EQ(beside.status, 429) << beside.body;
  const uint64_t second = make_context(std::string(4, 'b'), "b");
  const auto step = [&](uint64_t ctx, size_t n, const std::string& key) {
    return post("forward_step",
                {{"seqs", {{{"ctx", ctx}, {"tokens", tokens(std::string(n, 's'))}}}}}, "", key);
  };
  EXPECT_EQ(step(first, 1, "a").status, 200) << "20 of 20";
  const Answer full = step(second, 1, "b");
  EXPECT_EQ(full.status, 429);
  EXPECT_TRUE(full.headers.contains("retry-after"));
  EXPECT_EQ(json::parse(full.body)["error"]["code"], "held_memory");
  EXPECT_EQ(post("init_context", {{"tokens", {1}}}, "", "b").status, 429);
  ask(request_text(absl::StrCat("DELETE /mri/contexts/", first), "X-Api-Key: a\r\n"));
  EXPECT_EQ(step(second, 1, "b").status, 200);
  EXPECT_EQ(post("init_context", {{"tokens", tokens(std::string(20, 'e'))}}).status, 429);
  const json evict = {{"ctx", second},
                      {"ranges", {{{"first", 0}, {"count", 5}}}},
                      {"granularity", MRI_EVICT_TOKEN}};
  EXPECT_EQ(post("evict_kv", evict, "", "b").status, 200);
  make_context(std::string(20, 'e'));  // what was evicted is free
}

TEST_F(MriTest, TokensCountAgainstTheKeysQuota) {
  start_mri();
  const uint64_t ctx = make_context("hello");
  EXPECT_EQ(dispatcher_.charged, 5u);
  const json step = {{"seqs", {{{"ctx", ctx}, {"tokens", tokens("abc")}}}}};
  EXPECT_EQ(post("forward_step", step).status, 200);
  EXPECT_EQ(dispatcher_.charged, 8u);
  dispatcher_.quota = absl::ResourceExhaustedError("quota");
  EXPECT_EQ(post("forward_step", step).status, 429);
  EXPECT_EQ(post("init_context", {{"tokens", tokens("x")}}).status, 429);
}

TEST_F(MriTest, CallsOnOneContextWaitForEachOther) {
  start_mri();
  const uint64_t ctx = make_context("abc", "slow");
  const std::string step = request_text("POST /mri/forward_step", "X-Api-Key: slow\r\n",
                                        json{{"seqs", {{{"ctx", ctx}, {"tokens", {1}}}}}}.dump());
  std::vector<RawClient> clients;
  for (int i = 0; i < 4; ++i) clients.push_back(client());
  for (RawClient& one : clients) one.send(step);
  std::set<uint64_t> positions;
  for (RawClient& one : clients) {
    const Answer answer = one.answer();
    ASSERT_EQ(answer.status, 200) << "MRI_E_BUSY would be 503: " << answer.body;
    positions.insert(json::parse(answer.body)["seqs"][0]["position"].get<uint64_t>());
  }
  EXPECT_THAT(positions, testing::ElementsAre(3, 4, 5, 6));
}

TEST_F(MriTest, TooManyCallsOfATenantAreRefusedAndOthersServed) {
  add_lane("slow", 300);
  start_mri();
  const json body = {{"tokens", {1}}};
  std::vector<RawClient> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(client());
    clients.back().send(request_text("POST /mri/init_context", "X-Api-Key: slow\r\n", body.dump()));
  }
  make_context("abc", "b");
  for (RawClient& one : clients) EXPECT_EQ(one.answer().status, 200);
}

TEST_F(MriTest, ADisconnectCancelsAndLeavesNoContext) {
  add_lane("slow", 60'000);
  start_mri();
  {
    RawClient one = client();
    one.send(request_text("POST /mri/init_context", "X-Api-Key: slow\r\n",
                          json{{"tokens", tokens(std::string(3000, 'x'))}}.dump()));
    EXPECT_TRUE(eventually([&] { return server_->open_requests() == 1; }));
    one.reset();
  }
  EXPECT_TRUE(eventually([&] { return server_->open_requests() == 0; }));
  // Ends long before the runtime's pause does, or the test's time-out.
  server_.reset();
  EXPECT_EQ(count_in_file(record_path(), "init_context"), 0u);
}

TEST_F(MriTest, IdleContextsExpire) {
  limits_.idle_timeout = std::chrono::milliseconds(1);
  limits_.sweep_interval = std::chrono::milliseconds(1);
  start_mri();
  for (int i = 0; i < 10; ++i) {
    make_context("abc");
    EXPECT_TRUE(eventually(
        [&] { return count_in_file(record_path(), "release_context") == size_t(i) + 1; }));
  }
}

TEST_F(MriTest, AllContextsAreReleasedWithTheServer) {
  start_mri();
  make_context("abc");
  make_context("abc", "b");
  server_.reset();
  EXPECT_EQ(count_in_file(record_path(), "release_context"), 0u) << "the routes are the test's too";
  routes_.clear();
  EXPECT_EQ(count_in_file(record_path(), "release_context"), 2u);
}

TEST_F(MriTest, LongPromptsLetTheLanesHaveTheirTurn) {
  add_lane("slow", 1);
  start_mri();
  std::atomic<bool> stop{false};
  std::atomic<int> n_turns{0};
  std::thread lane([&] {
    while (!stop) {
      const Turnstile::Pass pass(turnstile_, 1);
      ++n_turns;
    }
  });
  const Answer answer = post("init_context", {{"tokens", std::vector<int>(4000, 'x')}}, "", "slow");
  EXPECT_EQ(json::parse(answer.body)["n_chunks"], 8);
  stop = true;
  lane.join();
  EXPECT_GT(n_turns, 0);
}

}  // namespace
}  // namespace varve::http
