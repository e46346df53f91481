#include "core/plugin/entry_check.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/limits.h"
#include "core/base/text.h"
#include "core/plugin/refusal.h"

namespace varve {
namespace {

constexpr const char* kKinds[] = {"runtime",   "kv_tier", "quantizer",
                                  "attention", "summary", "batching"};

std::string range_text(VersionRange range) {
  return absl::StrCat(version_text(range.min), "..", version_text(range.max));
}

// The text at `s`, or "" when it is null or has no end within the cap.
std::string bounded(const char* s) {
  if (s == nullptr) return "";
  const size_t n = strnlen(s, kPluginTextBytesMax + 1);
  return n > kPluginTextBytesMax ? "" : std::string(s, n);
}

absl::Status check_shape(const mri_plugin_entry& entry, const std::string& path) {
  if (std::memcmp(entry.magic, MRI_MAGIC, sizeof(entry.magic)) != 0) {
    return refused({"MRI-E006", path, "magic", "the 8 bytes MRIPLUG\\x01", "other bytes",
                    "Define mri_plugin_entry_v1 with MRI_PLUGIN(…) or set its magic."});
  }
  if (entry.struct_size < sizeof(mri_plugin_entry)) {
    return refused(
        {"MRI-E007", path, "entry size", absl::StrCat(sizeof(mri_plugin_entry), " bytes or more"),
         absl::StrCat(entry.struct_size), "Set struct_size to sizeof(mri_plugin_entry)."});
  }
  return absl::OkStatus();
}

bool is_id(const std::string& id) {
  return !id.empty() && std::all_of(id.begin(), id.end(), [](char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '.' || c == '_' || c == '-';
  });
}

absl::Status check_texts(const PluginInfo& info, const std::string& path, std::string_view kind) {
  if (!is_id(info.id)) {
    return refused({"MRI-E013", path, "plugin id", "reverse DNS of [a-z0-9._-]",
                    absl::StrCat("\"", clean_text(info.id, kPluginTextBytesMax), "\""),
                    "Correct plugin_id."});
  }
  if (info.version.empty() || info.build.empty()) {
    return refused({"MRI-E013", info.id, "plugin version and build id",
                    absl::StrCat("1 to ", kPluginTextBytesMax, " bytes each"), "none",
                    "Set plugin_version and build_id."});
  }
  if (std::find(std::begin(kKinds), std::end(kKinds), info.kind) == std::end(kKinds)) {
    return refused({"MRI-E008", info.id, "kind", absl::StrJoin(kKinds, " | "),
                    absl::StrCat("\"", clean_text(info.kind, kPluginTextBytesMax), "\""),
                    "Correct kind, or use a varve that knows it."});
  }
  if (!kind.empty() && info.kind != kind) {
    return refused({"MRI-E008", info.id, "kind", std::string(kind), info.kind,
                    "Name it in the profile's table of its own kind."});
  }
  return absl::OkStatus();
}

absl::Status check_versions(PluginInfo* info, VersionRange host) {
  const VersionRange plugin = info->versions;
  if (plugin.min > plugin.max || plugin.min >> 16 != plugin.max >> 16) {
    return refused({"MRI-E011", info->id, "version range", "min <= max in one major",
                    range_text(plugin), "Correct min_version and max_version."});
  }
  info->negotiated = negotiated_version(host, plugin);
  if (info->negotiated != 0) return absl::OkStatus();
  const bool too_new = plugin.min > host.max;
  return refused({"MRI-E012", info->id, "version range", absl::StrCat("MRI ", range_text(plugin)),
                  absl::StrCat("a host of ", range_text(host)),
                  too_new ? absl::StrCat("Rebuild the plugin with MRI_MIN_VERSION ",
                                         version_text(host.max), " or upgrade varve.")
                          : "Rebuild the plugin with newer MRI headers."});
}

absl::Status check_params(const mri_plugin_entry& entry, PluginInfo* info) {
  const auto bad = [&](const std::string& has) {
    return refused({"MRI-E014", info->id, "parameter table",
                    "unique keys with a type and a default within the limits", has,
                    "Use mri::param_int(…) and its like."});
  };
  if (entry.n_params > kPluginParamsMax || (entry.n_params > 0 && entry.params == nullptr)) {
    return bad(absl::StrCat(entry.n_params, " lines at ", entry.params == nullptr ? "null" : "…"));
  }
  std::set<std::string> keys;
  for (uint64_t i = 0; i < entry.n_params; ++i) {
    absl::StatusOr<KeySpec> spec = KeySpec::from_plugin(entry.params[i]);
    if (!spec.ok()) return bad(std::string(spec.status().message()));
    if (!keys.insert(spec->key).second) return bad(absl::StrCat(quoted(spec->key), " twice"));
    const absl::StatusOr<Value> value = checked_value(*spec, spec->default_value);
    if (!value.ok()) {
      return bad(
          absl::StrCat("the default of ", quoted(spec->key), ": ", value.status().message()));
    }
    info->params.push_back(*std::move(spec));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PluginInfo> checked_entry(const mri_plugin_entry& entry, const std::string& path,
                                         std::string_view kind, VersionRange host) {
  absl::Status status = check_shape(entry, path);
  if (!status.ok()) return status;
  PluginInfo info;
  info.path = path;
  info.id = bounded(entry.plugin_id);
  info.version = clean_text(bounded(entry.plugin_version), kPluginTextBytesMax);
  info.build = clean_text(bounded(entry.build_id), kPluginTextBytesMax);
  info.kind = bounded(entry.kind);
  info.built_version = entry.built_version;
  info.versions = {entry.min_version, entry.max_version};

  status = check_texts(info, path, kind);
  if (status.ok()) status = check_versions(&info, host);
  if (status.ok() && entry.open == nullptr) {
    status = refused({"MRI-E009", info.id, "entry", "a function open", "null", "Set open."});
  }
  if (status.ok()) status = check_params(entry, &info);
  if (!status.ok()) return status;
  return info;
}

}  // namespace varve
