// One request's answer on its way from a handler to the connection.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "core/http/http.h"

namespace varve::http {

struct ExchangeOptions {
  std::string request_id;
  bool is_head = false;    // headers alone
  bool is_chunked = true;  // false for HTTP/1.0: a stream ends with the connection
  bool keep_alive = true;  // what the answer tells the client
  uint64_t buffer_bytes_max = 0;
};

// Thread-safe. The handler's side never waits and never calls back, but for on_gone() after the
// client has gone; the connection takes the bytes when it can send them.
class Exchange final : public Responder {
 public:
  // `wake` tells the connection that there is something to take. It is called without a lock, from
  // the handler's thread.
  Exchange(ExchangeOptions options, std::function<void()> wake);

  // What the handler gets: when its last copy is gone without an answer, abandon() is called.
  static std::shared_ptr<Responder> responder(std::shared_ptr<Exchange> exchange);

  void send(Response response) override;
  void start(Response head) override;
  void write(std::string bytes) override;
  void finish() override;
  bool gone() const override;
  void on_gone(std::function<void()> call) override;

  struct Output {
    std::string bytes;
    bool is_complete = false;  // nothing comes after these bytes
    bool is_broken = false;    // the answer was broken off, or does not say where it ends: close
    bool is_too_slow = false;  // more was written than the client takes: cut it off
  };
  // The bytes given before count as sent.
  Output take();
  bool is_complete() const;
  bool is_too_slow() const;
  int status() const;  // 0 before the answer
  // The client is gone: runs what on_gone() was given unless the answer is complete.
  void lose();
  // 500 if nothing was sent yet, else the answer breaks off.
  void abandon();

 private:
  enum class State { kNew, kStreaming, kComplete };

  std::string head_text(const Response& head, bool has_length) const;
  void add(std::string bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the callbacks that are not needed any more, to be destroyed without the lock.
  std::vector<std::function<void()>> complete() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ExchangeOptions options_;
  const std::function<void()> wake_;
  mutable Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kNew;
  int status_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string out_ ABSL_GUARDED_BY(mutex_);
  uint64_t taken_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_broken_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_too_slow_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_lost_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::function<void()>> on_gone_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace varve::http
