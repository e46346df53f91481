// Requests that are malformed, endless, slow or come from the wrong place.
#include "core/http/admission.h"
#include "core/http/sse.h"
#include "server_fixture.h"

namespace varve::http {
namespace {

using testing::HasSubstr;

class ServerLimitsTest : public ServerTest {
 protected:
  static std::string chunked(std::string_view headers = "") {
    return request_text("POST /echo",
                        absl::StrCat("X-Api-Key: user\r\nContent-Type: application/json\r\n"
                                     "Transfer-Encoding: chunked\r\n",
                                     std::string(headers)));
  }
  // The answer to bytes that are sent until the server has enough.
  Answer flood(std::string_view first, const std::string& more) {
    RawClient one = client();
    one.send(first);
    uint64_t n_bytes = 0;
    while (n_bytes < (256u << 20) && one.send(more)) n_bytes += more.size();
    EXPECT_LT(n_bytes, 256u << 20) << "the server reads without end";
    return one.answer();
  }
};

TEST_F(ServerLimitsTest, BodiesAreBounded) {
  start();
  EXPECT_EQ(
      ask(request_text("POST /echo", "X-Api-Key: user\r\n", std::string(1 << 20, ' '))).status,
      200);
  EXPECT_EQ(ask(request_text("POST /echo",
                             "X-Api-Key: user\r\nContent-Type: application/json\r\n"
                             "Content-Length: 1048577\r\n"))
                .status,
            413);
  EXPECT_EQ(ask(chunked() + absl::StrCat(absl::Hex(1 << 20), "\r\n", std::string(1 << 20, ' '),
                                         "\r\n1\r\n \r\n0\r\n\r\n"))
                .status,
            413);
  EXPECT_EQ(ask(chunked() + "7fffffffffffffff\r\n").status, 413);
}

TEST_F(ServerLimitsTest, EndlessBodiesAreCutOff) {
  start();
  const std::string chunk = absl::StrCat("10000\r\n", std::string(0x10000, ' '), "\r\n");
  std::string more;
  for (int i = 0; i < 100; ++i) more += chunk;
  EXPECT_EQ(ask(chunked() + more).status, 413);
  flood(chunked(), more);
  EXPECT_EQ(ask(chunked() + "1;" + std::string(200 << 10, 'x')).status, 400) << "chunk extension";
  EXPECT_EQ(ask(chunked() + "0\r\n" + std::string(200 << 10, 'x')).status / 100, 4) << "trailer";
  EXPECT_EQ(ask(request_text("GET /health")).status, 200);
}

TEST_F(ServerLimitsTest, ChunkSizesAreNumbers) {
  start();
  for (const char* size : {"-2", "+2", "0x2", "", " ", "g", "fffffffffffffffff", "1 1"}) {
    EXPECT_EQ(ask(chunked() + size + "\r\nab\r\n0\r\n\r\n").status, 400) << size;
  }
  EXPECT_EQ(ask(chunked() + "1\r\nabc\r\n0\r\n\r\n").status, 400) << "more than its size";
}

TEST_F(ServerLimitsTest, HeadsAreBounded) {
  start();
  EXPECT_EQ(ask(request_text("GET /health", "X: " + std::string(1 << 20, 'x') + "\r\n")).status,
            431);
  EXPECT_EQ(ask("GET /" + std::string(1 << 20, 'x') + " HTTP/1.1\r\n\r\n").status, 431);
  std::string headers;
  for (int i = 0; i < 10'000; ++i) headers += "a: b\r\n";
  EXPECT_EQ(ask(request_text("GET /health", headers)).status, 431);
  EXPECT_EQ(ask(request_text("GET /health", headers.substr(0, 6 * 127))).status, 200);
  EXPECT_EQ(ask(request_text("GET /health", headers.substr(0, 6 * 128))).status, 431);
}

TEST_F(ServerLimitsTest, LengthsMustBeUnambiguous) {
  start();
  const std::string key = "X-Api-Key: user\r\nContent-Type: application/json\r\n";
  for (const char* headers :
       {"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        "Content-Length: 4\r\nContent-Length: 5\r\n", "Content-Length: -1\r\n",
        "Content-Length: 4, 5\r\n", "Content-Length: 0x4\r\n",
        "Content-Length: 99999999999999999999\r\n", "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: chunked, chunked\r\n", "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding : chunked\r\n"}) {
    const Answer answer = ask(request_text("POST /echo", key + headers) + "0\r\n\r\n");
    EXPECT_EQ(answer.status, 400) << headers;
    EXPECT_EQ(answer.headers.at("connection"), "close") << headers;
  }
}

TEST_F(ServerLimitsTest, MalformedRequestsAreRefused) {
  start();
  for (const char* bytes :
       {"nonsense\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET / HTTP/1.1\r\nA\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\nA: \x01\r\n\r\n", "\x16\x03\x01\x02\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        "GET /%c0%af HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n"}) {
    const Answer answer = ask(bytes);
    EXPECT_THAT(answer.status, testing::AnyOf(400, 505)) << bytes;
    EXPECT_THAT(answer.body, HasSubstr("\"error\"")) << bytes;
  }
  EXPECT_EQ(ask(request_text("GET /health")).status, 200);
}

TEST_F(ServerLimitsTest, BodiesMustBePlainJson) {
  start();
  const auto post = [&](const std::string& headers) {
    return ask(request_text("POST /echo",
                            absl::StrCat("X-Api-Key: user\r\nContent-Length: 2\r\n", headers)) +
               "{}")
        .status;
  };
  EXPECT_EQ(post("Content-Type: application/json; charset=utf-8\r\n"), 200);
  EXPECT_EQ(post("Content-Type: Application/Problem+JSON\r\n"), 200);
  EXPECT_EQ(post(""), 415);
  EXPECT_EQ(post("Content-Type: text/plain\r\n"), 415);
  EXPECT_EQ(post("Content-Type: application/octet-stream\r\n"), 415);
  EXPECT_EQ(post("Content-Type: application/json\r\nContent-Encoding: gzip\r\n"), 415);
}

TEST_F(ServerLimitsTest, AsksForTheBodyOnlyWhenItWillTakeIt) {
  start();
  const std::string json = "Content-Type: application/json\r\nContent-Length: 2\r\n";
  RawClient one = client();
  one.send(request_text("POST /echo", "X-Api-Key: user\r\nExpect: 100-continue\r\n" + json));
  EXPECT_EQ(one.read_to("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  one.send("{}");
  EXPECT_EQ(one.answer().body, "{}");
  EXPECT_EQ(ask(request_text("POST /echo", "Expect: 100-continue\r\n" + json)).status, 401);
  EXPECT_EQ(ask(request_text("POST /echo", "X-Api-Key: user\r\nExpect: tea\r\n" + json)).status,
            417);
}

TEST_F(ServerLimitsTest, SlowHeadsAndBodiesAreGivenUp) {
  options_.config.header_timeout = absl::Milliseconds(100);
  start();
  RawClient head = client(), body = client();
  head.send("GET /health HTTP/1.1\r\nHost: local");
  body.send(chunked() + "5\r\n");
  // One byte now and then does not keep a request alive.
  while (head.send("x") && body.send(" ") && server_->connections() == 2) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (answered().size() == 2) break;
  }
  EXPECT_EQ(head.answer().status, 408);
  EXPECT_EQ(body.answer().status / 100, 4);
}

TEST_F(ServerLimitsTest, IdleConnectionsAreClosed) {
  options_.config.idle_timeout = absl::Milliseconds(20);
  start();
  RawClient fresh = client(), used = client();
  used.send(request_text("GET /health"));
  EXPECT_EQ(used.answer().status, 200);
  EXPECT_TRUE(fresh.at_end());
  EXPECT_TRUE(used.at_end());
}

// DNS rebinding: a page's name that resolves to this machine is not a name of this server.
TEST_F(ServerLimitsTest, OnlyOwnHostsAreServed) {
  options_.config.allowed_hosts = {"varve.example"};
  start();
  const auto ask_host = [&](const std::string& host) {
    return ask("GET /health HTTP/1.1\r\nHost: " + host + "\r\n\r\n").status;
  };
  for (const char* host : {"localhost", "LocalHost:8080", "127.0.0.1:1", "[::1]:80", "10.0.0.7",
                           "varve.example", "Varve.Example:443"}) {
    EXPECT_EQ(ask_host(host), 200) << host;
  }
  for (const char* host : {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example",
                           "evil.example:8080", "", "[", "[::1", "[::1].evil", "2130706433"}) {
    EXPECT_EQ(ask_host(host), 421) << host;
  }
  EXPECT_THAT(ask("GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n").body,
              HasSubstr("allowed_hosts"));
}

TEST_F(ServerLimitsTest, PagesOfOtherSitesCannotActWithoutAKey) {
  options_.authenticate = [](std::string_view) -> absl::StatusOr<Identity> {
    return Identity{"anonymous", "t", "standard", {}, Scope::kAdmin};
  };
  options_.config.allowed_hosts = {"ui.example"};
  start();
  const auto erase = [&](const std::string& headers) {
    return ask(request_text("DELETE /v1/things/1", headers)).status;
  };
  EXPECT_EQ(erase(""), 200);
  EXPECT_EQ(erase("Origin: http://localhost\r\n"), 200);
  EXPECT_EQ(erase("Origin: https://ui.example\r\n"), 200);
  EXPECT_EQ(erase("Origin: http://evil.example\r\n"), 403);
  EXPECT_EQ(erase("Origin: null\r\n"), 403);
  EXPECT_EQ(erase("Origin: http://evil.example\r\nX-Api-Key: any\r\n"), 200);
  EXPECT_FALSE(ask(request_text("GET /health", "Origin: http://evil.example\r\n"))
                   .headers.contains("access-control-allow-origin"));
}

TEST(AdmissionTest, KnowsLoopback) {
  for (const char* host : {"127.0.0.1", "127.9.9.9", "localhost", "LOCALHOST", "::1"}) {
    EXPECT_TRUE(is_loopback(host)) << host;
  }
  for (const char* host : {"0.0.0.0", "::", "128.0.0.1", "localhost.example", ""}) {
    EXPECT_FALSE(is_loopback(host)) << host;
  }
}

class EventStreamTest : public ServerTest {};

TEST_F(EventStreamTest, SendsEventsThenDone) {
  start();
  RawClient one = client();
  one.send(request_text("GET /keep"));
  const auto stream = EventStream::start(kept(), absl::ZeroDuration(), {{"X-Arm", "a"}});
  EXPECT_FALSE(stream->started());
  stream->data("{\"a\":1}");
  EXPECT_TRUE(stream->started());
  stream->finish();
  stream->data("late");
  stream->fail(error_response(500, "late"));
  const Answer answer = one.answer();
  EXPECT_EQ(answer.headers.at("content-type"), "text/event-stream");
  EXPECT_EQ(answer.headers.at("x-arm"), "a");
  EXPECT_EQ(answer.body, "data: {\"a\":1}\n\ndata: [DONE]\n\n");
}

TEST_F(EventStreamTest, FailsPlainlyBeforeTheFirstEventAndInTheStreamAfterIt) {
  start();
  for (const bool is_started : {false, true}) {
    RawClient one = client();
    one.send(request_text("GET /keep"));
    const auto stream = EventStream::start(kept(), absl::ZeroDuration());
    if (is_started) stream->data("1");
    stream->fail(error_response(503, "no more"));
    const Answer answer = one.answer();
    EXPECT_EQ(answer.status, is_started ? 200 : 503);
    const std::string error = error_json(503, "no more");
    EXPECT_EQ(answer.body,
              is_started ? "data: 1\n\ndata: " + error + "\n\ndata: [DONE]\n\n" : error);
    forget_kept();
  }
}

TEST_F(EventStreamTest, PingsWhileNothingIsSent) {
  start();
  RawClient one = client();
  one.send(request_text("GET /keep"));
  auto stream = EventStream::start(kept(), absl::Milliseconds(5));
  EXPECT_THAT(one.read_to(": ping\n\n"), HasSubstr("200 OK"));
  EXPECT_THAT(one.read_to(": ping\n\n"), HasSubstr(": ping"));
  stream->fail(error_response(500, "broken"));
  EXPECT_THAT(one.read_to("[DONE]\n\n"), HasSubstr("broken"));
}

}  // namespace
}  // namespace varve::http
