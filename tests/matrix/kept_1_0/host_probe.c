/* A host of the MRI version of its headers: loads one plugin, calls what its kind offers, looks at
 * every answer, and says in one line how it went.
 *
 * Usage: host_probe [--without INTERFACE]... PLUGIN
 * Exit code 0: "ok 1.0, 3 answers"; 1: refused, the line begins with the rule of mri/README.md;
 * 2: the plugin broke the contract. --without: an interface of the host that is not offered. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "calls.h"
#include "mri/mri.h"

#define MAJOR (MRI_HEADER_VERSION / 65536u)
#define HOST_MIN MRI_VERSION(MAJOR, 0)
#define HOST_MAX MRI_HEADER_VERSION

static const char* without[8];
static int n_without;

static void finish(int code, const char* format, ...) {
  va_list args;
  va_start(args, format);
  vprintf(format, args);
  va_end(args);
  putchar('\n');
  fflush(stdout);
  _exit(code); /* exit handlers of a plugin are not the question here */
}

static void on_fault(int signal_number) {
  static const char text[] = "broken: touched memory that is not the plugin's\n";
  ssize_t n = write(1, text, sizeof(text) - 1);
  (void)signal_number, (void)n;
  _exit(2);
}

static void write_log(const mri_host* host, uint32_t level, const char* text, uint64_t n_bytes) {
  (void)host, (void)level, (void)text, (void)n_bytes;
}

static uint32_t define(const mri_host* host, uint32_t kind, const char* name, const char* help) {
  (void)host, (void)kind, (void)name, (void)help;
  return 1;
}

static void record(const mri_host* host, uint32_t id, double value) {
  (void)host, (void)id, (void)value;
}

static uint32_t concurrency(const mri_host* host) {
  (void)host;
  return 1;
}

static void parallel_for(const mri_host* host, uint64_t n,
                         void (*task)(void* user, uint64_t i, uint32_t worker), void* user) {
  (void)host;
  while (n-- > 0) task(user, n, 0);
}

static void* alloc(const mri_host* host, uint64_t bytes, uint64_t align, const char* tag) {
  void* p = NULL;
  (void)host, (void)tag;
  return posix_memalign(&p, align < sizeof(void*) ? sizeof(void*) : align, bytes) == 0 ? p : NULL;
}

static void release(const mri_host* host, void* p) {
  (void)host;
  free(p);
}

static const void* find_peer(const mri_host* host, const char* id, uint32_t ordinal, void** self) {
  (void)host, (void)id, (void)ordinal;
  *self = NULL;
  return NULL;
}

static const void* get_interface(const mri_host* host, const char* id) {
  static const mri_host_log_v1 log = {sizeof(log), 0, write_log};
  static const mri_host_metrics_v1 metrics = {sizeof(metrics), 0, define, record};
  static const mri_host_threads_v1 threads = {sizeof(threads), 0, concurrency, parallel_for};
  static const mri_host_buffer_v1 buffer = {sizeof(buffer), 0, alloc, release};
  static const mri_host_stack_v1 stack = {sizeof(stack), 0, find_peer};
  int i;
  (void)host;
  for (i = 0; i < n_without; ++i) {
    if (strcmp(id, without[i]) == 0) return NULL;
  }
  if (strcmp(id, MRI_HOST_LOG) == 0) return &log;
  if (strcmp(id, MRI_HOST_METRICS) == 0) return &metrics;
  if (strcmp(id, MRI_HOST_THREADS) == 0) return &threads;
  if (strcmp(id, MRI_HOST_BUFFER) == 0) return &buffer;
  return strcmp(id, MRI_HOST_STACK) == 0 ? &stack : NULL;
}

static void refuse_range(const mri_plugin_entry* entry) {
  finish(1, "MRI-E012 %s: version range: wants MRI %u.%u..%u.%u, has a host of %u.%u..%u.%u.",
         entry->plugin_id, entry->min_version >> 16, entry->min_version & 0xffff,
         entry->max_version >> 16, entry->max_version & 0xffff, HOST_MIN >> 16, HOST_MIN & 0xffff,
         HOST_MAX >> 16, HOST_MAX & 0xffff);
}

/* The entry for this host's major. An older one is known well enough to name its range; of a newer
 * one only the symbol's name is. */
static const mri_plugin_entry* find_entry(const char* path, void* library) {
  char name[32];
  unsigned major;
  snprintf(name, sizeof(name), "mri_plugin_entry_v%u", MAJOR);
  const mri_plugin_entry* entry = dlsym(library, name);
  if (entry != NULL) return entry;
  for (major = MAJOR - 1; major > 0; --major) {
    snprintf(name, sizeof(name), "mri_plugin_entry_v%u", major);
    if ((entry = dlsym(library, name)) != NULL) refuse_range(entry);
  }
  finish(1,
         "MRI-E005 %s: entry: wants the data symbol mri_plugin_entry_v%u, has none: not for a "
         "host of %u.%u..%u.%u.",
         path, MAJOR, HOST_MIN >> 16, HOST_MIN & 0xffff, HOST_MAX >> 16, HOST_MAX & 0xffff);
  return NULL;
}

static uint32_t negotiated(const mri_plugin_entry* entry) {
  const uint32_t chosen = HOST_MAX < entry->max_version ? HOST_MAX : entry->max_version;
  if (chosen < HOST_MIN || chosen < entry->min_version) refuse_range(entry);
  return chosen;
}

static void check_entry(const char* path, const mri_plugin_entry* entry) {
  if (memcmp(entry->magic, MRI_MAGIC, sizeof(entry->magic)) != 0) {
    finish(1, "MRI-E006 %s: magic", path);
  }
  if (entry->struct_size < sizeof(mri_plugin_entry)) finish(1, "MRI-E007 %s: entry size", path);
  if (interface_of(entry->kind) == NULL) finish(1, "MRI-E008 %s: kind", path);
}

static const char* lacks_timings(mri_plugin* plugin, const char* kind) {
  if (strcmp(kind, "runtime") != 0) return "";
  return plugin->get_interface(plugin->self, MRI_TIMINGS) == NULL ? ", no " MRI_TIMINGS : "";
}

static void run_plugin(const mri_plugin_entry* entry) {
  const uint32_t chosen = negotiated(entry);
  const mri_host host = {sizeof(mri_host), chosen, HOST_MIN, HOST_MAX,
                         "host_probe",     "1",    NULL,     get_interface};
  mri_plugin* plugin = NULL;
  uint64_t n_answers = 0;
  mri_error err;
  memset(&err, 0, sizeof(err));
  err.struct_size = sizeof(err);
  if (entry->open(&host, chosen, &plugin, &err) != MRI_OK) {
    finish(1, "MRI-E016 %s: open: %s", entry->plugin_id, err.msg);
  }
  const char* wrong = call_query_caps(plugin);
  if (wrong != NULL) finish(2, "broken: query_caps: %s", wrong);
  const void* table = plugin->get_interface(plugin->self, interface_of(entry->kind));
  if (table == NULL) finish(1, "MRI-E017 %s: %s", entry->plugin_id, interface_of(entry->kind));
  if (plugin->activate(plugin->self, NULL, 0, &err) != MRI_OK) {
    finish(1, "MRI-E018 %s: activate: %s", entry->plugin_id, err.msg);
  }
  wrong = call_kind(entry->kind, table, plugin->self, &n_answers);
  if (wrong != NULL) finish(2, "broken: %s", wrong);
  const char* lacks = lacks_timings(plugin, entry->kind);
  if (plugin->drain(plugin->self, 1000000000, &err) != MRI_OK) finish(2, "broken: drain failed");
  plugin->close(plugin->self);
  finish(0, "ok %u.%u, %llu answers%s", chosen >> 16, chosen & 0xffff,
         (unsigned long long)n_answers, lacks);
}

int main(int argc, char** argv) {
  int i = 1;
  for (; i + 2 < argc && strcmp(argv[i], "--without") == 0 && n_without < 8; i += 2) {
    without[n_without++] = argv[i + 1];
  }
  if (i + 1 != argc) finish(3, "usage: host_probe [--without INTERFACE]... PLUGIN");
  signal(SIGSEGV, on_fault);
  signal(SIGBUS, on_fault);
  void* library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) finish(1, "MRI-E004 %s: loading: %s", argv[i], dlerror());
  const mri_plugin_entry* entry = find_entry(argv[i], library);
  check_entry(argv[i], entry);
  run_plugin(entry);
  return 3;
}
