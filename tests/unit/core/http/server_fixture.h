// A server with routes of every kind, and what it logged.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "core/http/server.h"
#include "raw_client.h"

namespace varve::http {

class ServerTest : public testing::Test {
 protected:
  ServerTest() {
    options_.config.port = 0;
    options_.config.header_timeout = absl::Seconds(30);
    options_.config.idle_timeout = absl::Seconds(30);
    options_.config.write_timeout = absl::Seconds(30);
    options_.config.http_threads = 2;
    options_.config.body_mb_max = 1;
    options_.authenticate = [](std::string_view key) -> absl::StatusOr<Identity> {
      if (key == "user") return Identity{"user", "t", "standard", {}, Scope::kInference};
      if (key == "admin") return Identity{"admin", "t", "standard", {}, Scope::kAdmin};
      return absl::UnauthenticatedError("the key is not known; expected one of the keys file");
    };
    options_.log = [this](LogLevel, std::string_view, std::string_view text) {
      const MutexLock lock(&mutex_);
      log_.append(text).append("\n");
    };
    options_.on_answered = [this](const std::string& route, int status, double) {
      const MutexLock lock(&mutex_);
      answered_.push_back(absl::StrCat(route, " ", status));
    };
    routes_ = {
        {"GET", "/health", Scope::kPublic, say("fine"), true},
        {"POST", "/echo", Scope::kInference,
         [](const Request& request, std::shared_ptr<Responder> responder) {
           Response response;
           response.body = request.body;
           responder->send(std::move(response));
         }},
        {"GET", "/v1/things/{id}", Scope::kInference,
         [](const Request& request, std::shared_ptr<Responder> responder) {
           Response response;
           response.body = absl::StrCat(request.path_values.at("id"), " of ", request.who.key_id);
           responder->send(std::move(response));
         }},
        {"DELETE", "/v1/things/{id}", Scope::kAdmin, say("deleted")},
        {"GET", "/keep", Scope::kPublic,
         [this](const Request&, std::shared_ptr<Responder> responder) { keep(responder); }},
    };
  }

  static Handler say(std::string text) {
    return [text](const Request&, std::shared_ptr<Responder> responder) {
      Response response;
      response.body = text;
      responder->send(std::move(response));
    };
  }

  void start() {
    absl::StatusOr<std::unique_ptr<Server>> server = Server::start(options_, routes_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  RawClient client(int receive_bytes = 0) { return RawClient(server_->port(), receive_bytes); }

  Answer ask(std::string_view bytes) {
    RawClient one = client();
    one.send(bytes);
    return one.answer(bytes.starts_with("HEAD"));
  }

  // The handler of /keep hands its Responder to the test.
  void keep(std::shared_ptr<Responder> responder) {
    const MutexLock lock(&mutex_);
    kept_.push_back(std::move(responder));
  }
  std::shared_ptr<Responder> kept(size_t i = 0) {
    std::shared_ptr<Responder> found;
    EXPECT_TRUE(eventually([&] {
      const MutexLock lock(&mutex_);
      if (kept_.size() > i) found = kept_[i];
      return found != nullptr;
    }));
    return found;
  }
  void forget_kept() {
    const MutexLock lock(&mutex_);
    kept_.clear();
  }

  std::string log() {
    const MutexLock lock(&mutex_);
    return log_;
  }
  std::vector<std::string> answered() {
    const MutexLock lock(&mutex_);
    return answered_;
  }

  // Waits as long as it takes, within what a test may hang.
  static bool eventually(const std::function<bool()>& is_true) {
    for (int i = 0; i < 30'000; ++i) {
      if (is_true()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  ServerOptions options_;
  std::vector<Route> routes_;
  Mutex mutex_;
  std::string log_;
  std::vector<std::string> answered_;
  std::vector<std::shared_ptr<Responder>> kept_;
  std::unique_ptr<Server> server_;
};

}  // namespace varve::http
