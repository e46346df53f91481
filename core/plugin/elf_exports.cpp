#include "core/plugin/elf_exports.h"

#include <elf.h>

#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/limits.h"
#include "core/base/text.h"

namespace varve {
namespace {

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
#else
constexpr uint16_t kMachine = EM_AARCH64;
#endif

absl::Status damaged(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("not a sound ELF shared library: ", what));
}

// Copies entry `i` of a table of `size`-byte entries at `offset`; false when it is outside the
// file.
template <class T>
bool read_entry(std::string_view file, uint64_t offset, uint64_t i, uint64_t size, T* out) {
  uint64_t start = 0;
  if (size < sizeof(T) || __builtin_mul_overflow(i, size, &start) ||
      __builtin_add_overflow(start, offset, &start) || start > file.size() ||
      file.size() - start < sizeof(T)) {
    return false;
  }
  std::memcpy(out, file.data() + start, sizeof(T));
  return true;
}

absl::StatusOr<std::string_view> bytes_of(std::string_view file, const Elf64_Shdr& section) {
  if (section.sh_type == SHT_NOBITS || section.sh_offset > file.size() ||
      file.size() - section.sh_offset < section.sh_size) {
    return damaged("a section lies outside the file");
  }
  return file.substr(section.sh_offset, section.sh_size);
}

// The name at `offset`, which must end inside the table.
absl::StatusOr<std::string> name_at(std::string_view names, uint64_t offset) {
  if (offset >= names.size()) return damaged("a symbol's name lies outside its table");
  const size_t end = names.find('\0', offset);
  if (end == std::string_view::npos) return damaged("a symbol's name has no end");
  return clean_text(names.substr(offset, end - offset), kPluginTextBytesMax);
}

absl::Status check_header(std::string_view file, Elf64_Ehdr* header) {
  if (!read_entry(file, 0, 0, sizeof(Elf64_Ehdr), header) ||
      std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) {
    return damaged("no ELF header");
  }
  if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_ident[EI_DATA] != ELFDATA2LSB ||
      header->e_type != ET_DYN || header->e_machine != kMachine) {
    return damaged("it is for another machine or of another type");
  }
  if (header->e_shnum == 0) return damaged("no section table");
  return absl::OkStatus();
}

// A segment that ends behind the file would be mapped and crash the reader of its last pages.
absl::Status check_extents(std::string_view file, const Elf64_Ehdr& header) {
  Elf64_Phdr segment;
  for (uint64_t i = 0; i < header.e_phnum; ++i) {
    if (!read_entry(file, header.e_phoff, i, header.e_phentsize, &segment)) {
      return damaged("the segment table lies outside the file");
    }
    if (segment.p_offset > file.size() || file.size() - segment.p_offset < segment.p_filesz) {
      return damaged("a segment lies outside the file");
    }
  }
  Elf64_Shdr last;
  if (!read_entry(file, header.e_shoff, header.e_shnum - 1u, header.e_shentsize, &last)) {
    return damaged("the section table lies outside the file");
  }
  return absl::OkStatus();
}

bool is_export(const Elf64_Sym& symbol) {
  const unsigned binding = ELF64_ST_BIND(symbol.st_info);
  return symbol.st_shndx != SHN_UNDEF && binding != STB_LOCAL;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> elf_exports(std::string_view file) {
  Elf64_Ehdr header;
  if (const absl::Status status = check_header(file, &header); !status.ok()) return status;
  if (const absl::Status status = check_extents(file, header); !status.ok()) return status;

  Elf64_Shdr table, strings;
  bool found = false;
  for (uint64_t i = 0; i < header.e_shnum && !found; ++i) {
    if (!read_entry(file, header.e_shoff, i, header.e_shentsize, &table)) {
      return damaged("the section table lies outside the file");
    }
    found = table.sh_type == SHT_DYNSYM;
  }
  if (!found) return damaged("no table of dynamic symbols");
  if (table.sh_link >= header.e_shnum ||
      !read_entry(file, header.e_shoff, table.sh_link, header.e_shentsize, &strings)) {
    return damaged("the symbol table names no string table");
  }
  const absl::StatusOr<std::string_view> symbols = bytes_of(file, table);
  if (!symbols.ok()) return symbols.status();
  const absl::StatusOr<std::string_view> names = bytes_of(file, strings);
  if (!names.ok()) return names.status();
  if (symbols->size() / sizeof(Elf64_Sym) > kPluginSymbolsMax) return damaged("too many symbols");

  std::vector<std::string> exports;
  Elf64_Sym symbol;
  for (uint64_t i = 0; i < symbols->size() / sizeof(Elf64_Sym); ++i) {
    read_entry(*symbols, 0, i, sizeof(Elf64_Sym), &symbol);
    if (!is_export(symbol)) continue;
    absl::StatusOr<std::string> name = name_at(*names, symbol.st_name);
    if (!name.ok()) return name.status();
    exports.push_back(*std::move(name));
  }
  return exports;
}

}  // namespace varve
