#include "adapters/light/model/libllama.h"

#include <dlfcn.h>
#include <ggml-backend.h>
#include <llama.h>

#include <filesystem>
#include <mutex>
#include <utility>

#include "adapters/light/model/model_error.h"

namespace varve::light {
namespace {

std::mutex log_mutex;
std::function<void(LibraryLog, std::string_view)> log_sink;

thread_local std::string last_error;

LibraryLog level_of(ggml_log_level level) {
  switch (level) {
    case GGML_LOG_LEVEL_ERROR:
      return LibraryLog::kError;
    case GGML_LOG_LEVEL_WARN:
      return LibraryLog::kWarn;
    case GGML_LOG_LEVEL_INFO:
      return LibraryLog::kInfo;
    default:
      return LibraryLog::kDebug;
  }
}

void on_log(ggml_log_level level, const char* text, void*) {
  std::string_view line(text);
  while (line.ends_with('\n')) line.remove_suffix(1);
  if (line.empty()) return;
  if (level == GGML_LOG_LEVEL_ERROR) last_error = line;
  const std::lock_guard lock(log_mutex);
  if (log_sink) log_sink(level_of(level), line);
}

// A ggml built with loadable backends has them beside libllama; look there and nowhere else (its
// own search would also try the current directory).
void load_backends() {
  if (ggml_backend_reg_count() > 0) return;
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&llama_backend_init), &info) != 0 &&
      info.dli_fname != nullptr) {
    const auto folder = std::filesystem::path(info.dli_fname).parent_path();
    ggml_backend_load_all_from_path(folder.c_str());
  }
}

}  // namespace

void set_library_log(std::function<void(LibraryLog, std::string_view)> sink) {
  const std::lock_guard lock(log_mutex);
  log_sink = std::move(sink);
}

void prepare_libllama() {
  static std::once_flag once;
  std::call_once(once, [] {
    llama_log_set(on_log, nullptr);
    llama_backend_init();
    load_backends();
  });
  if (ggml_backend_reg_count() == 0) {
    refuse(
        "ggml has no CPU backend: none is built in and none lies beside libllama; run tools/setup "
        "again");
  }
}

std::string take_library_error() { return std::exchange(last_error, {}); }

}  // namespace varve::light
