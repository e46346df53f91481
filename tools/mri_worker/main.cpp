// mri-worker: the process in which varve runs a plugin whose table says isolation = "worker".
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tools/mri_worker/server.h"

namespace varve::worker {
namespace {

int refuse(const std::string& why) {
  std::fprintf(stderr, "mri-worker: %s\n", why.c_str());
  return 2;
}

// Whatever happens to the host, this process does not outlive it.
bool is_tied_to(long host) {
  return prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == static_cast<pid_t>(host);
}

bool set_limits(unsigned long memory_mb) {
  const rlimit none{0, 0};
  if (setrlimit(RLIMIT_CORE, &none) != 0) return false;
  if (memory_mb == 0) return true;
  const rlimit limit{memory_mb << 20, memory_mb << 20};
  return setrlimit(RLIMIT_AS, &limit) == 0;
}

int serve(char** arguments) {
  const int fd = std::atoi(arguments[0]);
  if (!is_tied_to(std::atol(arguments[1]))) return refuse("the host is gone");
  if (!set_limits(std::strtoul(arguments[2], nullptr, 10))) return refuse("limits cannot be set");
  absl::StatusOr<WorkerMemory> memory = WorkerMemory::attach(fd);
  close(fd);
  if (!memory.ok()) return refuse(std::string(memory.status().message()));
  Server(*std::move(memory)).run();
}

}  // namespace
}  // namespace varve::worker

int main(int argc, char** argv) {
  if (argc == 5 && std::string(argv[1]) == "--serve") return varve::worker::serve(argv + 2);
  return varve::worker::refuse(
      "started by varve, for a plugin whose table says isolation = \"worker\": --serve MEMORY_FD "
      "HOST_PID MEMORY_MB");
}
