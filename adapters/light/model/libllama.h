#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace varve::light {

enum class LibraryLog { kDebug, kInfo, kWarn, kError };

// Sends what libllama and ggml log, one line at a time, to `sink` for the whole process; an empty
// one (the default) drops it. [any thread; `sink` is called from any thread, one call at a time]
void set_library_log(std::function<void(LibraryLog level, std::string_view line)> sink);

// Makes libllama ready: its log goes to the sink above, its CPU backend is loaded. Cheap after the
// first call. Every use of libllama in this folder starts with it. Throws ModelError when no CPU
// backend can be found. [any thread]
void prepare_libllama();

// The last error line that libllama logged on this thread since the last call, for a message; ""
// when there was none.
std::string take_library_error();

}  // namespace varve::light
