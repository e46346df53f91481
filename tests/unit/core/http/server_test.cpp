#include "core/http/server.h"

#include <sys/resource.h>

#include "core/http/sse.h"
#include "server_fixture.h"

namespace varve::http {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

TEST_F(ServerTest, AnswersAndKeepsTheConnection) {
  start();
  RawClient one = client();
  for (int i = 0; i < 3; ++i) {
    one.send(request_text("POST /echo", "Authorization: Bearer user\r\n", "{\"i\":1}"));
    const Answer answer = one.answer();
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, "{\"i\":1}");
    EXPECT_EQ(answer.headers.at("content-type"), "application/json");
  }
  EXPECT_EQ(server_->connections(), 1u);
  EXPECT_TRUE(eventually([&] { return server_->open_requests() == 0; }));
}

TEST_F(ServerTest, AnswersPipelinedRequestsInOrder) {
  start();
  RawClient one = client();
  std::string bytes;
  for (int i = 0; i < 50; ++i) {
    bytes += request_text(absl::StrCat("GET /v1/things/", i), "X-Api-Key: user\r\n");
  }
  one.send(bytes);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(one.answer().body, absl::StrCat(i, " of user"));
}

// While the last request of a batch is taken from the buffer, the read of the next batch is
// pending.
TEST_F(ServerTest, AnswersBatchesOfPipelinedRequests) {
  start();
  RawClient one = client();
  for (int batch = 1; batch <= 100'000; batch *= 10) {
    std::string bytes;
    for (int i = 0; i < 40; ++i) {
      bytes += request_text(absl::StrCat("GET /v1/things/", batch + i), "X-Api-Key: user\r\n");
    }
    one.send(bytes);
    for (int i = 0; i < 40; ++i) {
      ASSERT_EQ(one.answer().body, absl::StrCat(batch + i, " of user")) << "batch " << batch;
    }
  }
}

TEST_F(ServerTest, ReadsARequestThatComesByteByByte) {
  start();
  RawClient one = client();
  for (const char c : request_text("POST /echo", "X-Api-Key: user\r\n", "{}")) one.send({&c, 1});
  EXPECT_EQ(one.answer().body, "{}");
  for (const char c : request_text("POST /echo",
                                   "X-Api-Key: user\r\nContent-Type: application/json\r\n"
                                   "Transfer-Encoding: chunked\r\n") +
                          "3;a=b\r\n[1,\r\n2\r\n2]\r\n0\r\nTrailer: x\r\n\r\n") {
    one.send({&c, 1});
  }
  EXPECT_EQ(one.answer().body, "[1,2]");
}

TEST_F(ServerTest, GivesEveryAnswerARequestId) {
  start();
  RawClient one = client();
  one.send(request_text("GET /health", "X-Request-Id: my-id_1.2\r\n"));
  EXPECT_EQ(one.answer().headers.at("x-request-id"), "my-id_1.2");
  one.send(request_text("GET /nothing", "X-Request-Id: a b\r\n"));
  EXPECT_EQ(one.answer().headers.at("x-request-id").size(), 32u);
  one.send("nonsense\r\n\r\n");
  EXPECT_EQ(one.answer().headers.at("x-request-id").size(), 32u);
}

TEST_F(ServerTest, KnowsMethods) {
  start();
  const Answer wrong = ask(request_text("PUT /v1/things/1"));
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "DELETE, GET, HEAD, OPTIONS");
  EXPECT_EQ(ask(request_text("OPTIONS /echo")).headers.at("allow"), "OPTIONS, POST");
  EXPECT_EQ(ask(request_text("OPTIONS /echo")).status, 204);
  const Answer head = ask(request_text("HEAD /health"));
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-length"), "4");
  EXPECT_EQ(head.body, "");
  EXPECT_EQ(ask(request_text("GET /v1/things/a%2Fb%20c", "X-Api-Key: user\r\n")).body,
            "a/b c of user");
}

// Deny by default: no route but the public ones does anything without a key.
TEST_F(ServerTest, EveryRouteButPublicOnesNeedsAKey) {
  start();
  ASSERT_GE(server_->routes().size(), 5u);
  for (const Route& route : server_->routes()) {
    if (route.scope == Scope::kPublic) continue;
    const Answer answer = ask(request_text(route.method + " " + route.pattern));
    EXPECT_EQ(answer.status, 401) << route.pattern;
    EXPECT_THAT(answer.headers.at("www-authenticate"), HasSubstr("Bearer"));
    EXPECT_THAT(answer.body, HasSubstr("\"code\":\"invalid_api_key\""));
  }
  EXPECT_EQ(ask(request_text("DELETE /v1/things/1", "X-Api-Key: user\r\n")).status, 403);
  EXPECT_EQ(ask(request_text("DELETE /v1/things/1", "authorization: bearer admin\r\n")).status,
            200);
  EXPECT_EQ(ask(request_text("DELETE /v1/things/1", "Authorization: Basic admin\r\n")).status, 401);
}

TEST_F(ServerTest, KeysReachNoHandlerAndNoLog) {
  routes_.push_back({"GET", "/headers", Scope::kInference,
                     [](const Request& request, std::shared_ptr<Responder> responder) {
                       Response response;
                       for (const auto& header : request.headers) response.body += header.second;
                       responder->send(std::move(response));
                     }});
  start();
  EXPECT_THAT(ask(request_text("GET /headers?q=secret-text", "X-Api-Key: user\r\n")).body,
              Not(HasSubstr("user")));
  EXPECT_TRUE(eventually([&] { return !log().empty(); }));
  EXPECT_THAT(log(), Not(HasSubstr("secret-text")));
}

TEST_F(ServerTest, LogsAndCountsRequestsButNotQuietOnes) {
  start();
  ask(request_text("GET /health"));
  ask(request_text("GET /v1/things/7", "X-Api-Key: user\r\nX-Request-Id: abc\r\n"));
  ask(request_text("GET /nothing/%0a"));
  EXPECT_TRUE(eventually([&] { return answered().size() == 3; }));
  EXPECT_THAT(answered(),
              testing::UnorderedElementsAre("/health 200", "/v1/things/{id} 200", "unmatched 400"));
  EXPECT_THAT(log(), HasSubstr("GET /v1/things/7 200"));
  EXPECT_THAT(log(), HasSubstr("id=abc key=user"));
  EXPECT_THAT(log(), Not(HasSubstr("/health")));
}

TEST_F(ServerTest, StreamsInChunks) {
  start();
  RawClient one = client();
  one.send(request_text("GET /keep"));
  const auto responder = kept();
  ASSERT_NE(responder, nullptr);
  responder->write("too early");
  responder->start({});
  responder->write("first ");
  EXPECT_THAT(one.read_to("first"), HasSubstr("Content-Type: text/event-stream"));
  responder->write("");
  responder->write("second");
  responder->finish();
  responder->finish();
  responder->write("too late");
  EXPECT_THAT(one.read_to("0\r\n\r\n"), HasSubstr("second"));
  one.send(request_text("GET /health"));
  EXPECT_EQ(one.answer().body, "fine");
}

TEST_F(ServerTest, StreamsToHttp10UntilTheConnectionEnds) {
  start();
  RawClient one = client();
  one.send("GET /keep HTTP/1.0\r\n\r\n");
  kept()->start({});
  kept()->write("all of it");
  kept()->finish();
  const std::string all = one.read_to("the end");
  EXPECT_TRUE(all.ends_with("\r\n\r\nall of it")) << all;
}

TEST_F(ServerTest, HeadersOfAHandlerCannotSplitTheAnswer) {
  routes_.push_back(
      {"GET", "/split", Scope::kPublic, [](const Request&, std::shared_ptr<Responder> responder) {
         Response response;
         response.headers.emplace_back("X-A", "1\r\nX-B: 2");
         responder->send(std::move(response));
       }});
  start();
  EXPECT_FALSE(ask(request_text("GET /split")).headers.contains("x-b"));
}

TEST_F(ServerTest, HandlersThatThrowOrForgetAreErrors) {
  routes_.push_back(
      {"GET", "/throw", Scope::kPublic, [](const Request&, std::shared_ptr<Responder>) {
         throw std::runtime_error("secret detail");
       }});
  routes_.push_back(
      {"GET", "/forget", Scope::kPublic, [](const Request&, std::shared_ptr<Responder>) {}});
  start();
  const Answer thrown = ask(request_text("GET /throw"));
  EXPECT_EQ(thrown.status, 500);
  EXPECT_THAT(thrown.body, Not(HasSubstr("secret detail")));
  EXPECT_EQ(ask(request_text("GET /forget")).status, 500);
  RawClient one = client();
  one.send(request_text("GET /keep"));
  kept()->start({});
  kept()->write("half");
  forget_kept();
  const Answer half = one.answer();
  EXPECT_EQ(half.body, "half");
  EXPECT_FALSE(half.is_whole) << "a broken-off stream must not look complete";
}

TEST_F(ServerTest, TellsHandlersAtOnceThatTheClientIsGone) {
  start();
  std::atomic<int> n_gone{0};
  for (const bool by_reset : {true, false}) {
    for (const bool is_started : {true, false}) {
      {
        RawClient one = client();
        one.send(request_text("GET /keep"));
        kept()->on_gone([&] { ++n_gone; });
        if (is_started) kept()->start({});
        EXPECT_FALSE(kept()->gone());
        if (by_reset) one.reset();
      }
      EXPECT_TRUE(eventually([&] { return kept()->gone() && n_gone == 1; }));
      EXPECT_EQ(server_->open_requests(), 0u);
      kept()->on_gone([&] { ++n_gone; });
      EXPECT_EQ(n_gone, 2) << "late callers hear it at once";
      kept()->write("to nobody");
      kept()->finish();
      forget_kept();
      n_gone = 0;
    }
  }
  EXPECT_TRUE(eventually([&] { return server_->connections() == 0; }));
}

// A second request that is larger than what waits in the buffer must not hide the end.
TEST_F(ServerTest, TellsHandlersAlsoBehindAFullBuffer) {
  start();
  std::atomic<int> n_calls{0};
  {
    RawClient one = client();
    one.send(request_text("GET /keep"));
    kept()->on_gone([&] { ++n_calls; });
    one.send(request_text("POST /echo", "X-Api-Key: user\r\n", std::string(100 << 10, 'x')));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // until they are in the buffer
    EXPECT_EQ(n_calls, 0);
  }
  EXPECT_TRUE(eventually([&] { return n_calls == 1; }));
  EXPECT_TRUE(kept()->gone());
}

TEST_F(ServerTest, AFullBufferIsServedAfterwards) {
  start();
  RawClient one = client();
  one.send(request_text("GET /keep"));
  const std::string body(100 << 10, 'x');
  const auto responder = kept();
  one.send(request_text("POST /echo", "X-Api-Key: user\r\n", body));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  responder->send({});
  EXPECT_EQ(one.answer().status, 200);
  EXPECT_EQ(one.answer().body, body);
}

TEST_F(ServerTest, ProbesDoNotWaitForOtherHandlers) {
  std::atomic<int> n_busy{0};
  std::atomic<bool> may_end{false};
  routes_.push_back(
      {"GET", "/busy", Scope::kPublic, [&](const Request&, std::shared_ptr<Responder> responder) {
         ++n_busy;
         while (!may_end) std::this_thread::yield();
         responder->send({});
       }});
  start();
  std::vector<RawClient> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(client());
    clients.back().send(request_text("GET /busy"));
  }
  ASSERT_TRUE(eventually([&] { return n_busy == 2; }));
  EXPECT_EQ(ask(request_text("GET /health")).body, "fine");
  may_end = true;
  for (RawClient& one : clients) EXPECT_EQ(one.answer().status, 200);
}

TEST_F(ServerTest, CompletedAnswersAreNotGone) {
  start();
  std::atomic<int> n_gone{0};
  {
    RawClient one = client();
    one.send(request_text("GET /keep"));
    // The callback holds the Responder: it must not keep it for ever.
    kept()->on_gone([&, held = kept()] { ++n_gone; });
    kept()->send({});
    EXPECT_EQ(one.answer().status, 200);
  }
  EXPECT_TRUE(eventually([&] { return server_->connections() == 0; }));
  EXPECT_EQ(n_gone, 0);
  EXPECT_EQ(kept().use_count(), 2);
}

TEST_F(ServerTest, CutsOffReadersThatAreTooSlow) {
  options_.stream_buffer_bytes_max = 256 << 10;
  start();
  RawClient one = client(4096);
  one.send(request_text("GET /keep"));
  std::atomic<int> n_gone{0};
  kept()->on_gone([&] { ++n_gone; });
  kept()->start({});
  const std::string piece(64 << 10, 'x');
  for (int i = 0; i < 10'000 && !kept()->gone(); ++i) kept()->write(piece);
  EXPECT_TRUE(kept()->gone());
  EXPECT_TRUE(eventually([&] { return n_gone == 1 && server_->connections() == 0; }));
}

TEST_F(ServerTest, GivesUpWritingToAClientThatReadsNothing) {
  options_.config.write_timeout = absl::Milliseconds(50);
  start();
  RawClient one = client(4096);
  one.send(request_text("GET /keep"));
  Response large;
  large.body.assign(64 << 20, 'x');
  kept()->send(std::move(large));
  EXPECT_TRUE(eventually([&] { return server_->connections() == 0; }));
}

TEST_F(ServerTest, ServesBesideThousandsOfIdleConnections) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  if (files.rlim_max < 5000) GTEST_SKIP() << "only " << files.rlim_max << " open files allowed";
  start();
  std::vector<RawClient> idle;
  for (int i = 0; i < 2000; ++i) {
    idle.emplace_back(server_->port());
    ASSERT_TRUE(idle.back().is_connected()) << i;
  }
  EXPECT_EQ(ask(request_text("GET /health")).status, 200);
  EXPECT_TRUE(eventually([&] { return server_->connections() >= 2000; }));
  idle[1000].send(request_text("GET /health"));
  EXPECT_EQ(idle[1000].answer().status, 200);
  idle.clear();
  EXPECT_TRUE(eventually([&] { return server_->connections() == 0; }));
}

// Clients that ask, stream, pipeline, leave and send nonsense, all at once: nothing is left over.
TEST_F(ServerTest, StaysWholeUnderMixedLoad) {
  routes_.push_back(
      {"GET", "/stream", Scope::kPublic, [](const Request&, std::shared_ptr<Responder> responder) {
         std::thread([responder] {
           const auto stream = EventStream::start(responder, absl::Milliseconds(1));
           for (int i = 0; i < 20 && !responder->gone(); ++i) {
             stream->data("{}");
             std::this_thread::sleep_for(std::chrono::microseconds(300));
           }
           stream->finish();
         }).detach();
       }});
  start();
  std::atomic<int> n_wrong{0};
  const auto act = [&](int seed) {
    for (int i = 0; i < 40; ++i) {
      RawClient one = client();
      switch ((seed + i) % 5) {
        case 0:
          one.send(request_text("GET /health") + request_text("GET /nothing"));
          n_wrong += one.answer().status != 200;
          n_wrong += one.answer().status != 404;
          break;
        case 1:
          one.send(request_text("GET /stream"));
          n_wrong += !one.answer().body.ends_with("data: [DONE]\n\n");
          break;
        case 2:
          one.send(request_text("GET /stream"));
          one.read_to("{}");
          one.reset();
          break;
        case 3:
          one.send(request_text("POST /echo", "X-Api-Key: user\r\n", std::string(9'000, ' ')));
          n_wrong += one.answer().body.size() != 9'000;
          break;
        case 4:
          one.send("nonsense\r\n\r\n");
          n_wrong += one.answer().status != 400;
      }
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back(act, t);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(n_wrong, 0);
  EXPECT_TRUE(
      eventually([&] { return server_->open_requests() == 0 && server_->connections() == 0; }));
}

TEST_F(ServerTest, TurnsExcessConnectionsAway) {
  options_.config.connections_max = 2;
  start();
  RawClient first = client(), second = client();
  first.send(request_text("GET /health"));
  second.send(request_text("GET /health"));
  EXPECT_EQ(first.answer().status, 200);
  EXPECT_EQ(second.answer().status, 200);
  RawClient third = client();
  const Answer answer = third.answer();
  EXPECT_EQ(answer.status, 503);
  EXPECT_THAT(answer.body, HasSubstr("connections_max"));
  first.send(request_text("GET /health"));
  EXPECT_EQ(first.answer().status, 200);
}

TEST_F(ServerTest, StopsAcceptingButEndsWhatIsUnderWay) {
  start();
  RawClient busy = client(), waiting = client();
  waiting.send(request_text("GET /health"));
  EXPECT_EQ(waiting.answer().status, 200);
  busy.send(request_text("GET /keep"));
  kept()->start({});
  EXPECT_TRUE(eventually([&] { return server_->open_requests() == 1; }));
  // An answer that ends after the stop closes its connection; this one is to be idle by then.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  server_->stop_accepting();
  EXPECT_EQ(server_->open_requests(), 1u);
  waiting.send(request_text("GET /health"));
  const Answer refused = waiting.answer();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("connection"), "close");
  EXPECT_TRUE(eventually([&] { return !client().is_connected(); }));
  kept()->write("the rest");
  kept()->finish();
  const Answer answer = busy.answer();
  EXPECT_TRUE(answer.is_whole);
  EXPECT_EQ(answer.body, "the rest");
  EXPECT_TRUE(busy.at_end());
}

TEST_F(ServerTest, ClosesWhileHandlersStillAnswer) {
  start();
  RawClient one = client(), two = client();
  one.send(request_text("GET /keep"));
  const auto first = kept(0);
  two.send(request_text("GET /keep"));
  const auto second = kept(1);
  std::atomic<int> n_gone{0};
  first->on_gone([&] { ++n_gone; });
  first->start({});
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    while (!stop) first->write("text");
  });
  EXPECT_THAT(one.read_to("text"), HasSubstr("text"));
  server_.reset();
  EXPECT_EQ(n_gone, 1);
  EXPECT_TRUE(first->gone());
  stop = true;
  writer.join();
  first->finish();
  second->send({});
}

TEST_F(ServerTest, SaysWhyItCannotStart) {
  start();
  options_.config.port = server_->port();
  const auto taken = Server::start(options_, routes_);
  EXPECT_THAT(std::string(taken.status().message()), HasSubstr("in use"));
  EXPECT_THAT(std::string(taken.status().message()), HasSubstr("[server]"));

  options_.config.port = 0;
  options_.config.host = "no.such.host.invalid";
  EXPECT_FALSE(Server::start(options_, routes_).ok());

  options_.config.host = "0.0.0.0";
  const auto open = Server::start(options_, routes_);
  EXPECT_THAT(std::string(open.status().message()), HasSubstr("allow_public_without_keys"));
  options_.config.allow_public_without_keys = true;
  EXPECT_TRUE(Server::start(options_, routes_).ok());
  options_.config.allow_public_without_keys = false;
  options_.config.keys_path = "keys.toml";
  EXPECT_TRUE(Server::start(options_, routes_).ok());

  routes_.push_back(routes_.front());
  EXPECT_THAT(std::string(Server::start(options_, routes_).status().message()), HasSubstr("twice"));
}

}  // namespace
}  // namespace varve::http
