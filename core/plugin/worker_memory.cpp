#include "core/plugin/worker_memory.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"

namespace varve {
namespace {

constexpr uint64_t kFileBytes = kWorkerSlots * sizeof(WorkerSlot);

absl::Status system_error(const char* what) {
  return absl::InternalError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// The words lie in memory of two processes, so the futex cannot be a private one.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t seen, uint64_t ns_max) {
  timespec limit{static_cast<time_t>(ns_max / 1'000'000'000),
                 static_cast<long>(ns_max % 1'000'000'000)};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, ns_max == UINT64_MAX ? nullptr : &limit, nullptr, 0);
}

void futex_wake(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool spin_while(const std::atomic<uint32_t>& word, uint32_t seen) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(kWorkerSpinUs);
  do {
    for (int i = 0; i < 32; ++i) {
      if (word.load(std::memory_order_acquire) != seen) return true;
      __builtin_ia32_pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

absl::StatusOr<WorkerSlot*> map(int fd) {
  void* memory = mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return system_error("mapping the memory shared with a worker");
  return static_cast<WorkerSlot*>(memory);
}

}  // namespace

void wait_while(const std::atomic<uint32_t>& word, uint32_t seen, std::atomic<uint32_t>& sleeps,
                uint64_t ns_max, bool looks_first) {
  if (looks_first && spin_while(word, seen)) return;
  sleeps.store(1, std::memory_order_seq_cst);
  // Between the store and here the other side may have answered without seeing it.
  if (word.load(std::memory_order_seq_cst) == seen) futex_wait(word, seen, ns_max);
  sleeps.store(0, std::memory_order_seq_cst);
}

void store_and_wake(std::atomic<uint32_t>& word, uint32_t value,
                    const std::atomic<uint32_t>& sleeps) {
  word.store(value, std::memory_order_seq_cst);
  if (sleeps.load(std::memory_order_seq_cst) != 0) futex_wake(word);
}

void store_and_wake_all(std::atomic<uint32_t>& word, uint32_t value) {
  word.store(value, std::memory_order_seq_cst);
  futex_wake(word);
}

WorkerMemory::WorkerMemory(WorkerMemory&& other) noexcept
    : slots_(std::exchange(other.slots_, nullptr)) {}

WorkerMemory::~WorkerMemory() {
  if (slots_ != nullptr) munmap(slots_, kFileBytes);
}

absl::StatusOr<WorkerMemory> WorkerMemory::create(int* fd) {
  *fd = memfd_create("mri-worker", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (*fd < 0) return system_error("memfd_create");
  absl::Status failure;
  if (fchmod(*fd, 0600) != 0 || ftruncate(*fd, kFileBytes) != 0 ||
      fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    failure = system_error("making the memory shared with a worker");
  } else if (absl::StatusOr<WorkerMemory> memory = attach(*fd); memory.ok()) {
    return memory;
  } else {
    failure = memory.status();
  }
  close(std::exchange(*fd, -1));
  return failure;
}

absl::StatusOr<WorkerMemory> WorkerMemory::attach(int fd) {
  struct stat file {};
  if (fstat(fd, &file) != 0) return system_error("descriptor of the shared memory");
  if (static_cast<uint64_t>(file.st_size) != kFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the shared memory has ", file.st_size,
                                                   " bytes; expected ", kFileBytes,
                                                   ": host and mri-worker differ in version"));
  }
  const absl::StatusOr<WorkerSlot*> slots = map(fd);
  if (!slots.ok()) return slots.status();
  WorkerMemory memory;
  memory.slots_ = *slots;
  return memory;
}

}  // namespace varve
