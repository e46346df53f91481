#include "tests/support/fake_host.h"

#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "mri/ext/threads.h"

namespace varve::test {

uint32_t fake_concurrency(const mri_host* host) {
  return static_cast<const FakeHost*>(host->self)->concurrency_;
}

namespace {

// Backwards, so that nobody relies on the order; in real threads when there are several.
void parallel_for(const mri_host* host, uint64_t n,
                  void (*task)(void* user, uint64_t i, uint32_t worker), void* user) {
  std::atomic<uint64_t> left{n};
  const auto work = [&](uint32_t worker) {
    for (uint64_t i = 0; (i = left.load()) > 0;) {
      if (left.compare_exchange_weak(i, i - 1)) task(user, i - 1, worker);
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t w = 1; w < fake_concurrency(host); ++w) threads.emplace_back(work, w);
  work(0);
  for (std::thread& thread : threads) thread.join();
}

void check(mri_status status, const mri_error& err) {
  if (status != MRI_OK) throw std::runtime_error(std::string(err.msg, err.msg_len));
}

}  // namespace

const void* FakeHost::get_interface(const mri_host*, const char* id) {
  static constexpr mri_host_threads_v1 kThreads = {sizeof(mri_host_threads_v1), 0, fake_concurrency,
                                                   parallel_for};
  if (std::strcmp(id, MRI_KERNELS) == 0) return &ref_kernels();
  if (std::strcmp(id, MRI_HOST_THREADS) == 0) return &kThreads;
  return nullptr;
}

FakeHost::FakeHost(const std::string& library, std::vector<mri_param> params, uint32_t concurrency)
    : host_{sizeof(mri_host),
            MRI_HEADER_VERSION,
            MRI_1_0,
            MRI_HEADER_VERSION,
            "fake",
            "1.0.0",
            this,
            get_interface},
      concurrency_(concurrency),
      library_(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (library_ == nullptr) throw std::runtime_error(dlerror());
  entry_ = static_cast<const mri_plugin_entry*>(dlsym(library_, "mri_plugin_entry_v1"));
  if (entry_ == nullptr) throw std::runtime_error(library + ": no mri_plugin_entry_v1");
  mri_error err{};
  err.struct_size = sizeof(err);
  check(entry_->open(&host_, MRI_HEADER_VERSION, &plugin_, &err), err);
  const mri_status status = plugin_->activate(plugin_->self, params.data(), params.size(), &err);
  if (status != MRI_OK) plugin_->close(plugin_->self);
  check(status, err);
}

FakeHost::~FakeHost() { plugin_->close(plugin_->self); }

mri_param param(const char* key, int value) { return {key, nullptr, value, 0, MRI_PARAM_INT, 0}; }
mri_param param(const char* key, double value) {
  return {key, nullptr, 0, value, MRI_PARAM_FLOAT, 0};
}
mri_param param(const char* key, bool value) { return {key, nullptr, value, 0, MRI_PARAM_BOOL, 0}; }
mri_param param(const char* key, const char* value) {
  return {key, value, 0, 0, MRI_PARAM_STRING, 0};
}

}  // namespace varve::test
