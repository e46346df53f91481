// varve ab: what experiments have found, and how to stop an arm of one.
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "core/base/text.h"
#include "core/config/nearest_name.h"
#include "core/config/serve_config.h"
#include "core/route/ab_report.h"
#include "tools/varve/command.h"
#include "tools/varve/http_client.h"

namespace varve::cli {
namespace po = boost::program_options;
namespace {

constexpr size_t kEventsShown = 5;

struct Inputs {
  AbLog log;
  std::vector<ExperimentConfig> configured;
  std::vector<std::string> names;
};

// The log named on the command line, or the profile's.
absl::StatusOr<Inputs> read_inputs(const CommandLine& line) {
  Inputs inputs;
  std::string path = line.has("log") ? line.get<std::string>("log") : "";
  const bool has_profile = !line.profile_sources().path.empty();
  if (path.empty() || has_profile) {
    const absl::StatusOr<Profile> profile = line.profile();
    if (!profile.ok()) return profile.status();
    absl::StatusOr<ServeConfig> config = load_serve_config(*profile, line.profile_sources());
    if (!config.ok()) return config.status();
    inputs.configured = std::move(config->experiments);
    if (path.empty()) path = config->server.experiment_log_path;
  }
  if (path.empty()) {
    return absl::InvalidArgumentError(
        "found no log; expected --log FILE, or a profile with server.experiment_log_path");
  }
  absl::StatusOr<std::vector<std::string>> names = read_experiments(path);
  if (!names.ok()) return names.status();
  absl::StatusOr<AbLog> log = read_ab_log(path);
  if (!log.ok()) return log.status();
  inputs.names = *std::move(names);
  inputs.log = *std::move(log);
  return inputs;
}

absl::Status check_known(const Inputs& inputs, const std::string& experiment) {
  std::vector<std::string> known = inputs.names;
  for (const ExperimentConfig& config : inputs.configured) known.push_back(config.name);
  if (std::find(known.begin(), known.end(), experiment) != known.end()) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(
      "found no experiment ", varve::quoted(experiment), " in the log; expected one of ",
      absl::StrJoin(inputs.names, ", "), varve::suggestion(experiment, known)));
}

std::string shown(const std::string& text) { return clean_text(text, 200); }

// The text at a place of a JSON text, or "".
std::string text_at(const std::string& text, const char* place) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  const nlohmann::json::json_pointer pointer(place);
  if (!json.is_object() || !json.contains(pointer) || !json[pointer].is_string()) return "";
  return json[pointer].get<std::string>();
}

// "arm stopped: canary: operator: too slow".
std::string event_text(const ExperimentEvent& event) {
  const std::string why = text_at(event.detail, "/why");
  return shown(why.empty() ? event.what : absl::StrCat(event.what, ": ", why));
}

void print_status(const CommandLine& line, const Inputs& inputs) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  if (!line.json() && inputs.names.empty()) std::cout << "no experiment in this log\n";
  for (const std::string& name : inputs.names) {
    const absl::StatusOr<AbReport> report = make_ab_report(inputs.log, name, inputs.configured);
    if (!report.ok()) {
      if (line.json()) {
        json.push_back({{"experiment", name}, {"error", std::string(report.status().message())}});
      } else {
        std::cout << shown(name) << ": " << shown(std::string(report.status().message())) << "\n";
      }
      continue;
    }
    if (line.json()) {
      nlohmann::ordered_json one = nlohmann::ordered_json::parse(ab_report_json(*report));
      one.erase("treatments");
      json.push_back(std::move(one));
      continue;
    }
    std::cout << shown(name) << ", version " << report->record.config.version << ", mode "
              << report->record.config.mode << ": "
              << (report->is_valid ? "gates hold" : "a gate is broken") << "\n";
    for (size_t i = 0; i < report->arms.size(); ++i) {
      const ArmSummary& arm = report->arms[i];
      std::cout << absl::StrFormat(
          "  %-20s %5g%%  %s units  %s requests  %s errors  %s under way\n", shown(arm.name),
          report->record.config.arms[i].weight, count_text(arm.units), count_text(arm.requests),
          count_text(arm.errors), count_text(arm.open));
    }
    const size_t n = report->events.size();
    for (size_t i = n > kEventsShown ? n - kEventsShown : 0; i < n; ++i) {
      std::cout << "  "
                << absl::FormatTime(
                       "%Y-%m-%d %H:%M:%S",
                       absl::FromUnixMillis(static_cast<int64_t>(1000 * report->events[i].wall_s)),
                       absl::UTCTimeZone())
                << " UTC  " << event_text(report->events[i]) << "\n";
    }
  }
  if (line.json())
    std::cout << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

void add_log_options(CommandLine& line) {
  line.add()("log", po::value<std::string>()->value_name("FILE"),
             "exposure log (default: the profile's server.experiment_log_path)");
}

// Where the server of the profile listens.
absl::StatusOr<std::string> url_of(const CommandLine& line) {
  if (line.has("url")) return line.get<std::string>("url");
  const absl::StatusOr<Profile> profile = line.profile();
  if (!profile.ok()) return profile.status();
  const absl::StatusOr<ServeConfig> config = load_serve_config(*profile, line.profile_sources());
  if (!config.ok()) return config.status();
  const ServerConfig& server = config->server;
  if (server.port == 0)
    return absl::InvalidArgumentError("found server.port = 0, any; expected --url");
  const bool is_v6 = server.host.find(':') != std::string::npos;
  return absl::StrCat("http://", is_v6 ? "[" : "", server.host, is_v6 ? "]" : "", ":", server.port);
}

// What the server says is wrong.
std::string refusal_text(const HttpAnswer& answer) {
  const std::string message = text_at(answer.body, "/error/message");
  return absl::StrCat("the server answered ", answer.status, ": ",
                      shown(message.empty() ? answer.body : message));
}

int ab_status(const Arguments& arguments) {
  CommandLine line("varve ab status [option]...",
                   "Lists the experiments of a log with their arms, units and last events. A "
                   "server may be writing to it.");
  add_log_options(line);
  if (const std::optional<int> done = line.parse(arguments)) return *done;
  const absl::StatusOr<Inputs> inputs = read_inputs(line);
  if (!inputs.ok()) return report(inputs.status(), kExitUsage);
  print_status(line, *inputs);
  return kExitOk;
}

int ab_report(const Arguments& arguments) {
  CommandLine line(
      "varve ab report [option]... [experiment]",
      "Says whether an experiment may be believed and whether its treatment is good enough: "
      "latency, errors,\n"
      "quality, memory. The answers stay valid however often they are looked at. The exit code is "
      "1 when a gate is broken.");
  add_log_options(line);
  line.positional("experiment", 1);
  if (const std::optional<int> done = line.parse(arguments)) return *done;
  const absl::StatusOr<Inputs> inputs = read_inputs(line);
  if (!inputs.ok()) return report(inputs.status(), kExitUsage);
  std::vector<std::string> names = line.list("positional");
  if (names.empty()) names = inputs->names;
  if (names.empty())
    return report(absl::NotFoundError("found no experiment in the log"), kExitFailure);
  for (const std::string& name : names) {
    if (const absl::Status known = check_known(*inputs, name); !known.ok())
      return report(known, kExitFailure);
  }
  bool all_valid = true;
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const std::string& name : names) {
    const absl::StatusOr<AbReport> one = make_ab_report(inputs->log, name, inputs->configured);
    if (!one.ok()) return report(one.status(), kExitFailure);
    all_valid = all_valid && one->is_valid;
    if (line.json()) {
      json.push_back(nlohmann::ordered_json::parse(ab_report_json(*one)));
    } else {
      std::cout << (&name == &names.front() ? "" : "\n") << ab_report_text(*one);
    }
  }
  if (line.json()) std::cout << json.dump(2) << "\n";
  return all_valid ? kExitOk : kExitFailure;
}

int ab_stop(const Arguments& arguments) {
  CommandLine line("varve ab stop --arm ARM [option]... experiment",
                   "Tells a running server to send an arm no more traffic. Needs an admin key.");
  line.add()("arm", po::value<std::string>()->value_name("ARM"), "arm to stop")(
      "why", po::value<std::string>()->default_value("stopped by hand")->value_name("TEXT"),
      "reason, for the log")("url", po::value<std::string>()->value_name("URL"),
                             "of the server (default: the profile's server.host and port)")(
      "key-env", po::value<std::string>()->default_value("")->value_name("NAME"),
      "environment variable with the key");
  line.positional("experiment", 1);
  if (const std::optional<int> done = line.parse(arguments)) return *done;
  const std::vector<std::string> names = line.list("positional");
  if (names.empty() || !line.has("arm"))
    return line.usage_error("expected --arm ARM and the name of an experiment");
  const absl::StatusOr<std::string> key = key_from_environment(line.get<std::string>("key-env"));
  if (!key.ok()) return report(key.status(), kExitUsage);
  for (const char c : names.front()) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '-' && c != '.')
      return line.usage_error("expected the name of an experiment as the profile has it");
  }
  const absl::StatusOr<std::string> url = url_of(line);
  if (!url.ok()) return report(url.status(), kExitUsage);
  HttpRequest request;
  request.url = *url;
  request.method = "POST";
  request.path = absl::StrCat("/admin/experiments/", names.front(), "/stop");
  request.key = *key;
  request.body =
      nlohmann::json{{"arm", line.get<std::string>("arm")}, {"why", line.get<std::string>("why")}}
          .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const absl::StatusOr<HttpAnswer> answer = ask_server(request);
  if (!answer.ok())
    return report(answer.status(),
                  absl::IsInvalidArgument(answer.status()) ? kExitUsage : kExitFailure);
  if (answer->status / 100 != 2)
    return report(absl::FailedPreconditionError(refusal_text(*answer)), kExitFailure);
  std::cout << (line.json() ? answer->body : absl::StrCat("stopped ", line.get<std::string>("arm")))
            << "\n";
  return kExitOk;
}

}  // namespace

int cmd_ab(const Arguments& arguments) {
  const std::string what = arguments.empty() ? "" : arguments.front();
  const Arguments rest(arguments.begin() + (arguments.empty() ? 0 : 1), arguments.end());
  if (what == "status") return ab_status(rest);
  if (what == "report") return ab_report(rest);
  if (what == "stop") return ab_stop(rest);
  CommandLine line("varve ab status|report|stop [option]...",
                   "status  the experiments of a log, their arms and what happened\n"
                   "report  whether the treatment is good enough\n"
                   "stop    no more traffic for an arm of a running server\n"
                   "\n'varve ab <what> --help' tells the options of each.");
  line.positional("what", 1);
  if (const std::optional<int> done = line.parse(arguments)) return *done;
  return line.unknown_word(what, {"status", "report", "stop"});
}

}  // namespace varve::cli
