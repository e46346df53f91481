// Sound: every service of the host is [any], so threads of the plugin's own may call all of them
// for as long as it is active, and a task of a loop may call them again.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/support/bad_plugins/bf16.h"

namespace {
class Busy : public Bf16 {
 public:
  Busy(const mri::Host& host, const mri::Params& params)
      : Bf16(host, params),
        host_(host),
        rounds_(host.define_metric(MRI_METRIC_COUNTER, "rounds", "of all threads")) {
    for (int i = 0; i < 3; ++i) {
      threads_.emplace_back([this] {
        while (!is_over_) use_host();
      });
    }
  }
  ~Busy() { drain(0); }
  void drain(uint64_t) {
    is_over_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  void use_host() const {
    host_.parallel_for(2, [this](uint64_t i, uint32_t) {
      if (i == 0) use_memory();
      host_.parallel_for(2, [this](uint64_t, uint32_t) { host_.log(MRI_LOG_DEBUG, "a task"); });
    });
    host_.record(host_.define_metric(MRI_METRIC_GAUGE, "cores", "for loops"), host_.concurrency());
    host_.record(rounds_, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  void use_memory() const {
    const auto* buffer = host_.find<mri_host_buffer_v1>(MRI_HOST_BUFFER);
    if (buffer == nullptr) return;
    void* memory = buffer->alloc(host_.raw(), 4096, 64, "a task's");
    if (memory != nullptr) *static_cast<char*>(memory) = 1;
    buffer->release(host_.raw(), memory);
  }

  const mri::Host host_;
  const uint32_t rounds_;
  std::atomic<bool> is_over_{false};
  std::vector<std::thread> threads_;
};
}  // namespace
BAD_PLUGIN(quantizer, kParams, Busy);
