// What every plugin promises whatever its kind: its file (level 0), and its life from open to close
// (level 1). Linux tells about the process in /proc/self.
#include <clocale>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <optional>
#include <thread>

#include "mri/conformance/opened.h"
#include "mri/ext/buffer.h"
#include "mri/ext/log.h"
#include "mri/ext/metrics.h"
#include "mri/ext/threads.h"
#include "mri/kind/attention.h"
#include "mri/kind/batching.h"
#include "mri/kind/kv_tier.h"
#include "mri/kind/quantizer.h"
#include "mri/kind/runtime.h"
#include "mri/kind/summary.h"

extern char** environ;

namespace mri::conformance {
namespace {

void file_is_sound(Bench& bench) {
  for (const FileFinding& finding : bench.file) {
    if (finding.what == Report::What::kFail) bench.report->fail(finding.text);
    if (finding.what == Report::What::kWarn) bench.report->warn(finding.text);
    if (finding.what == Report::What::kNote) bench.report->note(finding.text);
  }
}

void is_taken_by_a_host(Bench& bench) {
  bench.report->expect(bench.refusal.empty(), "the host refuses it: " + bench.refusal);
}

const char* interface_of(const std::string& kind) {
  static const std::map<std::string, const char*> kIds = {
      {"runtime", MRI_RUNTIME},     {"kv_tier", MRI_KV_TIER}, {"quantizer", MRI_QUANTIZER},
      {"attention", MRI_ATTENTION}, {"summary", MRI_SUMMARY}, {"batching", MRI_BATCHING}};
  const auto found = kIds.find(kind);
  return found == kIds.end() ? nullptr : found->second;
}

// Tables are {u32 size, u32 reserved, functions}.
bool is_complete(const void* table) {
  const auto bytes = *static_cast<const uint32_t*>(table);
  if (bytes < 16 || bytes % 8 != 0) return false;
  const auto* functions = static_cast<void* const*>(table);
  return std::all_of(functions + 1, functions + bytes / 8, [](void* f) { return f != nullptr; });
}

void opens_and_closes(Bench& bench) {
  Opened plugin(bench);
  const char* id = interface_of(bench.entry->kind);
  if (id == nullptr) {
    bench.report->fail(std::string("unknown kind ") + bench.entry->kind);
    return;
  }
  const auto get = [&](const char* of) { return plugin.plugin().get_interface(plugin.self(), of); };
  const void* table = get(id);
  if (!bench.report->expect(table != nullptr, std::string("offers no ") + id)) return;
  bench.report->expect(is_complete(table), std::string(id) + ": a null function in the table");
  bench.report->expect(get(id) == table, std::string(id) + ": another table at the second time");
  bench.report->expect(get("org.example.nothing/1") == nullptr,
                       "offers an interface it cannot know");
}

void closes_without_activate(Bench& bench) {
  if (bench.entry == nullptr) return;
  WatchedHost& host = WatchedHost::make(bench);
  for (int i = 0; i < 2; ++i) {
    mri_plugin* plugin = nullptr;
    must(bench, "open",
         [&](mri_error* e) { return bench.entry->open(host.abi(), bench.version, &plugin, e); });
    if (!bench.report->expect(plugin != nullptr, "open gave no object")) return;
    plugin->get_interface(plugin->self, "org.example.nothing/1");
    plugin->close(plugin->self);
  }
  bench.report->expect(host.faults().empty(), host.faults());
}

void says_what_it_can(Bench& bench) {
  Opened plugin(bench);
  const mri_caps caps = plugin.caps();
  const auto known = [&](const char* what, uint32_t value, uint32_t max) {
    bench.report->expect(value <= max, std::string(what) + " is " + std::to_string(value) +
                                           ", expected 0 to " + std::to_string(max));
  };
  known("thread_model", caps.thread_model, 3);
  known("determinism", caps.determinism, 3);
  known("reload", caps.reload, 2);
  known("sync_model", caps.sync_model, 2);
  const bool is_runtime = std::string(bench.entry->kind) == "runtime";
  if (caps.thread_model == 1 && !is_runtime) {
    bench.report->fail("thread_model 1, but the calls of its interface are [any]");
  }
  bench.report->note("thread_model " + std::to_string(caps.thread_model) + ", determinism " +
                     std::to_string(caps.determinism));
}

void refuses_bad_parameters(Bench& bench) {
  if (bench.entry == nullptr) return;
  WatchedHost& host = WatchedHost::make(bench);
  const mri_param unknown{"no_such_parameter", nullptr, 1, 0, MRI_PARAM_INT, 0};
  mri_plugin* plugin = nullptr;
  must(bench, "open",
       [&](mri_error* e) { return bench.entry->open(host.abi(), bench.version, &plugin, e); });
  const mri_status status = call(bench, "activate with an unknown parameter", [&](mri_error* e) {
    return plugin->activate(plugin->self, &unknown, 1, e);
  });
  // The host checks parameters itself, so ignoring one is harmless.
  if (status == MRI_OK) bench.report->warn("activate takes a parameter that is not in the table");
  plugin->close(plugin->self);
}

void does_without_each_service(Bench& bench) {
  for (const char* id : {MRI_HOST_LOG, MRI_HOST_METRICS, MRI_HOST_THREADS, MRI_HOST_BUFFER}) {
    try {
      const Opened plugin(bench, id);
    } catch (const Stop&) {
      bench.report->fail(std::string("does not run on a host without ") + id);
    }
  }
}

void lives_twice(Bench& bench) {
  Opened one(bench);
  {
    Opened two(bench);
    bench.report->expect(one.self() != two.self() || one.self() == nullptr,
                         "two objects share their self");
    two.caps();
  }
  one.caps();  // the second's end is not the first's
}

uint64_t entries(const char* folder) {
  uint64_t n = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++n;
  return n;
}

// A thread that has been joined may still be listed for a moment.
bool has_threads(uint64_t n) {
  for (int tries = 0; tries < 200; ++tries) {
    if (threads_now() <= n) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// What belongs to the process.
struct Process {
  std::string locale, folder;
  std::vector<std::string> environment;
  std::vector<void*> handlers;
  uint64_t files = 0;

  static Process now() {
    Process p;
    p.locale = std::setlocale(LC_ALL, nullptr);
    p.folder = std::filesystem::current_path();
    for (char** line = environ; *line != nullptr; ++line) p.environment.emplace_back(*line);
    for (const int number : {SIGABRT, SIGFPE, SIGILL, SIGINT, SIGSEGV, SIGTERM}) {
      const auto handler = std::signal(number, SIG_DFL);
      std::signal(number, handler);
      p.handlers.push_back(reinterpret_cast<void*>(handler));
    }
    p.files = entries("/proc/self/fd");
    return p;
  }
};

void leaves_the_process_alone(Bench& bench) {
  Report& report = *bench.report;
  report.expect(has_threads(bench.threads), "started a thread when it was loaded");
  const uint64_t threads = threads_now();
  const Process untouched = Process::now();
  { const Opened warm_up(bench); }
  const Process before = Process::now();
  {
    Opened plugin(bench);
    plugin.caps();
    plugin.drain();
    report.expect(has_threads(threads), "left a thread running after drain");
  }
  const Process after = Process::now();
  report.expect(after.locale == untouched.locale, "changed the locale to " + after.locale);
  report.expect(after.folder == untouched.folder, "changed the current directory");
  report.expect(after.environment == untouched.environment, "changed the environment");
  report.expect(after.handlers == untouched.handlers, "installed a signal handler");
  report.expect(after.files <= before.files, "left a file open after close");
  report.expect(has_threads(threads), "left a thread running after close");
}

// A thread of the host called the plugin, and ends when that is closed.
void is_done_with_threads(Bench& bench) {
  std::optional<Opened> plugin(std::in_place, bench);
  std::promise<void> called, closed;
  std::thread thread([&, until = closed.get_future()] {
    try {
      plugin->caps();
    } catch (const Stop&) {  // reported
    }
    called.set_value();
    until.wait();
  });
  called.get_future().wait();
  plugin.reset();
  closed.set_value();
  thread.join();
}

void does_without_memory(Bench& bench) {
  constexpr uint64_t kBuffersMax = 4;
  for (uint64_t n = 0; bench.entry != nullptr && n < kBuffersMax; ++n) {
    const std::string after = " when the host has memory for " + std::to_string(n) + " buffers";
    WatchedHost& host = WatchedHost::make(bench);
    host.give_buffers(n);
    const auto ends_well = [&](const char* what, mri_status status) {
      bench.report->expect(
          status == MRI_OK || status == MRI_E_NOMEM,
          what + after + ": status " + std::to_string(status) + ", expected MRI_OK or MRI_E_NOMEM");
      return status == MRI_OK;
    };
    mri_plugin* plugin = nullptr;
    const mri_status opened = call(bench, "open" + after, [&](mri_error* e) {
      return bench.entry->open(host.abi(), bench.version, &plugin, e);
    });
    if (ends_well("open", opened)) {
      ends_well("activate", call(bench, "activate" + after, [&](mri_error* e) {
                  return plugin->activate(plugin->self, bench.params.data(), bench.params.size(),
                                          e);
                }));
      plugin->close(plugin->self);
    }
    host.close();
    bench.report->expect(host.faults().empty(), "afterwards: " + host.faults());
  }
  Opened(bench).caps();
}

uint64_t resident_pages() {
  uint64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident;
}

void gives_memory_back(Bench& bench) {
  constexpr int kRounds = 40;
  constexpr uint64_t kPagesMax = 1024;  // 4 MiB in all: allocators keep some
  for (int i = 0; i < kRounds; ++i) const Opened warm_up(bench);
  const uint64_t before = resident_pages();
  for (int i = 0; i < kRounds; ++i) const Opened plugin(bench);
  const uint64_t after = resident_pages();
  bench.report->expect(after <= before + kPagesMax,
                       std::to_string(kRounds) + " lives from open to close left " +
                           std::to_string((after - before) * 4) + " KiB behind");
}

constexpr Test kTests[] = {
    {"static.file", "any", 0, MRI_1_0,
     "The file, not loaded: a sound library that exports its entry alone and brings nothing that "
     "hurts its host.",
     "Each text names its rule and the flag that mends it; mri/README.md lists the rules.",
     file_is_sound},
    {"load.host", "any", 1, MRI_1_0,
     "A host takes it: magic, sizes, texts, version range, parameter table, and every symbol "
     "resolves.",
     "The text names the rule MRI-E...; mri/README.md lists them. Link with -z defs.",
     is_taken_by_a_host},
    {"load.life", "any", 1, MRI_1_0,
     "open, get_interface, activate, drain and close succeed; the interface of the kind is "
     "complete.",
     "Fill every function of the table; get_interface is pure; use the host never after close.",
     opens_and_closes},
    {"load.no-activate", "any", 1, MRI_1_0, "close works without activate, and open works again.",
     "A host closes what it opened when another plugin of its stack fails.",
     closes_without_activate},
    {"load.caps", "any", 1, MRI_1_0, "query_caps answers with listed values that fit the kind.",
     "Set members of mri_caps to values of mri/entry.h; calls tagged [any] need thread_model 2 or "
     "3.",
     says_what_it_can},
    {"load.parameters", "any", 1, MRI_1_0, "A parameter that does not exist does no harm.",
     "Check keys and types in activate; mri::Params does.", refuses_bad_parameters},
    {"load.services", "any", 1, MRI_1_0, "Each service of the host may be missing.",
     "get_interface may give null: log nothing, loop in the calling thread, use malloc.",
     does_without_each_service},
    {"load.no-memory", "any", 1, MRI_1_0,
     "Without memory for the first, second, third or fourth buffer open and activate succeed or "
     "say "
     "MRI_E_NOMEM, give back what they have, and work again later.",
     "mri.host.buffer/1 may give null at any time: check it, and release the others.",
     does_without_memory},
    {"load.twice", "any", 1, MRI_1_0, "Two objects of one library live side by side.",
     "Keep state in self, not in globals.", lives_twice},
    {"load.process", "any", 1, MRI_1_0,
     "Locale, environment, directory, signals, files and threads are as before after close; own "
     "threads end in drain, and loading starts none.",
     "These belong to the host; start threads in activate, stop them in drain.",
     leaves_the_process_alone},
    {"load.thread-exit", "any", 1, MRI_1_0,
     "A thread that called it may end after close: nothing of the plugin in it uses the host.",
     "Destructors of thread_local objects and keys run when the thread ends: keep no host in them.",
     is_done_with_threads},
    {"load.memory", "any", 1, MRI_1_0, "Lives from open to close give their memory back.",
     "Free in close what open and activate allocated.", gives_memory_back},
};

}  // namespace

uint64_t threads_now() { return entries("/proc/self/task"); }

std::span<const Test> load_tests() { return kTests; }

}  // namespace mri::conformance
