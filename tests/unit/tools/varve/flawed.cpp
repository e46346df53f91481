// A sound quantizer with at most one flaw, which FLAW_… chooses; the flags of the build add others.
#include "tests/support/bad_plugins/sound.h"

#if defined(FLAW_TLS)
static thread_local int counter;
extern "C" __attribute__((used)) int count_up() { return ++counter; }
#elif defined(FLAW_UNIQUE)  // as gcc makes of a static member of a template
asm(R"(
  .data
  .globl shared_counter
  .type shared_counter, @gnu_unique_object
  .size shared_counter, 4
shared_counter:
  .long 0
  .text
)");
#elif defined(FLAW_UNDEFINED)
extern "C" void nobody_has_this();
extern "C" __attribute__((used)) void call() { nobody_has_this(); }
#elif defined(FLAW_CONSTRUCTOR)
// Volatile: clang runs at compile time what it can.
static volatile int n_loads = 0;
__attribute__((constructor)) static void early() { n_loads = n_loads + 1; }
#elif defined(FLAW_PROCESS)
#include <clocale>
extern "C" __attribute__((used)) void set() { setlocale(LC_ALL, ""); }
#elif defined(FLAW_NEEDS)
extern "C" int helper();
extern "C" __attribute__((used)) int call() { return helper(); }
#endif
