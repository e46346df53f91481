// The tests that define what a plugin of MRI promises, as one table. Whoever runs them (tools/
// mri_conform) gives each test a process of its own, so a test may crash or hang.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "mri/entry.h"
#include "mri/ext/kernels.h"

namespace mri::conformance {

class RuntimeClient;

// What one test found. Each finding leaves at once, so that a later crash loses none. Thread-safe.
class Report {
 public:
  enum class What : char {
    kFail = 'F',          // breaks the contract
    kWarn = 'W',          // legal, but the author should know
    kNote = 'I',          // a number
    kNotSupported = 'N',  // the plugin does not offer what this tests
  };
  using Sink = std::function<void(What, const std::string&)>;

  explicit Report(Sink sink) : sink_(std::move(sink)) {}
  void fail(const std::string& text) { say(What::kFail, text); }
  void warn(const std::string& text) { say(What::kWarn, text); }
  void note(const std::string& text) { say(What::kNote, text); }
  void not_supported(const std::string& text) { say(What::kNotSupported, text); }
  // Fails with `text` unless `ok`. Returns `ok`.
  bool expect(bool ok, const std::string& text) {
    if (!ok) fail(text);
    return ok;
  }

 private:
  // A check in a loop fails many times alike: the first ones tell enough.
  void say(What what, const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (++said_ <= 16) sink_(what, text);
  }
  Sink sink_;
  std::mutex mutex_;
  int said_ = 0;
};

// Thrown by a check that cannot go on; the reason has been reported.
struct Stop {};

// What a look at the file told, without loading it; the text names the rule and what mends it.
struct FileFinding {
  Report::What what;
  std::string text;
};

// What a test works with.
struct Bench {
  std::vector<FileFinding> file;            // empty by URL
  std::string refusal;                      // what a host says that does not take the library
  const mri_plugin_entry* entry = nullptr;  // null by URL or when refused
  uint32_t version = 0;                     // negotiated
  uint64_t threads = 0;                     // of this process before the library was loaded
  uint64_t seed = 1;                        // of everything random
  const mri_kernels_v1* kernels = nullptr;  // offered to the plugin
  std::span<const mri_param> params;        // for activate
  RuntimeClient* server = nullptr;          // a runtime by URL
  Report* report = nullptr;
};

// Levels: 0 the file, 1 loading and life, 2 the contract of calls (sizes, errors, states, threads),
// 3 behaviour, 4 stress and made-up input, 5 speed, which is only told.
struct Test {
  const char* id;    // never changes its meaning, never used again
  const char* kind;  // "any", a kind, or "url": a server's own
  int level;
  uint32_t since;  // the first MRI version that has it
  const char* summary;
  const char* advice;  // what the author should look at when it fails
  void (*run)(Bench&);
  bool by_url = false;  // of kind runtime: also against a server
};

// Threads of this process.
uint64_t threads_now();

// All, in order of level within each kind.
std::span<const Test> all_tests();

// Runs one test; what it throws becomes a finding.
void run_test(const Test& test, Bench& bench);

// Is it on the must-pass list of `version`? Then any plugin of its kind must pass it, or not offer
// what it tests.
bool must_pass(const Test& test, uint32_t version);

std::span<const Test> load_tests();
std::span<const Test> size_tests();
std::span<const Test> quantizer_tests();
std::span<const Test> kv_tier_tests();
std::span<const Test> attention_tests();
std::span<const Test> summary_tests();
std::span<const Test> batching_tests();
std::span<const Test> runtime_tests();
std::span<const Test> runtime_option_tests();
std::span<const Test> url_tests();
std::span<const Test> speed_tests();

}  // namespace mri::conformance
