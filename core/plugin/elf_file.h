// A 64-bit ELF shared library of this machine, read from its bytes before it is loaded. The bytes
// are not trusted: every offset is checked, and an error says what is wrong in them.
#pragma once

#include <elf.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace varve {

struct ElfSymbol {
  std::string name;
  uint8_t binding = 0, type = 0;  // STB_*, STT_*
  bool is_defined = false;
  bool has_version = false;  // bound to one library by a version that is needed of it
  uint64_t address = 0, size = 0;
};

// "version GLIBC_2.34 of libc.so.6 must be there".
struct ElfNeededVersion {
  std::string library, version;
};

struct ElfFile {
  // `bytes` must outlive the result.
  static absl::StatusOr<ElfFile> read(std::string_view bytes);

  std::string_view bytes;
  std::vector<Elf64_Phdr> segments;
  std::vector<Elf64_Dyn> dynamic;  // without the end mark
  std::vector<ElfSymbol> symbols;  // the dynamic ones, in file order, without the null symbol
  std::vector<ElfNeededVersion> needed_versions;
  std::string_view dynamic_texts;  // ends with NUL

  // The first dynamic entry with this tag; `missing` when there is none.
  uint64_t dynamic_value(int64_t tag, uint64_t missing = 0) const;
  bool has_dynamic(int64_t tag) const;
  // The texts of all entries with this tag, for example DT_NEEDED; at most kPluginTextBytesMax
  // bytes each, without control characters.
  std::vector<std::string> dynamic_texts_of(int64_t tag) const;
  // From `address` of the loaded library to the end of what the file has of its segment; empty when
  // the file has nothing there.
  std::string_view at_address(uint64_t address) const;
};

}  // namespace varve
