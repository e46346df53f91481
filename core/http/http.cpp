#include "core/http/http.h"

#include <nlohmann/json.hpp>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/route/dispatcher.h"

namespace varve::http {
namespace {

constexpr char kParamUrl[] = "varve/param";
constexpr char kCodeUrl[] = "varve/code";

std::string payload(const absl::Status& status, const char* url) {
  const auto value = status.GetPayload(url);
  return value.has_value() ? std::string(*value) : std::string();
}

struct Kind {
  const char* type;
  const char* code;  // null: the client sees null
};

Kind kind_of(int status) {
  switch (status) {
    case 401:
      return {"authentication_error", "invalid_api_key"};
    case 403:
      return {"permission_error", "permission_denied"};
    case 404:
      return {"not_found_error", "not_found"};
    case 405:
      return {"invalid_request_error", "method_not_allowed"};
    case 408:
      return {"timeout_error", "request_timeout"};
    case 409:
      return {"conflict_error", "invalid_state"};
    case 413:
      return {"invalid_request_error", "request_too_large"};
    case 415:
      return {"invalid_request_error", "unsupported_media_type"};
    case 421:
      return {"invalid_request_error", "unknown_host"};
    case 429:
      return {"rate_limit_error", "rate_limit_exceeded"};
    case 431:
      return {"invalid_request_error", "headers_too_large"};
    case 499:
      return {"cancelled_error", "cancelled"};
    case 501:
      return {"unsupported_error", "unsupported"};
    case 503:
      return {"unavailable_error", "unavailable"};
    case 504:
      return {"deadline_error", "deadline_exceeded"};
    default:
      return status < 500 ? Kind{"invalid_request_error", nullptr}
                          : Kind{"server_error", "internal_error"};
  }
}

}  // namespace

std::optional<std::string_view> Request::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (absl::EqualsIgnoreCase(key, absl::string_view(name.data(), name.size()))) return value;
  }
  return std::nullopt;
}

std::string error_json(int status, std::string_view message, std::string_view param,
                       std::string_view code) {
  const Kind kind = kind_of(status);
  nlohmann::json error = {{"message", message}, {"type", kind.type}};
  error["param"] = nullptr;
  if (!param.empty()) error["param"] = param;
  error["code"] = nullptr;
  if (!code.empty()) {
    error["code"] = code;
  } else if (kind.code != nullptr) {
    error["code"] = kind.code;
  }
  const nlohmann::json body = {{"error", std::move(error)}};
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Response error_response(int status, std::string_view message, std::string_view param,
                        std::string_view code) {
  Response response;
  response.status = status;
  response.body = error_json(status, message, param, code);
  if (status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer realm=\"varve\"");
  return response;
}

Response error_response(const absl::Status& status) {
  const absl::string_view message = status.message();
  Response response =
      error_response(http_status(status), std::string_view(message.data(), message.size()),
                     payload(status, kParamUrl), payload(status, kCodeUrl));
  if (absl::IsResourceExhausted(status)) {
    const absl::Duration wait = retry_after(status);
    const int64_t wait_s = absl::ToInt64Seconds(absl::Ceil(wait, absl::Seconds(1)));
    response.headers.emplace_back("Retry-After", absl::StrCat(wait_s));
    response.headers.emplace_back("retry-after-ms", absl::StrCat(absl::ToInt64Milliseconds(wait)));
  }
  return response;
}

absl::Status with_param(absl::Status status, std::string_view param, std::string_view code) {
  if (!param.empty()) status.SetPayload(kParamUrl, absl::Cord(std::string(param)));
  if (!code.empty()) status.SetPayload(kCodeUrl, absl::Cord(std::string(code)));
  return status;
}

int http_status(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAborted:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kCancelled:
      return 499;
    case absl::StatusCode::kUnimplemented:
      return 501;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

}  // namespace varve::http
