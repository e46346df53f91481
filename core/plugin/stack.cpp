#include "core/plugin/stack.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/limits.h"
#include "core/config/nearest_name.h"
#include "core/plugin/refusal.h"

namespace varve {
namespace {

// The values in the plugin's terms. `texts` keeps what the result points to.
absl::StatusOr<std::vector<mri_param>> checked_params(const PluginChoice& choice,
                                                      const PluginInfo& info,
                                                      std::vector<Value>* values) {
  std::vector<mri_param> params;
  values->reserve(choice.params.size());
  for (const auto& [key, given] : choice.params) {
    const auto spec = std::find_if(info.params.begin(), info.params.end(),
                                   [&key = key](const KeySpec& s) { return s.key == key; });
    if (spec == info.params.end()) {
      std::vector<std::string> known;
      for (const KeySpec& s : info.params) known.push_back(s.key);
      const std::string nearest = nearest_name(key, known);
      return refused(
          {"MRI-E015", info.id, absl::StrCat("parameter ", quoted(key)),
           absl::StrCat("one of ", absl::StrJoin(known, ", ")), "an unknown name",
           nearest.empty() ? "Remove it." : absl::StrCat("Did you mean ", nearest, "?")});
    }
    absl::StatusOr<Value> value = checked_value(*spec, given);
    if (!value.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("MRI-E015 ", info.id, ": parameter ", key, ": ", value.status().message()));
    }
    values->push_back(*std::move(value));
    mri_param param{};
    param.key = spec->key.c_str();
    if (const auto* b = std::get_if<bool>(&values->back())) {
      param.type = MRI_PARAM_BOOL;
      param.int_value = *b ? 1 : 0;
    } else if (const auto* n = std::get_if<int64_t>(&values->back())) {
      param.type = MRI_PARAM_INT;
      param.int_value = *n;
    } else if (const auto* x = std::get_if<double>(&values->back())) {
      param.type = MRI_PARAM_FLOAT;
      param.float_value = *x;
    } else {
      param.type = MRI_PARAM_STRING;
      param.string_value = std::get<std::string>(values->back()).c_str();
    }
    params.push_back(param);
  }
  return params;
}

std::string error_text(mri_status status, const mri_error& err) {
  const char* name = status_name(status);
  return absl::StrCat(name == nullptr ? "unknown status" : name, ": ", err.msg);
}

}  // namespace

// One opened plugin.
struct Stack::Member {
  Member(const PluginChoice& c, PluginLibrary l, const StackSpec& spec)
      : choice(c),
        library(std::move(l)),
        kind(*kind_interface(library.info.kind)),
        port(std::make_unique<PluginPort>(absl::StrCat(library.info.kind, "-", library.info.name),
                                          spec.services.log)) {
    port->negotiated = library.info.negotiated;
    // A crash of the host in a call to a worker is not the plugin's: no hash to note.
    port->guard.identify(
        {library.info.id, library.info.path, c.isolation.is_worker ? "" : library.info.sha256});
  }

  PluginChoice choice;
  PluginLibrary library;
  const KindInterface& kind;
  std::unique_ptr<PluginPort> port;
  std::unique_ptr<PluginHost> host;
  std::unique_ptr<WorkerPlugin> worker;  // the plugin's process, if it has one
  std::unique_ptr<Member> fallback;      // in this process, when that one cannot answer
  mri_plugin* plugin = nullptr;
  mri_caps caps{};

  absl::Status refuse(const char* rule, const char* what, const std::string& wants,
                      const std::string& has) const {
    return refused({rule, library.info.id, what, wants, has,
                    absl::StrCat("It is ", library.info.path, ", ", library.info.version, ".")});
  }

  absl::Status open();
  absl::Status check_object();
  void close();
};

absl::Status Stack::Member::open() {
  ErrorSlot err(nullptr);
  const mri_status status = port->guard.contain(err.get(), [&] {
    if (worker != nullptr) return worker->open(&plugin, err.get());
    return library.entry->open(host->abi(), library.info.negotiated, &plugin, err.get());
  });
  if (status != MRI_OK) {
    plugin = nullptr;
    return refuse("MRI-E016", "open", "success", error_text(status, *err.get()));
  }
  return check_object();
}

absl::Status Stack::Member::check_object() {
  constexpr uint32_t kFirstFunction = offsetof(mri_plugin, get_interface);
  if (!is_complete(plugin, sizeof(mri_plugin), kFirstFunction)) {
    plugin = nullptr;
    return refuse("MRI-E016", "the object of open",
                  absl::StrCat(sizeof(mri_plugin), " bytes or more and no null function"), "less");
  }
  port->self = plugin->self;
  ErrorSlot err(nullptr);
  const mri_status status = port->guard.contain(err.get(), [&] {
    port->table = plugin->get_interface(plugin->self, kind.id);
    if (kind.kind == "runtime") {
      for (const OptionalInterface& optional : optional_interfaces())
        optional.accept(*port, plugin->get_interface(plugin->self, optional.id));
    }
    caps.hdr.struct_size = sizeof(caps);
    return plugin->query_caps(plugin->self, &caps, err.get());
  });
  if (status != MRI_OK) {
    return refuse("MRI-E016", "query_caps", "success", error_text(status, *err.get()));
  }
  if (!is_complete(port->table, kind.table_bytes, 8)) {
    return refuse("MRI-E017", kind.id,
                  absl::StrCat("a table of ", kind.table_bytes, " bytes or more without nulls"),
                  port->table == nullptr ? "none" : "an incomplete one");
  }
  return absl::OkStatus();
}

void Stack::Member::close() {
  if (fallback != nullptr) fallback->close();
  if (plugin == nullptr) return;
  ErrorSlot err(nullptr);
  if (port->guard.state() == PluginState::kActive) {
    port->guard.set_state(PluginState::kDrained);
    port->guard.contain(err.get(),
                        [&] { return plugin->drain(plugin->self, kDrainNsMax, err.get()); });
  }
  port->guard.contain(err.get(), [&] {
    plugin->close(plugin->self);
    return MRI_OK;
  });
  plugin = nullptr;
}

Stack::Stack(const StackSpec& spec) : spec_(spec) {}

Stack::~Stack() {
  // Opened and activated in opposite orders: the runtime was opened first and activated last.
  if (!members_.empty()) members_.front()->close();
  for (auto member = members_.rbegin(); member != members_.rend(); ++member) (*member)->close();
}

// Loaded into this process, or into one of its own.
absl::StatusOr<std::unique_ptr<Stack::Member>> Stack::find_member(
    const PluginChoice& choice) const {
  if (!choice.isolation.is_worker) {
    absl::StatusOr<PluginLibrary> library = load_plugin(
        spec_.plugin_directories, choice.kind, choice.name, spec_.host_versions, choice.trust);
    if (!library.ok()) return library.status();
    return std::make_unique<Member>(choice, *std::move(library), spec_);
  }
  if (const std::string why = why_not_isolated(choice.kind, choice.isolation); !why.empty())
    return absl::InvalidArgumentError(absl::StrCat("isolation: ", why));
  const absl::StatusOr<std::string> path =
      find_plugin(spec_.plugin_directories, choice.kind, choice.name);
  if (!path.ok()) return path.status();
  const HostServices& services = spec_.services;
  absl::StatusOr<std::unique_ptr<WorkerPlugin>> worker = WorkerPlugin::start(
      {{*path, choice.kind, absl::StrCat(choice.kind, "-", plugin_name_in(*path, choice.kind)),
        spec_.host_versions, services.buffer_bytes_max, services.threads != nullptr,
        services.withheld},
       choice.isolation,
       choice.trust,
       services.log});
  if (!worker.ok()) return worker.status();
  auto member = std::make_unique<Member>(choice, PluginLibrary{(*worker)->info(), nullptr}, spec_);
  member->worker = *std::move(worker);
  return member;
}

absl::Status Stack::open_fallback(Member& member) {
  const std::string& name = member.choice.isolation.fallback;
  if (!member.choice.isolation.is_worker || name.empty()) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<Member>> fallback =
      find_member({member.choice.kind, name, {}, {}, member.choice.trust});
  if (!fallback.ok()) return fallback.status();
  member.fallback = *std::move(fallback);
  if (const absl::Status status = open(*member.fallback); !status.ok()) return status;
  if (const absl::Status status = activate(*member.fallback); !status.ok()) return status;
  member.worker->set_fallback(member.kind.proxy, member.fallback->port.get());
  return absl::OkStatus();
}

absl::Status Stack::open(const PluginChoice& choice) {
  absl::StatusOr<std::unique_ptr<Member>> member = find_member(choice);
  if (!member.ok()) return member.status();
  members_.push_back(*std::move(member));
  if (const absl::Status status = open(*members_.back()); !status.ok()) return status;
  return open_fallback(*members_.back());
}

absl::Status Stack::open(Member& member) {
  const PluginChoice& choice = member.choice;
  const PluginHost::Lookup lookup = [this](std::string_view id) -> const void* {
    return id == MRI_KERNELS ? kernels() : nullptr;
  };
  PluginHost::PeerLookup peers;
  if (choice.kind == "runtime") {
    peers = [this, &member](std::string_view id, uint32_t ordinal, void** self) -> const void* {
      const void* found = find(id, ordinal, self);
      if (found == nullptr || *self != member.port.get()) return found;
      // A call from inside one of its own would wait for itself, or find a context half changed.
      member.port->guard.count_misbehaviour("asks the stack for itself, and gets nothing");
      *self = nullptr;
      return nullptr;
    };
  }
  member.host =
      std::make_unique<PluginHost>(absl::StrCat(choice.kind, "-", member.library.info.name),
                                   member.library.info.negotiated, spec_.services, lookup, peers);
  return member.open();
}

absl::Status Stack::activate(Member& member) {
  std::vector<Value> values;
  const absl::StatusOr<std::vector<mri_param>> params =
      checked_params(member.choice, member.library.info, &values);
  if (!params.ok()) return params.status();
  ErrorSlot err(nullptr);
  const mri_status status = member.port->guard.contain(err.get(), [&] {
    return member.plugin->activate(member.plugin->self, params->data(), params->size(), err.get());
  });
  if (status != MRI_OK) {
    return member.refuse("MRI-E018", "activate", "success", error_text(status, *err.get()));
  }
  member.port->guard.set_state(PluginState::kActive);
  return absl::OkStatus();
}

const void* Stack::find(std::string_view id, uint32_t ordinal, void** self) const {
  *self = nullptr;
  for (const auto& member : members_) {
    const void* proxy = id == member->kind.id ? member->kind.proxy : nullptr;
    for (const OptionalInterface& optional : optional_interfaces()) {
      if (id == optional.id && optional.is_offered(*member->port)) proxy = optional.proxy;
    }
    if (proxy == nullptr || ordinal-- != 0) continue;
    *self = member->port.get();
    return proxy;
  }
  return nullptr;
}

const mri_kernels_v1* Stack::kernels() const {
  if (!members_.empty() && members_.front()->kind.kind == "runtime") {
    mri_plugin* runtime = members_.front()->plugin;
    ErrorSlot err(nullptr);
    const void* table = nullptr;
    if (runtime != nullptr) {
      members_.front()->port->guard.contain(err.get(), [&] {
        table = runtime->get_interface(runtime->self, MRI_KERNELS);
        return MRI_OK;
      });
    }
    constexpr uint32_t kFirstFunction = offsetof(mri_kernels_v1, index_bytes);
    if (is_complete(table, sizeof(mri_kernels_v1), kFirstFunction)) {
      return static_cast<const mri_kernels_v1*>(table);
    }
  }
  return spec_.kernels;
}

std::vector<PluginReport> Stack::report() const {
  std::vector<PluginReport> reports;
  for (const auto& member : members_) {
    PluginReport report{member->library.info,
                        member->caps,
                        member->port->guard.misbehaved(),
                        member->host->buffer_bytes(),
                        member->host->metrics(),
                        std::nullopt};
    if (member->worker != nullptr) {
      WorkerNumbers numbers = member->worker->numbers();
      report.buffer_bytes = numbers.buffer_bytes;
      report.metrics = std::move(numbers.metrics);
      report.worker = member->worker->status();
      report.misbehaved += report.worker->failures;
    }
    reports.push_back(std::move(report));
  }
  return reports;
}

absl::StatusOr<std::unique_ptr<Stack>> load_stack(const StackSpec& spec) {
  std::map<std::string, int> per_kind;
  for (const PluginChoice& choice : spec.plugins) {
    if (++per_kind[choice.kind] > 1 && choice.kind != "summary") {
      return absl::InvalidArgumentError(
          absl::StrCat("found two plugins of kind ", choice.kind, "; expected one at most"));
    }
  }
  if (spec.plugins.size() > kPluginsPerStackMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "found ", spec.plugins.size(), " plugins; expected ", kPluginsPerStackMax, " at most"));
  }
  std::vector<PluginChoice> choices = spec.plugins;
  std::stable_partition(choices.begin(), choices.end(),
                        [](const PluginChoice& c) { return c.kind == "runtime"; });
  std::unique_ptr<Stack> stack(new Stack(spec));
  for (const PluginChoice& choice : choices) {
    if (const absl::Status status = stack->open(choice); !status.ok()) return status;
  }
  auto& members = stack->members_;
  for (size_t i = members.size(); i-- > 0;) {
    if (const absl::Status status = stack->activate(*members[i]); !status.ok()) return status;
  }
  return stack;
}

}  // namespace varve
