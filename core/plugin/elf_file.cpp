#include "core/plugin/elf_file.h"

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

constexpr uint16_t kVersionIndexMask = 0x7fff;  // the top bit hides a symbol

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

// The text at `offset` of a table that ends with NUL, cut at kPluginTextBytesMax: whatever the
// table's size, this takes constant time.
absl::StatusOr<std::string> text_in(std::string_view texts, uint64_t offset) {
  if (offset >= texts.size()) return damaged("a name lies outside its table");
  const std::string_view rest = texts.substr(offset, kPluginTextBytesMax);
  return clean_text(rest.substr(0, rest.find('\0')), kPluginTextBytesMax);
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
absl::Status read_segments(const Elf64_Ehdr& header, ElfFile* elf) {
  Elf64_Phdr segment;
  for (uint64_t i = 0; i < header.e_phnum; ++i) {
    if (!read_entry(elf->bytes, header.e_phoff, i, header.e_phentsize, &segment)) {
      return damaged("the segment table lies outside the file");
    }
    if (segment.p_offset > elf->bytes.size() ||
        elf->bytes.size() - segment.p_offset < segment.p_filesz) {
      return damaged("a segment lies outside the file");
    }
    elf->segments.push_back(segment);
  }
  return absl::OkStatus();
}

absl::Status read_sections(const Elf64_Ehdr& header, std::string_view file,
                           std::vector<Elf64_Shdr>* sections) {
  sections->resize(header.e_shnum);
  for (uint64_t i = 0; i < header.e_shnum; ++i) {
    if (!read_entry(file, header.e_shoff, i, header.e_shentsize, &(*sections)[i])) {
      return damaged("the section table lies outside the file");
    }
  }
  return absl::OkStatus();
}

const Elf64_Shdr* find_section(const std::vector<Elf64_Shdr>& sections, uint32_t type) {
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type == type) return &section;
  }
  return nullptr;
}

absl::Status read_dynamic(ElfFile* elf) {
  for (const Elf64_Phdr& segment : elf->segments) {
    if (segment.p_type != PT_DYNAMIC) continue;
    const std::string_view table = elf->bytes.substr(segment.p_offset, segment.p_filesz);
    Elf64_Dyn entry;
    for (uint64_t i = 0; read_entry(table, 0, i, sizeof(entry), &entry); ++i) {
      if (entry.d_tag == DT_NULL) return absl::OkStatus();
      if (i == kPluginDynamicMax) return damaged("too many dynamic entries");
      elf->dynamic.push_back(entry);
    }
    return damaged("the dynamic table has no end");
  }
  return damaged("no dynamic table");
}

// Versions by symbol, when there are any: 0 and 1 bind to no library.
absl::Status read_symbols(const std::vector<Elf64_Shdr>& sections, const Elf64_Shdr& table,
                          ElfFile* elf) {
  const absl::StatusOr<std::string_view> symbols = bytes_of(elf->bytes, table);
  if (!symbols.ok()) return symbols.status();
  const uint64_t n = symbols->size() / sizeof(Elf64_Sym);
  if (n > kPluginSymbolsMax) return damaged("too many symbols");
  std::string_view versions;
  if (const Elf64_Shdr* section = find_section(sections, SHT_GNU_versym)) {
    const absl::StatusOr<std::string_view> bytes = bytes_of(elf->bytes, *section);
    if (!bytes.ok()) return bytes.status();
    versions = *bytes;
  }
  Elf64_Sym symbol;
  for (uint64_t i = 1; i < n; ++i) {
    read_entry(*symbols, 0, i, sizeof(symbol), &symbol);
    absl::StatusOr<std::string> name = text_in(elf->dynamic_texts, symbol.st_name);
    if (!name.ok()) return name.status();
    uint16_t version = 0;
    read_entry(versions, 0, i, sizeof(version), &version);
    elf->symbols.push_back({*std::move(name), static_cast<uint8_t>(ELF64_ST_BIND(symbol.st_info)),
                            static_cast<uint8_t>(ELF64_ST_TYPE(symbol.st_info)),
                            symbol.st_shndx != SHN_UNDEF, (version & kVersionIndexMask) > 1,
                            symbol.st_value, symbol.st_size});
  }
  return absl::OkStatus();
}

// A list of libraries, each with a list of versions; every offset leads forward.
absl::Status read_needed_versions(const std::vector<Elf64_Shdr>& sections, ElfFile* elf) {
  const Elf64_Shdr* section = find_section(sections, SHT_GNU_verneed);
  if (section == nullptr) return absl::OkStatus();
  const absl::StatusOr<std::string_view> bytes = bytes_of(elf->bytes, *section);
  if (!bytes.ok()) return bytes.status();
  Elf64_Verneed library;
  uint64_t at = 0;
  for (uint64_t n = 0; n < kPluginDynamicMax; ++n, at += library.vn_next) {
    if (!read_entry(*bytes, at, 0, sizeof(library), &library)) {
      return damaged("a needed version lies outside its table");
    }
    const absl::StatusOr<std::string> file = text_in(elf->dynamic_texts, library.vn_file);
    if (!file.ok()) return file.status();
    Elf64_Vernaux version;
    uint64_t aux = at + library.vn_aux;
    for (uint32_t i = 0; i < library.vn_cnt; ++i, aux += version.vna_next) {
      if (!read_entry(*bytes, aux, 0, sizeof(version), &version)) {
        return damaged("a needed version lies outside its table");
      }
      absl::StatusOr<std::string> name = text_in(elf->dynamic_texts, version.vna_name);
      if (!name.ok()) return name.status();
      if (elf->needed_versions.size() == kPluginDynamicMax) {
        return damaged("too many needed versions");
      }
      elf->needed_versions.push_back({*file, *std::move(name)});
    }
    if (library.vn_next == 0) return absl::OkStatus();
  }
  return damaged("too many needed versions");
}

// Tools read the section table, the system's loader reads the dynamic table: a file in which they
// differ would show other symbols than it has.
bool same_place(const ElfFile& elf, int64_t tag, const Elf64_Shdr& section) {
  const std::string_view bytes = elf.at_address(elf.dynamic_value(tag));
  return !bytes.empty() &&
         static_cast<uint64_t>(bytes.data() - elf.bytes.data()) == section.sh_offset;
}

}  // namespace

absl::StatusOr<ElfFile> ElfFile::read(std::string_view bytes) {
  ElfFile elf;
  elf.bytes = bytes;
  Elf64_Ehdr header;
  absl::Status status = check_header(bytes, &header);
  if (status.ok()) status = read_segments(header, &elf);
  std::vector<Elf64_Shdr> sections;
  if (status.ok()) status = read_sections(header, bytes, &sections);
  if (status.ok()) status = read_dynamic(&elf);
  if (!status.ok()) return status;

  const Elf64_Shdr* symbols = find_section(sections, SHT_DYNSYM);
  if (symbols == nullptr) return damaged("no table of dynamic symbols");
  if (symbols->sh_link >= sections.size()) {
    return damaged("the symbol table names no string table");
  }
  const Elf64_Shdr& texts = sections[symbols->sh_link];
  const absl::StatusOr<std::string_view> names = bytes_of(bytes, texts);
  if (!names.ok()) return names.status();
  if (names->empty() || names->back() != '\0') return damaged("the table of names has no end");
  elf.dynamic_texts = *names;
  if (!same_place(elf, DT_SYMTAB, *symbols) || !same_place(elf, DT_STRTAB, texts)) {
    return damaged("its section table and its dynamic table name different symbols");
  }
  status = read_symbols(sections, *symbols, &elf);
  if (status.ok()) status = read_needed_versions(sections, &elf);
  if (!status.ok()) return status;
  return elf;
}

uint64_t ElfFile::dynamic_value(int64_t tag, uint64_t missing) const {
  for (const Elf64_Dyn& entry : dynamic) {
    if (entry.d_tag == tag) return entry.d_un.d_val;
  }
  return missing;
}

bool ElfFile::has_dynamic(int64_t tag) const {
  for (const Elf64_Dyn& entry : dynamic) {
    if (entry.d_tag == tag) return true;
  }
  return false;
}

std::vector<std::string> ElfFile::dynamic_texts_of(int64_t tag) const {
  std::vector<std::string> texts;
  for (const Elf64_Dyn& entry : dynamic) {
    if (entry.d_tag != tag) continue;
    absl::StatusOr<std::string> text = text_in(dynamic_texts, entry.d_un.d_val);
    texts.push_back(text.ok() ? *std::move(text) : "(outside the file)");
  }
  return texts;
}

std::string_view ElfFile::at_address(uint64_t address) const {
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type != PT_LOAD || address < segment.p_vaddr ||
        address - segment.p_vaddr >= segment.p_filesz) {
      continue;
    }
    const uint64_t offset = address - segment.p_vaddr;
    return bytes.substr(segment.p_offset + offset, segment.p_filesz - offset);
  }
  return {};
}

}  // namespace varve
