#include "core/plugin/elf_exports.h"

#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

namespace varve {
namespace {

std::string file_bytes(const std::string& name) {
  std::ifstream file(std::string(BAD_PLUGINS) + "/" + name, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(ElfExports, ListsWhatALibraryDefines) {
  const auto sound = elf_exports(file_bytes("quantizer-sound.so"));
  ASSERT_TRUE(sound.ok()) << sound.status();
  EXPECT_THAT(*sound, testing::ElementsAre("mri_plugin_entry_v1"));

  const auto two = elf_exports(file_bytes("quantizer-two_symbols.so"));
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_THAT(*two, testing::IsSupersetOf({"mri_plugin_entry_v1", "helper_that_should_be_hidden"}));
}

TEST(ElfExports, RefusesWhatIsNotALibraryOfThisMachine) {
  EXPECT_FALSE(elf_exports("").ok());
  EXPECT_FALSE(elf_exports("#!/bin/sh\n").ok());
  std::string other = file_bytes("quantizer-sound.so");
  other[offsetof(Elf64_Ehdr, e_machine)] = EM_MIPS;
  EXPECT_FALSE(elf_exports(other).ok());
}

TEST(ElfExports, RefusesEveryTruncationOfTheTables) {
  const std::string whole = file_bytes("quantizer-sound.so");
  for (size_t n = 0; n < whole.size(); n += 61) {
    const auto exports = elf_exports(std::string_view(whole).substr(0, n));
    EXPECT_FALSE(exports.ok()) << n << " of " << whole.size() << " bytes";
  }
}

// For the sanitizers: whatever the bytes say, nothing outside the file is read.
TEST(ElfExports, SurvivesDamagedHeaders) {
  const std::string whole = file_bytes("quantizer-sound.so");
  Elf64_Ehdr header;
  std::memcpy(&header, whole.data(), sizeof(header));
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = whole;
    for (int change = 0; change < 4; ++change) {
      const bool in_sections = random() % 4 != 0;
      const size_t at = in_sections ? header.e_shoff + random() % (bytes.size() - header.e_shoff)
                                    : random() % sizeof(Elf64_Ehdr);
      bytes[at] = static_cast<char>(random() % 2 ? 0xff : random());
    }
    elf_exports(bytes).status().IgnoreError();
  }
}

}  // namespace
}  // namespace varve
