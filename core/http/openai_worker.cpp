#include <condition_variable>
#include <deque>
#include <exception>
#include <thread>
#include <utility>

#include "core/base/mutex.h"
#include "core/http/openai_run.h"

namespace varve::http {
namespace {

class OneThread final : public Worker {
 public:
  OneThread() : thread_([this] { run(); }) {}

  ~OneThread() override {
    {
      const MutexLock lock(&mutex_);
      stop_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  void post(std::function<void()> task) override {
    {
      const MutexLock lock(&mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
  }

 private:
  // Null: stop.
  std::function<void()> next() {
    const MutexLock lock(&mutex_);
    while (tasks_.empty() && !stop_) changed_.wait(mutex_);
    if (tasks_.empty()) return nullptr;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    return task;
  }

  // A task that throws (no memory) is dropped; its Responder then answers 500.
  void run() {
    while (const std::function<void()> task = next()) {
      try {
        task();
      } catch (const std::exception&) {
      }
    }
  }

  Mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace

std::shared_ptr<Worker> Worker::make() { return std::make_shared<OneThread>(); }

}  // namespace varve::http
