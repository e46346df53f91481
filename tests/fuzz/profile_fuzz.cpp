// Any bytes as a profile (and, after a NUL, as a --set): a Profile or an error of one line, nothing
// else.
#include <cstdlib>
#include <string_view>

#include "core/config/options.h"
#include "core/config/profile.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t split = input.find('\0');
  varve::ProfileSources sources{"fuzz.toml", {}, {}};
  if (split != std::string_view::npos) sources.overrides.emplace_back(input.substr(split + 1));
  const auto profile = varve::Profile::parse(input.substr(0, split), sources);
  if (!profile.ok()) {
    if (profile.status().message().find('\n') != std::string::npos) std::abort();
    return 0;
  }
  varve::runtime_options(*profile);
  varve::generate_options(*profile);
  static const std::vector<varve::KeySpec> specs = {
      *varve::KeySpec::from_plugin(
          {"backing_dir", "", nullptr, "", MRI_PARAM_STRING, 0, 0, 0, 0, 0}),
      *varve::KeySpec::from_plugin(
          {"window_tokens", "", nullptr, "", MRI_PARAM_INT, 0, 1, 0, 9, 0}),
      *varve::KeySpec::from_plugin(
          {"summary_weight", "", nullptr, "", MRI_PARAM_FLOAT, 0, 1, 0, 1, 0})};
  for (const char* table : {"runtime", "attention"}) {
    const auto values = profile->plugin_values(table, specs);
    if (values.ok() && values->size() != specs.size()) std::abort();
  }
  return 0;
}
