#include "core/http/sse.h"

#include <chrono>
#include <condition_variable>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"

namespace varve::http {
namespace {

using Clock = std::chrono::steady_clock;

class Stream;

// Pings all streams of the process from one thread, which lives until the process ends.
class Pinger {
 public:
  static Pinger& instance() {
    static Pinger pinger;
    return pinger;
  }

  void add(Clock::time_point due, std::weak_ptr<Stream> stream) {
    const MutexLock lock(&mutex_);
    const bool is_first = streams_.empty() || due < streams_.begin()->first;
    streams_.emplace(due, std::move(stream));
    if (is_first) changed_.notify_one();
  }

 private:
  Pinger() : thread_([this] { run(); }) {}
  ~Pinger() {
    {
      const MutexLock lock(&mutex_);
      stop_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  // Waits for the next stream that is due. False: stop.
  bool next(std::weak_ptr<Stream>* stream) {
    const MutexLock lock(&mutex_);
    while (!stop_) {
      if (streams_.empty()) {
        changed_.wait(mutex_);
      } else if (const auto first = streams_.begin(); first->first > Clock::now()) {
        changed_.wait_until(mutex_, Clock::time_point(first->first));
      } else {
        *stream = std::move(first->second);
        streams_.erase(first);
        return true;
      }
    }
    return false;
  }

  void run();

  Mutex mutex_;
  std::condition_variable_any changed_;
  std::multimap<Clock::time_point, std::weak_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// The lock is held while the Responder is called, which keeps events in order; a Responder never
// calls back from within.
class Stream final : public EventStream {
 public:
  Stream(std::shared_ptr<Responder> responder, Clock::duration interval, Headers headers)
      : interval_(interval),
        responder_(std::move(responder)),
        headers_(std::move(headers)),
        last_write_(Clock::now()) {}

  void data(std::string_view json) override {
    const MutexLock lock(&mutex_);
    if (responder_ != nullptr) write(event(json));
  }

  void fail(Response error) override {
    const MutexLock lock(&mutex_);
    if (responder_ == nullptr) return;
    if (started_) {
      write(event(error.body) + event("[DONE]"));
      responder_->finish();
    } else {
      responder_->send(std::move(error));
    }
    responder_.reset();
  }

  void finish() override {
    const MutexLock lock(&mutex_);
    if (responder_ == nullptr) return;
    write(event("[DONE]"));
    responder_->finish();
    responder_.reset();
  }

  bool started() const override {
    const MutexLock lock(&mutex_);
    return started_;
  }

  // Sends a ping when one is due and sets *next to the time of the one after. False when the stream
  // has ended.
  bool ping(Clock::time_point* next) {
    const MutexLock lock(&mutex_);
    if (responder_ == nullptr || responder_->gone()) return false;
    if (Clock::now() >= last_write_ + interval_) write(": ping\n\n");
    *next = last_write_ + interval_;
    return true;
  }

 private:
  static std::string event(std::string_view json) {
    return absl::StrCat("data: ", absl::string_view(json.data(), json.size()), "\n\n");
  }

  void write(std::string text) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!started_) {
      started_ = true;
      Response head;
      head.content_type = "text/event-stream";
      head.headers = std::move(headers_);
      // Proxies that buffer would hold tokens back.
      head.headers.emplace_back("Cache-Control", "no-cache");
      head.headers.emplace_back("X-Accel-Buffering", "no");
      responder_->start(std::move(head));
    }
    last_write_ = Clock::now();
    responder_->write(std::move(text));
  }

  const Clock::duration interval_;
  mutable Mutex mutex_;
  std::shared_ptr<Responder> responder_ ABSL_GUARDED_BY(mutex_);  // null: ended
  Headers headers_ ABSL_GUARDED_BY(mutex_);
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  Clock::time_point last_write_ ABSL_GUARDED_BY(mutex_);
};

void Pinger::run() {
  std::weak_ptr<Stream> waiting;
  while (next(&waiting)) {
    const std::shared_ptr<Stream> stream = waiting.lock();
    Clock::time_point due;
    if (stream != nullptr && stream->ping(&due)) add(due, stream);
  }
}

}  // namespace

std::shared_ptr<EventStream> EventStream::start(std::shared_ptr<Responder> responder,
                                                absl::Duration ping_interval, Headers headers) {
  const bool pings = ping_interval > absl::ZeroDuration() && ping_interval < absl::Hours(24);
  const auto interval = pings ? absl::ToChronoNanoseconds(ping_interval) : Clock::duration::zero();
  auto stream = std::make_shared<Stream>(std::move(responder), interval, std::move(headers));
  if (pings) Pinger::instance().add(Clock::now() + interval, stream);
  return stream;
}

}  // namespace varve::http
