// What a host would dislike in a plugin's file, found without loading it. mri/README.md lists the
// rules.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/plugin/elf_file.h"

namespace varve::cli {

enum class Severity { kInfo, kWarning, kError };
const char* severity_text(Severity severity);

struct Finding {
  std::string rule;  // "MRI-L004"
  Severity severity;
  std::string found;
  std::string fix;  // the flag, property or line that mends it
};

struct PluginCheck {
  // Empty where the file does not tell.
  std::string kind, id, version, build, build_id;
  std::vector<std::string> needs;  // the newest version of each family: "GLIBC_2.34"
  std::vector<Finding> findings;   // in order of the rules

  size_t count(Severity severity) const;
};

// Whether this system's copy of a library (a file name) lacks a version that is needed of it.
using SystemLacks = std::function<bool(const std::string& library, const std::string& version)>;

// `path` is for messages and for the name of the file; the bytes may be anything.
PluginCheck check_plugin(const std::string& path, std::string_view bytes,
                         const SystemLacks& system_lacks);

// The rules about the entry, as far as the file shows it: what the loader checks first (MRI-E…),
// MRI-L004 and MRI-L019.
void check_entry(const std::string& path, const ElfFile& elf, PluginCheck* check);

}  // namespace varve::cli
