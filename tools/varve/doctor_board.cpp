#include "tools/varve/doctor_board.h"

#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/text.h"
#include "core/http/request_json.h"
#include "tools/varve/command.h"
#include "tools/varve/http_client.h"

namespace varve::cli {
namespace {

using nlohmann::json;

constexpr size_t kNameBytesMax = 200;
constexpr double kFull = 0.8, kBudgetFull = 0.95;
constexpr char kRoute[] = "/debug/attention";

// What a server says is shown on a terminal: without control characters.
std::string clean(const json& text) {
  return clean_text(text.get_ref<const std::string&>(), kNameBytesMax);
}

absl::Status refused(const std::string& url, int status, const std::string& key_env) {
  if (status == 401 || status == 403) {
    return absl::PermissionDeniedError(absl::StrCat(
        url, " wants a key with scope \"admin\" (HTTP ", status, "); ",
        key_env.empty() ? "name the environment variable that holds one with --key-env NAME"
                        : absl::StrCat("the one in ", key_env, " is not")));
  }
  return absl::FailedPreconditionError(
      absl::StrCat(url, " is no varve server, or too old a one: ", kRoute, " gave HTTP ", status,
                   "; check host and port"));
}

void find_in_lane(const std::string& stack, const json& lane, std::vector<std::string>* findings) {
  if (lane.at("stalled").get<bool>()) {
    findings->push_back(absl::StrFormat(
        "stack %s runs %d requests and has computed nothing for %.0f s: restart the server and "
        "keep "
        "its log",
        stack, lane.at("running").get<int64_t>(), lane.at("no_progress_seconds").get<double>()));
  }
  const auto waiting = lane.at("waiting").get<double>(), room = lane.at("queue_max").get<double>();
  if (room > 0 && waiting > kFull * room) {
    findings->push_back(absl::StrFormat(
        "the queue of stack %s holds %.0f of %.0f: clients will be refused soon; give the class a "
        "faster stack, raise its concurrency, or add a machine",
        stack, waiting, room));
  }
}

void find_in_stack(const json& entry, std::vector<std::string>* findings) {
  const std::string stack = clean(entry.at("stack"));
  find_in_lane(stack, entry.at("lane"), findings);
  const auto used = entry.at("kv").at("used_bytes").get<uint64_t>(),
             budget = entry.at("kv").at("budget_bytes").get<uint64_t>();
  if (budget > 0 && static_cast<double>(used) > kBudgetFull * static_cast<double>(budget)) {
    findings->push_back(absl::StrCat(
        "KV memory of stack ", stack, " is full: ", bytes_text(used), " of ", bytes_text(budget),
        "; raise runtime.kv_budget_mb, lower kv_tier.hot_tokens, or lower its concurrency"));
  }
  for (const json& plugin : entry.at("plugins")) {
    const json worker = plugin.value("worker", json(nullptr));
    if (worker.is_object() && worker.at("quarantined").get<bool>()) {
      findings->push_back(absl::StrCat(
          "the own process of plugin ", clean(plugin.at("kind")), "/", clean(plugin.at("name")),
          " of stack ", stack, " is in quarantine after ", worker.at("failures").get<uint64_t>(),
          " failures: the log says how it ended; repair it and start the server again"));
      continue;
    }
    const auto errors = plugin.at("errors").get<uint64_t>();
    if (errors == 0) continue;
    findings->push_back(absl::StrCat(
        "plugin ", clean(plugin.at("kind")), "/", clean(plugin.at("name")), " of stack ", stack,
        " broke ", errors, " promises: the log has the first ones; run mri-conform on it"));
  }
}

std::string attention_text(const json& attention) {
  const auto tokens = attention.at("timed_tokens").get<uint64_t>();
  if (tokens == 0) {
    return "attention  no request has asked for its timings yet: send some with "
           "\"return_timings\": true\n";
  }
  std::string text = absl::StrCat("attention  of ", count_text(tokens), " timed tokens\n");
  for (const char* part : {"local", "sparse", "summary", "kv_cache", "other"}) {
    std::string limit;
    for (const json& rule : attention.at("rules")) {
      if (rule.at("part") != part) continue;
      limit = absl::StrFormat("  (rule: at most %.0f %%)%s", 100 * rule.at("limit").get<double>(),
                              rule.at("broken").get<bool>() ? "  BROKEN" : "");
    }
    absl::StrAppendFormat(&text, "           %-9s%5.1f %%%s\n", part,
                          100 * attention.at("shares").at(part).get<double>(), limit);
  }
  const json& timings = attention.at("timings");
  const json& blocks = timings.at("topk_dynamics");
  absl::StrAppendFormat(
      &text, "           chosen blocks: %.1f a choice (%d to %d), %.0f %% of them chosen before\n",
      blocks.at("mean").get<double>(), blocks.at("min").get<int64_t>(),
      blocks.at("max").get<int64_t>(), 100 * timings.at("sparse_attn_hit_rate").get<double>());
  return text;
}

std::string stack_text(const json& entry) {
  const json &lane = entry.at("lane"), &kv = entry.at("kv");
  const auto number = [](const json& from, const char* name) {
    return from.at(name).get<uint64_t>();
  };
  const auto budget = number(kv, "budget_bytes");
  std::string text = absl::StrFormat(
      "stack %s\n"
      "           %d running of %d, %d waiting of %d, oldest for %.1f s%s\n"
      "           KV hot %s, warm %s, cold %s; kept prefixes %s; %s in use of %s\n"
      "           plugins:",
      clean(entry.at("stack")), number(lane, "running"), number(lane, "concurrency"),
      number(lane, "waiting"), number(lane, "queue_max"),
      lane.at("oldest_wait_seconds").get<double>(),
      lane.at("peak").get<bool>() ? "; peak mode, no summaries" : "",
      bytes_text(number(kv, "hot_bytes")), bytes_text(number(kv, "warm_bytes")),
      bytes_text(number(kv, "cold_bytes")), bytes_text(number(kv, "kept_prefix_bytes")),
      bytes_text(number(kv, "used_bytes")), budget == 0 ? "no limit" : bytes_text(budget));
  for (const json& plugin : entry.at("plugins")) {
    absl::StrAppend(&text, " ", clean(plugin.at("kind")), "/", clean(plugin.at("name")));
  }
  return text + "\n";
}

}  // namespace

absl::StatusOr<json> fetch_board(const std::string& url, const std::string& key_env) {
  const absl::StatusOr<std::string> key = key_from_environment(key_env);
  if (!key.ok()) return key.status();
  HttpRequest request;
  request.url = url;
  request.path = kRoute;
  request.key = *key;
  request.timeout = absl::Seconds(10);
  const absl::StatusOr<HttpAnswer> answer = ask_server(request);
  if (!answer.ok()) return answer.status();
  if (answer->status != 200) return refused(url, answer->status, key_env);
  absl::StatusOr<json> board = http::parse_json(answer->body, "");
  if (!board.ok() || !board->is_object() || !board->contains("attention"))
    return absl::FailedPreconditionError(
        absl::StrCat(url, " is no varve server: ", kRoute,
                     " answered with something else than a health board; check host and port"));
  return board;
}

std::vector<std::string> board_findings(const json& board) {
  std::vector<std::string> findings;
  for (const json& advice : board.at("attention").at("advice")) {
    findings.push_back(clean_text(advice.get_ref<const std::string&>(), 10 * kNameBytesMax));
  }
  for (const json& entry : board.at("stacks")) find_in_stack(entry, &findings);
  return findings;
}

std::string board_text(const std::string& url, const json& board) {
  std::string text =
      absl::StrCat("server     ", clean(board.at("model")), ", varve ", clean(board.at("version")),
                   " at ", url, board.at("draining").get<bool>() ? ", shutting down\n" : "\n");
  text += attention_text(board.at("attention"));
  for (const json& entry : board.at("stacks")) text += stack_text(entry);
  const std::vector<std::string> findings = board_findings(board);
  text += findings.empty() ? "\nNothing to complain about.\n" : "\nWhat to change:\n";
  for (const std::string& finding : findings) absl::StrAppend(&text, "- ", finding, "\n");
  return text;
}

int doctor_url(const std::string& url, const std::string& key_env, bool as_json) {
  const absl::StatusOr<json> board = fetch_board(url, key_env);
  if (!board.ok()) {
    const bool is_usage =
        absl::IsInvalidArgument(board.status()) || absl::IsNotFound(board.status());
    return report(board.status(), is_usage ? kExitUsage : kExitFailure);
  }
  try {
    const std::vector<std::string> findings = board_findings(*board);
    if (as_json) {
      json all = *board;
      all["findings"] = findings;
      std::cout << all.dump(2, ' ', false, json::error_handler_t::replace) << "\n";
    } else {
      std::cout << board_text(url, *board);
    }
    return findings.empty() ? kExitOk : kExitFailure;
  } catch (const json::exception& e) {
    return report(absl::FailedPreconditionError(
                      absl::StrCat(url, " sent a health board of another version (", e.what(),
                                   "); use the program of the same version")),
                  kExitFailure);
  }
}

}  // namespace varve::cli
