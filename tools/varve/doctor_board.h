// The health board of a running server.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace varve::cli {

// Asks the server for /debug/attention. Errors say what to do: nobody there, no or a wrong key,
// another server. `key_env`: the variable that holds the key, for messages.
absl::StatusOr<nlohmann::json> fetch_board(const std::string& url, const std::string& key_env);

// What is wrong, a sentence each with what to change: the server's own advice on attention, then
// stalled lanes, full queues and budgets, plugins that broke promises. Throws nlohmann::json's
// exceptions when the board is not one.
std::vector<std::string> board_findings(const nlohmann::json& board);

// The board as text. Throws as above.
std::string board_text(const std::string& url, const nlohmann::json& board);

// `varve doctor --url`: prints the board and returns the exit code: 0 nothing to change, 1 findings
// or no board.
int doctor_url(const std::string& url, const std::string& key_env, bool as_json);

}  // namespace varve::cli
