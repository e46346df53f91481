#include "core/plugin/crash_record.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "core/plugin/refusal.h"

namespace varve {
namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};
constexpr char kPrefix[] = "/crash-";

// Written before the handler is installed, read by it.
char record_folder[1024] = "";
bool allows_crashed = false;
unsigned char handler_stack[64 << 10];

void copy(std::string_view from, char* to, size_t room) {
  const size_t n = std::min(from.size(), room - 1);
  std::memcpy(to, from.data(), n);
  to[n] = '\0';
}

// Text of bounded length, made without anything that a signal handler may not do.
class SignalText {
 public:
  void add(const char* s) {
    while (*s != '\0' && n_ + 1 < sizeof(bytes_)) bytes_[n_++] = *s++;
    bytes_[n_] = '\0';
  }
  const char* c_str() const { return bytes_; }
  void write_to(int fd) const { [[maybe_unused]] const ssize_t written = write(fd, bytes_, n_); }

 private:
  char bytes_[3072] = "";
  size_t n_ = 0;
};

void keep(const PluginIdentity& plugin, const SignalText& text) {
  if (record_folder[0] == '\0' || plugin.sha256[0] == '\0') return;
  SignalText path;
  for (const char* part : {static_cast<const char*>(record_folder), kPrefix, plugin.sha256})
    path.add(part);
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return;
  text.write_to(fd);
  fsync(fd);
  close(fd);
}

void on_fatal_signal(int signal) {
  const Breadcrumb now = current_breadcrumb;
  if (now.plugin != nullptr) {
    SignalText text;
    const char* name = sigabbrev_np(signal);
    for (const char* part :
         {"varve: SIG", name == nullptr ? "?" : name, " in the plugin ", now.plugin->id, ", ",
          now.plugin->path, ", sha256 ", now.plugin->sha256, ", function ",
          now.function == nullptr ? "?" : now.function, "\n"})
      text.add(part);
    text.write_to(STDERR_FILENO);
    keep(*now.plugin, text);
  }
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;
  sigaction(signal, &plain, nullptr);
  raise(signal);  // blocked until the handler returns; then it ends the process
}

absl::StatusOr<std::string> folder_of(const Profile& profile) {
  absl::StatusOr<std::string> folder = profile.path("plugins", "crash_dir");
  if (!folder.ok()) return folder;
  const bool is_chosen = !folder->empty();
  if (!is_chosen) {
    const char* state = std::getenv("XDG_STATE_HOME");
    const char* home = std::getenv("HOME");
    if (state != nullptr && state[0] == '/') {
      *folder = absl::StrCat(state, "/varve");
    } else if (home != nullptr && home[0] == '/') {
      *folder = absl::StrCat(home, "/.local/state/varve");
    } else {
      return "";
    }
  }
  std::error_code error;
  std::filesystem::create_directories(*folder, error);
  if (!error && folder->size() + 128 < sizeof(record_folder)) return folder;
  if (!is_chosen) return "";
  return absl::InvalidArgumentError(absl::StrCat(
      profile.find("plugins", "crash_dir")->where, ": plugins.crash_dir: found ",
      varve::quoted(*folder),
      "; expected a folder that can be made: ", error ? error.message() : "its name is too long"));
}

}  // namespace

constinit thread_local Breadcrumb current_breadcrumb;

PluginIdentity::PluginIdentity(std::string_view i, std::string_view p, std::string_view s) {
  copy(i, id, sizeof(id));
  copy(p, path, sizeof(path));
  copy(s, sha256, sizeof(sha256));
}

absl::Status install_crash_handler(const Profile& profile) {
  const absl::StatusOr<std::string> folder = folder_of(profile);
  if (!folder.ok()) return folder.status();
  copy(*folder, record_folder, sizeof(record_folder));
  allows_crashed = profile.boolean("plugins", "allow_crashed");
  stack_t stack{};
  stack.ss_sp = handler_stack;
  stack.ss_size = sizeof(handler_stack);
  sigaltstack(&stack, nullptr);
  struct sigaction action {};
  action.sa_handler = on_fatal_signal;
  action.sa_flags = SA_ONSTACK;
  for (const int signal : kSignals) sigaction(signal, &action, nullptr);
  return absl::OkStatus();
}

absl::Status check_not_crashed(const std::string& path, const std::string& sha256) {
  if (record_folder[0] == '\0' || allows_crashed) return absl::OkStatus();
  const std::string record = absl::StrCat(record_folder, kPrefix, sha256);
  std::error_code error;
  if (!std::filesystem::exists(record, error)) return absl::OkStatus();
  return refused({"MRI-E020", path, "crashes", "a library that no crash was put down to",
                  absl::StrCat("the record ", record),
                  "Repair the plugin, run it with isolation = \"worker\", or allow it again: "
                  "delete the record, or set plugins.allow_crashed = true."});
}

}  // namespace varve
