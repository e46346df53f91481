// A plugin's file before it is loaded: reading its exports and checking it by all rules may find
// fault with any bytes and must do nothing else.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/plugin/elf_exports.h"
#include "tools/varve/plugin_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  varve::elf_exports(bytes).status().IgnoreError();
  varve::cli::check_plugin("/plugins/quantizer-fuzz.so", bytes,
                           [](const std::string&, const std::string&) { return false; });
  return 0;
}
