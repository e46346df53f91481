#include "core/plugin/worker_messages.h"

#include <deque>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/text.h"
#include "core/plugin/entry_check.h"

namespace varve {
namespace {

absl::Status bad_message(const char* what) {
  return absl::InternalError(absl::StrCat("the worker's message about ", what,
                                          " cannot be read: host and mri-worker differ in version, "
                                          "or the plugin damages its process"));
}

// Entry and parameters as they were in the other process, with this process's pointers.
class ForeignEntry {
 public:
  explicit ForeignEntry(Unpacker& from) {
    std::memcpy(entry_.magic, MRI_MAGIC, sizeof(entry_.magic));
    entry_.struct_size = sizeof(entry_);
    entry_.built_version = from.get<uint32_t>();
    entry_.min_version = from.get<uint32_t>();
    entry_.max_version = from.get<uint32_t>();
    entry_.plugin_id = text(from);
    entry_.plugin_version = text(from);
    entry_.build_id = text(from);
    entry_.kind = text(from);
    entry_.open = [](const mri_host*, uint32_t, mri_plugin**, mri_error*) -> mri_status {
      return MRI_E_STATE;  // the real one is in the worker
    };
    const auto n = from.get<uint32_t>();
    for (uint32_t i = 0; i < n && from.is_sound() && i < kPluginParamsMax; ++i) add_param(from);
    entry_.params = params_.data();
    entry_.n_params = params_.size();
  }
  ForeignEntry(const ForeignEntry&) = delete;
  ForeignEntry& operator=(const ForeignEntry&) = delete;
  const mri_plugin_entry& entry() const { return entry_; }

 private:
  const char* text(Unpacker& from) { return texts_.emplace_back(from.get_text()).c_str(); }

  void add_param(Unpacker& from) {
    mri_param_desc desc{};
    desc.key = text(from);
    desc.help = text(from);
    desc.choices = text(from);
    desc.default_string = text(from);
    desc.type = from.get<uint32_t>();
    desc.default_number = from.get<double>();
    desc.min = from.get<double>();
    desc.max = from.get<double>();
    params_.push_back(desc);
  }

  mri_plugin_entry entry_{};
  std::deque<std::string> texts_;  // keeps its elements in place
  std::vector<mri_param_desc> params_;
};

void put_param(const mri_param_desc& desc, Packer* to) {
  for (const char* s : {desc.key, desc.help, desc.choices, desc.default_string})
    to->put_text(s == nullptr ? "" : s);
  to->put(desc.type);
  to->put(desc.default_number);
  to->put(desc.min);
  to->put(desc.max);
}

}  // namespace

std::string packed_load(const LoadMessage& message) {
  Packer to;
  to.put_text(message.path);
  to.put_text(message.kind);
  to.put_text(message.who);
  to.put_text(message.sha256);
  to.put(message.host_versions.min);
  to.put(message.host_versions.max);
  to.put(message.buffer_bytes_max);
  to.put(static_cast<uint32_t>(message.has_threads));
  to.put(static_cast<uint32_t>(message.withheld.size()));
  for (const std::string& id : message.withheld) to.put_text(id);
  return to.bytes();
}

absl::StatusOr<LoadMessage> unpacked_load(std::string_view bytes) {
  Unpacker from(bytes);
  LoadMessage message;
  message.path = from.get_text();
  message.kind = from.get_text();
  message.who = from.get_text();
  message.sha256 = from.get_text();
  message.host_versions.min = from.get<uint32_t>();
  message.host_versions.max = from.get<uint32_t>();
  message.buffer_bytes_max = from.get<uint64_t>();
  message.has_threads = from.get<uint32_t>() != 0;
  const auto n = from.get<uint32_t>();
  for (uint32_t i = 0; i < n && from.is_sound(); ++i) message.withheld.push_back(from.get_text());
  if (!from.is_done()) return bad_message("loading");
  return message;
}

std::string packed_library(const absl::StatusOr<PluginLibrary>& library) {
  Packer to;
  to.put(static_cast<int32_t>(library.status().code()));
  to.put_text(std::string(library.status().message()));
  if (!library.ok()) return to.bytes();
  const PluginInfo& info = library->info;
  to.put(info.built_version);
  to.put(info.versions.min);
  to.put(info.versions.max);
  for (const std::string* s : {&info.id, &info.version, &info.build, &info.kind}) to.put_text(*s);
  to.put(static_cast<uint32_t>(library->entry->n_params));
  for (uint64_t i = 0; i < library->entry->n_params; ++i) put_param(library->entry->params[i], &to);
  return to.bytes();
}

absl::StatusOr<PluginInfo> unpacked_library(std::string_view bytes, const std::string& path,
                                            std::string_view kind, VersionRange host) {
  Unpacker from(bytes);
  const auto code = from.get<int32_t>();
  const std::string text = from.get_text();
  if (!from.is_sound() || code < 0 || code > 16) return bad_message("the library");
  if (code != 0) {
    return absl::Status(static_cast<absl::StatusCode>(code), clean_text(text, kLogLineBytesMax));
  }
  const ForeignEntry foreign(from);
  if (!from.is_done()) return bad_message("the library");
  absl::StatusOr<PluginInfo> info = checked_entry(foreign.entry(), path, kind, host);
  if (info.ok()) info->name = plugin_name_in(path, info->kind);
  return info;
}

std::string packed_params(const mri_param* params, uint64_t n_params) {
  Packer to;
  to.put(static_cast<uint32_t>(n_params));
  for (uint64_t i = 0; i < n_params; ++i) {
    to.put_text(params[i].key);
    to.put_text(params[i].string_value == nullptr ? "" : params[i].string_value);
    to.put(params[i].int_value);
    to.put(params[i].float_value);
    to.put(params[i].type);
  }
  return to.bytes();
}

absl::StatusOr<std::vector<mri_param>> unpacked_params(std::string_view bytes,
                                                       std::vector<std::string>* texts) {
  Unpacker from(bytes);
  std::vector<mri_param> params;
  const auto n = from.get<uint32_t>();
  if (n > kPluginParamsMax) return bad_message("parameters");
  texts->resize(uint64_t{2} * n);
  for (uint32_t i = 0; i < n; ++i) {
    std::string& key = (*texts)[2 * i] = from.get_text();
    std::string& text = (*texts)[2 * i + 1] = from.get_text();
    mri_param param{};
    param.key = key.c_str();
    param.int_value = from.get<int64_t>();
    param.float_value = from.get<double>();
    param.type = from.get<uint32_t>();
    if (param.type == MRI_PARAM_STRING) param.string_value = text.c_str();
    params.push_back(param);
  }
  if (!from.is_done()) return bad_message("parameters");
  return params;
}

std::string packed_numbers(const WorkerNumbers& numbers) {
  Packer to;
  to.put(numbers.buffer_bytes);
  to.put(static_cast<uint32_t>(numbers.metrics.size()));
  for (const MetricSample& sample : numbers.metrics) {
    to.put_text(sample.name);
    to.put_text(sample.help);
    to.put(sample.kind);
    to.put(sample.value);
    to.put(sample.count);
  }
  return to.bytes();
}

absl::StatusOr<WorkerNumbers> unpacked_numbers(std::string_view bytes) {
  Unpacker from(bytes);
  WorkerNumbers numbers;
  numbers.buffer_bytes = from.get<uint64_t>();
  const auto n = from.get<uint32_t>();
  if (n > kMetricsPerPluginMax) return bad_message("metrics");
  for (uint32_t i = 0; i < n; ++i) {
    MetricSample sample;
    sample.name = from.get_text();
    sample.help = clean_text(from.get_text(), kPluginTextBytesMax);
    sample.kind = from.get<uint32_t>();
    sample.value = from.get<double>();
    sample.count = from.get<uint64_t>();
    if (!is_metric_name(sample.name)) return bad_message("metrics");
    numbers.metrics.push_back(std::move(sample));
  }
  if (!from.is_done()) return bad_message("metrics");
  return numbers;
}

}  // namespace varve
