// The entry as the file shows it: its bytes, with the pointers that the loader would fill in. The
// checks themselves are the loader's own.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <filesystem>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/limits.h"
#include "core/plugin/entry_check.h"
#include "mri/entry.h"
#include "tools/varve/plugin_check.h"

namespace varve::cli {
namespace {

constexpr const char* kEntryName = "mri_plugin_entry_v1";
constexpr size_t kTextBytesMax = 4096;  // longer texts of a plugin are cut here

mri_status never_called(const mri_host*, uint32_t, mri_plugin**, mri_error*) {
  return MRI_E_INTERNAL;
}

// A struct at an address of the loaded library, and what its pointers lead to.
class Image {
 public:
  explicit Image(const ElfFile& elf) : elf_(elf) {
    std::string_view table = elf.at_address(elf.dynamic_value(DT_RELA));
    table = table.substr(0, std::min<uint64_t>(table.size(), elf.dynamic_value(DT_RELASZ)));
    Elf64_Rela relocation;
    for (size_t n = 0; table.size() >= sizeof(relocation) && n < kPluginSymbolsMax; ++n) {
      std::memcpy(&relocation, table.data(), sizeof(relocation));
      targets_[relocation.r_offset] = target(relocation);
      table.remove_prefix(sizeof(relocation));
    }
  }

  template <class T>
  bool read(uint64_t address, T* out) const {
    const std::string_view bytes = elf_.at_address(address);
    if (bytes.size() < sizeof(T)) return false;
    std::memcpy(static_cast<void*>(out), bytes.data(), sizeof(T));
    return true;
  }

  // The address that the pointer at `address` holds once the library is loaded; 0: null.
  uint64_t pointer(uint64_t address) const {
    const auto it = targets_.find(address);
    if (it != targets_.end()) return it->second;
    uint64_t in_place = 0;
    read(address, &in_place);
    return in_place;
  }

  // The text that the pointer at `address` leads to, null when it leads nowhere. Valid as long as
  // this.
  const char* text(uint64_t address) {
    const uint64_t at = pointer(address);
    if (at == 0) return nullptr;
    const std::string_view bytes = elf_.at_address(at).substr(0, kTextBytesMax);
    return texts_.emplace_back(bytes.substr(0, bytes.find('\0'))).c_str();
  }

  bool is_code(uint64_t address) const {
    return std::any_of(elf_.segments.begin(), elf_.segments.end(), [&](const Elf64_Phdr& s) {
      return s.p_type == PT_LOAD && (s.p_flags & PF_X) != 0 && address >= s.p_vaddr &&
             address - s.p_vaddr < s.p_filesz;
    });
  }

 private:
  // A relative relocation holds the address; another one names a symbol.
  uint64_t target(const Elf64_Rela& relocation) const {
    const uint64_t addend = static_cast<uint64_t>(relocation.r_addend);
    const uint64_t symbol = ELF64_R_SYM(relocation.r_info);
    if (symbol == 0 || symbol > elf_.symbols.size()) return addend;
    return elf_.symbols[symbol - 1].address + addend;
  }

  const ElfFile& elf_;
  absl::flat_hash_map<uint64_t, uint64_t> targets_;
  std::deque<std::string> texts_;
};

// The parameter table with its texts; shorter than it says when the file ends before it.
std::vector<mri_param_desc> read_params(Image* image, uint64_t table, uint64_t n) {
  std::vector<mri_param_desc> params;
  for (uint64_t i = 0; i < std::min(n, kPluginParamsMax); ++i) {
    const uint64_t at = table + i * sizeof(mri_param_desc);
    mri_param_desc param;
    if (!image->read(at, &param)) break;
    param.key = image->text(at + offsetof(mri_param_desc, key));
    param.help = image->text(at + offsetof(mri_param_desc, help));
    param.choices = image->text(at + offsetof(mri_param_desc, choices));
    param.default_string = image->text(at + offsetof(mri_param_desc, default_string));
    params.push_back(param);
  }
  return params;
}

// The loader's refusal, "MRI-E012 <who>: <what>: wants …, has …. <what to do>", as a finding.
Finding finding_of(const absl::Status& refusal) {
  const std::string text(refusal.message());
  const size_t rule_end = std::min(text.find(' '), text.size());
  const size_t found_end = text.rfind(". ");
  if (found_end == std::string::npos || found_end < rule_end) {
    return {text.substr(0, rule_end), Severity::kError, text, ""};
  }
  return {text.substr(0, rule_end), Severity::kError,
          text.substr(rule_end + 1, found_end - rule_end - 1), text.substr(found_end + 2)};
}

// <kind>-<name>.so, or no profile can name it.
void check_file_name(const std::string& path, PluginCheck* check) {
  const std::string name = std::filesystem::path(path).filename().string();
  if (absl::StartsWith(name, check->kind + "-") && absl::EndsWith(name, ".so")) return;
  check->findings.push_back(
      {"MRI-L019", Severity::kWarning,
       absl::StrCat("its file is called ", name, ", so a profile can only name it by its path"),
       absl::StrCat("call it ", check->kind, "-<name>.so, as mri_add_plugin() does")});
}

const ElfSymbol* find_entry(const ElfFile& elf) {
  for (const ElfSymbol& symbol : elf.symbols) {
    if (symbol.is_defined && symbol.name == kEntryName) return &symbol;
  }
  return nullptr;
}

}  // namespace

void check_entry(const std::string& path, const ElfFile& elf, PluginCheck* check) {
  const ElfSymbol* symbol = find_entry(elf);
  if (symbol == nullptr) {
    check->findings.push_back({"MRI-L003", Severity::kError,
                               absl::StrCat("does not export the data symbol ", kEntryName),
                               "MRI_PLUGIN(…) in one source; in C, MRI_EXPORT const "
                               "mri_plugin_entry mri_plugin_entry_v1"});
    return;
  }
  Image image(elf);
  mri_plugin_entry entry;
  const uint64_t at = symbol->address;
  if (symbol->type != STT_OBJECT || symbol->size < sizeof(entry) || image.is_code(at) ||
      !image.read(at, &entry)) {
    check->findings.push_back(
        {"MRI-L004", Severity::kError,
         absl::StrCat(kEntryName, " is not a constant of ", sizeof(entry), " bytes"),
         "define it as const mri_plugin_entry with constant values, not as a function or pointer"});
    return;
  }
  entry.plugin_id = image.text(at + offsetof(mri_plugin_entry, plugin_id));
  entry.plugin_version = image.text(at + offsetof(mri_plugin_entry, plugin_version));
  entry.build_id = image.text(at + offsetof(mri_plugin_entry, build_id));
  entry.kind = image.text(at + offsetof(mri_plugin_entry, kind));
  const std::vector<mri_param_desc> params =
      read_params(&image, image.pointer(at + offsetof(mri_plugin_entry, params)), entry.n_params);
  entry.params = params.empty() ? nullptr : params.data();
  if (entry.n_params <= kPluginParamsMax) entry.n_params = params.size();
  const uint64_t open = image.pointer(at + offsetof(mri_plugin_entry, open));
  entry.open = open == 0 ? nullptr : never_called;
  if (open != 0 && !image.is_code(open)) {
    check->findings.push_back({"MRI-L004", Severity::kError, "open of the entry is not in its code",
                               "set it to a function of the plugin"});
  }
  const absl::StatusOr<PluginInfo> info = checked_entry(entry, path, "", {});
  if (!info.ok()) {
    check->findings.push_back(finding_of(info.status()));
    return;
  }
  check->kind = info->kind;
  check->id = info->id;
  check->version = info->version;
  check->build = info->build;
  check_file_name(path, check);
}

}  // namespace varve::cli
