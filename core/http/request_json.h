// Bodies of requests: JSON with limits, and errors that name the field.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/http/http.h"

namespace varve::http {

// What clients send. Members keep their order: an answer that follows a JSON schema has the
// schema's.
using Json = nlohmann::ordered_json;

inline constexpr size_t kJsonDepthMax = 64;
inline constexpr size_t kJsonMembersMax = 4096;  // of one object
inline constexpr size_t kJsonValuesMax = size_t{1} << 21;

// kInvalidArgument whose answer names `param` ("messages[0].content"; empty: the body as a whole)
// and, when given, OpenAI's error code.
absl::Status invalid(std::string_view param, std::string_view message, std::string_view code = "");

// Sends the body, or the error.
void reply(Responder& responder, const absl::StatusOr<nlohmann::json>& body);

// An object. Errors, each with its place: not JSON, a byte order mark, ill-formed UTF-8, lone
// surrogates, NUL in a text, a number beyond double, a name twice in one object, deeper than
// kJsonDepthMax, more than kJsonMembersMax members or kJsonValuesMax values, not an object.
absl::StatusOr<Json> parse_body(std::string_view body);
// Any JSON value under the same limits; `param` names it in errors.
absl::StatusOr<Json> parse_json(std::string_view text, std::string_view param);

// Compact, on one line; ill-formed UTF-8 becomes U+FFFD.
std::string dump(const nlohmann::json& value);
std::string dump(const Json& value);

}  // namespace varve::http
