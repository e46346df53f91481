#include "core/plugin/elf_exports.h"

#include "core/plugin/elf_file.h"

namespace varve {

absl::StatusOr<std::vector<std::string>> elf_exports(std::string_view file) {
  const absl::StatusOr<ElfFile> elf = ElfFile::read(file);
  if (!elf.ok()) return elf.status();
  std::vector<std::string> exports;
  for (const ElfSymbol& symbol : elf->symbols) {
    if (symbol.is_defined && symbol.binding != STB_LOCAL) exports.push_back(symbol.name);
  }
  return exports;
}

}  // namespace varve
