// Which plugin a crash was in. Every call into a plugin leaves a breadcrumb; a handler of fatal
// signals prints the newest one of its thread and keeps it in a file, and a library that such a
// file names is refused from then on. Nothing is rescued: the process ends as it would have.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "core/config/profile.h"

namespace varve {

// Plain memory, because a signal handler reads it.
struct PluginIdentity {
  PluginIdentity(std::string_view id, std::string_view path, std::string_view sha256);
  char id[256], path[1024], sha256[65];
};

struct Breadcrumb {
  const PluginIdentity* plugin = nullptr;
  const char* function = nullptr;
};

// The call that this thread is in.
extern constinit thread_local Breadcrumb current_breadcrumb;

// While it lives, this thread is in `function` of `plugin`.
class BreadcrumbScope {
 public:
  explicit BreadcrumbScope(const Breadcrumb& now) : before_(current_breadcrumb) {
    current_breadcrumb = now;
  }
  ~BreadcrumbScope() { current_breadcrumb = before_; }
  BreadcrumbScope(const BreadcrumbScope&) = delete;
  BreadcrumbScope& operator=(const BreadcrumbScope&) = delete;

 private:
  const Breadcrumb before_;
};

// Handles SIGSEGV, SIGBUS, SIGABRT, SIGFPE and SIGILL of this process, keeps records in the folder
// plugins.crash_dir (empty: varve in $XDG_STATE_HOME or ~/.local/state; none: only prints) and
// makes check_not_crashed() look there. Once per process, before other threads load plugins. A
// stack overflow is recorded only in the calling thread, which gets a stack for the handler.
absl::Status install_crash_handler(const Profile& profile);

// A refusal when the record of an earlier crash names a library of this hash, unless
// plugins.allow_crashed. OK in a process without the handler.
absl::Status check_not_crashed(const std::string& path, const std::string& sha256);

}  // namespace varve
