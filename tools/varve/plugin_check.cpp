#include "tools/varve/plugin_check.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace varve::cli {
namespace {

constexpr uint64_t kPointerBytes = 8;

// What every process of the host has anyway.
constexpr const char* kSystemLibraries[] = {
    "libc.so.6",  "libm.so.6",       "libstdc++.so.6",       "libgcc_s.so.1",        "libdl.so.2",
    "librt.so.1", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"};
constexpr const char* kThreadLibraries[] = {"libgomp.so",  "libomp.so", "libomp5.so",
                                            "libiomp5.so", "libtbb.so", "libtbb12.so"};
constexpr const char* kAllocators[] = {"libjemalloc.so", "libtcmalloc", "libmimalloc.so",
                                       "libtbbmalloc"};
constexpr const char* kProcessCalls[] = {
    "_exit",  "_Exit",     "daemon",    "exit",   "fork",        "putenv",   "quick_exit",
    "setenv", "setlocale", "sigaction", "signal", "sigprocmask", "unsetenv", "vfork"};

template <size_t n>
bool starts_with_any(const std::string& text, const char* const (&starts)[n]) {
  return std::any_of(std::begin(starts), std::end(starts),
                     [&](const char* start) { return absl::StartsWith(text, start); });
}

template <size_t n>
bool is_any(const std::string& text, const char* const (&names)[n]) {
  return std::find(std::begin(names), std::end(names), text) != std::end(names);
}

// "a, b, c and 4 more".
std::string list_text(std::vector<std::string> names) {
  constexpr size_t kShown = 3;
  const size_t n = names.size();
  names.resize(std::min(n, kShown));
  return absl::StrCat(absl::StrJoin(names, ", "),
                      n > kShown ? absl::StrCat(" and ", n - kShown, " more") : "");
}

class Rules {
 public:
  Rules(const std::string& path, const ElfFile& elf, PluginCheck* check)
      : path_(path), elf_(elf), check_(*check) {}

  void run(const SystemLacks& system_lacks) {
    exports();
    check_entry(path_, elf_, &check_);
    libraries();
    unique_symbols();
    thread_storage();
    search_paths();
    build_id();
    segments();
    text_relocations();
    hardening();
    undefined_symbols();
    versions(system_lacks);
    constructors();
    process_calls();
  }

 private:
  void add(const char* rule, Severity severity, std::string found, std::string fix) {
    check_.findings.push_back({rule, severity, std::move(found), std::move(fix)});
  }

  void exports() {
    std::vector<std::string> others;
    for (const ElfSymbol& symbol : elf_.symbols) {
      const bool is_export = symbol.is_defined && symbol.binding != STB_LOCAL;
      if (is_export && !absl::StartsWith(symbol.name, "mri_plugin_entry_v")) {
        others.push_back(symbol.name);
      }
    }
    if (others.empty()) return;
    add("MRI-L002", Severity::kError,
        absl::StrCat("exports ", others.size(), " symbols beside the entry: ", list_text(others)),
        "-fvisibility=hidden -Wl,--version-script=mri_plugin.map -Wl,--exclude-libs,ALL");
  }

  void libraries() {
    std::vector<std::string> threads, allocators, others;
    for (const std::string& name : elf_.dynamic_texts_of(DT_NEEDED)) {
      if (is_any(name, kSystemLibraries)) continue;
      is_self_contained_ = false;
      if (starts_with_any(name, kAllocators)) {
        allocators.push_back(name);
      } else if (starts_with_any(name, kThreadLibraries)) {
        threads.push_back(name);
      } else {
        others.push_back(name);
      }
    }
    if (!others.empty()) {
      add("MRI-L005", Severity::kWarning,
          absl::StrCat("needs ", list_text(others),
                       ": it must be installed wherever the plugin is, and one version serves all "
                       "plugins"),
          "link it statically: -Wl,-Bstatic, with -Wl,--exclude-libs,ALL");
    }
    if (!threads.empty()) {
      add("MRI-L006", Severity::kWarning,
          absl::StrCat("needs ", list_text(threads),
                       ": a second pool of threads beside the host's"),
          "use host.parallel_for; build without -fopenmp");
    }
    if (!allocators.empty()) {
      add("MRI-L007", Severity::kError,
          absl::StrCat("needs ", list_text(allocators), ": an allocator of its own in the host"),
          "link without it; memory comes from malloc, new or mri.host.buffer/1");
    }
  }

  void unique_symbols() {
    std::vector<std::string> names;
    for (const ElfSymbol& symbol : elf_.symbols) {
      if (symbol.binding == STB_GNU_UNIQUE) names.push_back(symbol.name);
    }
    if (names.empty()) return;
    add("MRI-L008", Severity::kError,
        absl::StrCat("has unique symbols, which two versions of a plugin would share: ",
                     list_text(names)),
        "-fno-gnu-unique (gcc), and -Wl,--version-script=mri_plugin.map");
  }

  void thread_storage() {
    if ((elf_.dynamic_value(DT_FLAGS) & DF_STATIC_TLS) == 0) return;
    add("MRI-L009", Severity::kError,
        "has thread-local variables in the static area, which is small and may be full when the "
        "plugin is loaded",
        "-ftls-model=global-dynamic, for libraries linked into it too");
  }

  void search_paths() {
    std::vector<std::string> inside, outside;
    for (const int64_t tag : {int64_t{DT_RPATH}, int64_t{DT_RUNPATH}}) {
      for (const std::string& paths : elf_.dynamic_texts_of(tag)) {
        const std::vector<std::string> parts = absl::StrSplit(paths, ':');
        for (const std::string& path : parts) {
          const bool is_beside =
              absl::StartsWith(path, "$ORIGIN") || absl::StartsWith(path, "${ORIGIN}");
          (is_beside ? inside : outside).push_back(path.empty() ? "(empty)" : path);
        }
      }
    }
    const std::string fix = "CMake: SKIP_BUILD_RPATH ON and INSTALL_RPATH \"\"; else no -Wl,-rpath";
    if (!outside.empty()) {
      add("MRI-L010", Severity::kError, absl::StrCat("looks for libraries in ", list_text(outside)),
          fix);
    } else if (!inside.empty()) {
      add("MRI-L010", Severity::kInfo,
          absl::StrCat("looks for libraries relative to itself: ", list_text(inside)), fix);
    }
  }

  // A note of owner "GNU": three words, the owner, the id; each padded to 4 bytes.
  void build_id() {
    for (const Elf64_Phdr& segment : elf_.segments) {
      if (segment.p_type != PT_NOTE) continue;
      std::string_view notes = elf_.bytes.substr(segment.p_offset, segment.p_filesz);
      Elf64_Nhdr note;
      while (notes.size() >= sizeof(note)) {
        std::memcpy(&note, notes.data(), sizeof(note));
        const uint64_t owner = (uint64_t{note.n_namesz} + 3) / 4 * 4;
        const uint64_t size = sizeof(note) + owner + (uint64_t{note.n_descsz} + 3) / 4 * 4;
        if (size > notes.size()) break;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_descsz >= 8 &&
            notes.substr(sizeof(note), note.n_namesz) == std::string_view("GNU\0", 4)) {
          const std::string_view id = notes.substr(sizeof(note) + owner, note.n_descsz);
          check_.build_id = absl::BytesToHexString({id.data(), id.size()});
          return;
        }
        notes.remove_prefix(size);
      }
    }
    add("MRI-L011", Severity::kWarning,
        "has no build id: a crash report cannot name its debug information",
        "-Wl,--build-id=sha1; strip keeps it");
  }

  void segments() {
    bool has_stack = false;
    for (const Elf64_Phdr& segment : elf_.segments) {
      has_stack = has_stack || (segment.p_type == PT_GNU_STACK && (segment.p_flags & PF_X) == 0);
      if (segment.p_type == PT_LOAD && (segment.p_flags & PF_W) != 0 &&
          (segment.p_flags & PF_X) != 0) {
        add("MRI-L012", Severity::kError, "has memory that is both writable and executable",
            "-Wl,-z,separate-code; no -Wl,-N");
      }
    }
    if (has_stack) return;
    add("MRI-L012", Severity::kError, "asks for an executable stack, for the whole process",
        "-Wl,-z,noexecstack; a .note.GNU-stack section in assembler sources");
  }

  void text_relocations() {
    if (!elf_.has_dynamic(DT_TEXTREL) && (elf_.dynamic_value(DT_FLAGS) & DF_TEXTREL) == 0) return;
    add("MRI-L013", Severity::kError, "has code that must be patched when it is loaded",
        "-fPIC for every source and static library; -Wl,-z,text finds the one without");
  }

  void hardening() {
    const bool binds_now = elf_.has_dynamic(DT_BIND_NOW) ||
                           (elf_.dynamic_value(DT_FLAGS) & DF_BIND_NOW) != 0 ||
                           (elf_.dynamic_value(DT_FLAGS_1) & DF_1_NOW) != 0;
    const bool has_relro =
        std::any_of(elf_.segments.begin(), elf_.segments.end(),
                    [](const Elf64_Phdr& segment) { return segment.p_type == PT_GNU_RELRO; });
    if (!binds_now) {
      add("MRI-L014", Severity::kInfo, "leaves functions to be found at their first call",
          "-Wl,-z,now");
    }
    if (!has_relro) {
      add("MRI-L014", Severity::kInfo, "leaves its table of addresses writable", "-Wl,-z,relro");
    }
  }

  // With only the system's libraries, which all have versions, an undefined symbol without one is
  // in none of them.
  void undefined_symbols() {
    std::vector<std::string> names;
    bool is_sanitized = false;
    for (const ElfSymbol& symbol : elf_.symbols) {
      if (symbol.is_defined || symbol.binding == STB_WEAK || symbol.has_version) continue;
      constexpr const char* kSanitizers[] = {"__asan_", "__ubsan_", "__tsan_",
                                             "__msan_", "__lsan_",  "__sanitizer_"};
      if (starts_with_any(symbol.name, kSanitizers)) {
        is_sanitized = true;
      } else {
        names.push_back(symbol.name);
      }
    }
    if (is_sanitized) {
      add("MRI-L015", Severity::kWarning,
          "is built with a sanitizer: only a host built with the same one can load it",
          "no -fsanitize=");
    }
    if (!names.empty() && is_self_contained_) {
      add("MRI-L015", Severity::kError,
          absl::StrCat("uses what none of its libraries has: ", list_text(names)),
          "-Wl,-z,defs names it at build time; link what has it");
    }
  }

  void versions(const SystemLacks& system_lacks) {
    std::map<std::string, std::vector<uint32_t>> newest;  // by family
    std::vector<std::string> lacking;
    for (const ElfNeededVersion& needed : elf_.needed_versions) {
      if (system_lacks(needed.library, needed.version)) {
        lacking.push_back(absl::StrCat(needed.version, " of ", needed.library));
      }
      const size_t split = needed.version.rfind('_');
      if (split == std::string::npos) continue;
      std::vector<uint32_t> numbers;
      const std::vector<std::string> words = absl::StrSplit(needed.version.substr(split + 1), '.');
      for (const std::string& word : words) {
        uint32_t number = 0;
        if (!absl::SimpleAtoi(word, &number)) break;
        numbers.push_back(number);
      }
      std::vector<uint32_t>& best = newest[needed.version.substr(0, split)];
      best = std::max(best, numbers);
    }
    for (const auto& [family, numbers] : newest) {
      check_.needs.push_back(absl::StrCat(family, "_", absl::StrJoin(numbers, ".")));
    }
    if (lacking.empty()) return;
    add("MRI-L016", Severity::kError,
        absl::StrCat("needs newer libraries than this system has: ", list_text(lacking)),
        "build on the oldest system that it shall run on; for GLIBCXX also STATIC_LIBSTDCXX of "
        "mri_add_plugin()");
  }

  // The compiler's own start-up code is one of each.
  void constructors() {
    const uint64_t n_init = elf_.dynamic_value(DT_INIT_ARRAYSZ) / kPointerBytes;
    const uint64_t n_fini = elf_.dynamic_value(DT_FINI_ARRAYSZ) / kPointerBytes;
    if (n_init <= 1 && n_fini <= 1) return;
    add("MRI-L017", Severity::kInfo,
        absl::StrCat("runs code of its own when it is loaded (", std::max<uint64_t>(n_init, 1) - 1,
                     ") or when the process ends (", std::max<uint64_t>(n_fini, 1) - 1,
                     "), before and after any check"),
        "no objects with constructors at namespace scope, <iostream> among them; do the work in "
        "activate() and close()");
  }

  void process_calls() {
    std::vector<std::string> names;
    for (const ElfSymbol& symbol : elf_.symbols) {
      if (!symbol.is_defined && is_any(symbol.name, kProcessCalls)) names.push_back(symbol.name);
    }
    if (names.empty()) return;
    add("MRI-L018", Severity::kWarning,
        absl::StrCat("calls what changes the whole process: ", list_text(names)),
        "return a status or throw mri::Error; leave signals, environment and locale to the host");
  }

  const std::string& path_;
  const ElfFile& elf_;
  PluginCheck& check_;
  bool is_self_contained_ = true;
};

}  // namespace

const char* severity_text(Severity severity) {
  switch (severity) {
    case Severity::kInfo:
      return "info";
    case Severity::kWarning:
      return "warning";
    case Severity::kError:
      return "error";
  }
  return "";
}

size_t PluginCheck::count(Severity severity) const {
  return static_cast<size_t>(
      std::count_if(findings.begin(), findings.end(),
                    [&](const Finding& finding) { return finding.severity == severity; }));
}

PluginCheck check_plugin(const std::string& path, std::string_view bytes,
                         const SystemLacks& system_lacks) {
  PluginCheck check;
  const absl::StatusOr<ElfFile> elf = ElfFile::read(bytes);
  if (!elf.ok()) {
    check.findings.push_back({"MRI-L001", Severity::kError, std::string(elf.status().message()),
                              "build it with mri_add_plugin() for this machine"});
    return check;
  }
  Rules(path, *elf, &check).run(system_lacks);
  return check;
}

}  // namespace varve::cli
