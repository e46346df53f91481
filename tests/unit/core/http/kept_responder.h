// Keeps the answer of a handler that answers at once.
#pragma once

#include <utility>

#include "core/http/http.h"

namespace varve::http {

class Kept final : public Responder {
 public:
  explicit Kept(Response* to) : to_(to) {}
  void send(Response response) override { *to_ = std::move(response); }
  void start(Response) override {}
  void write(std::string) override {}
  void finish() override {}
  bool gone() const override { return false; }
  void on_gone(std::function<void()>) override {}

 private:
  Response* to_;
};

}  // namespace varve::http
