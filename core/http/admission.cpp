#include "core/http/admission.h"

#include <arpa/inet.h>

#include <algorithm>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/text.h"

namespace varve::http {
namespace {

constexpr size_t kRequestIdBytesMax = 128;
constexpr size_t kShownBytesMax = 80;

std::string lower(std::string_view text) {
  return absl::AsciiStrToLower(absl::string_view(text.data(), text.size()));
}

bool is_same(std::string_view a, std::string_view b) {
  return absl::EqualsIgnoreCase(absl::string_view(a.data(), a.size()),
                                absl::string_view(b.data(), b.size()));
}

size_t count(const Request& request, std::string_view name) {
  return std::count_if(request.headers.begin(), request.headers.end(),
                       [&](const auto& header) { return is_same(header.first, name); });
}

// "[::1]:80" and "Name:80" as "::1" and "name".
std::string host_name(std::string_view authority) {
  if (authority.starts_with('[')) {
    const size_t end = authority.find(']');
    if (end == std::string_view::npos) return "";
    const std::string_view rest = authority.substr(end + 1);
    return rest.empty() || rest.front() == ':' ? lower(authority.substr(1, end - 1)) : "";
  }
  return lower(authority.substr(0, authority.find(':')));
}

bool is_address(const std::string& host) {
  unsigned char bytes[16];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 ||
         inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

bool is_json(std::string_view content_type) {
  std::string type = lower(content_type.substr(0, content_type.find(';')));
  absl::StripAsciiWhitespace(&type);
  return type == "application/json" ||
         (absl::StartsWith(type, "application/") && absl::EndsWith(type, "+json"));
}

bool is_binary(std::string_view content_type) {
  return lower(content_type).starts_with("application/octet-stream");
}

// Whether a page of another site sent it: its browser says where the page is from.
bool is_cross_site(const ServerConfig& config, const Request& request) {
  const auto origin = request.header("Origin"), host = request.header("Host");
  if (!origin || request.method == "GET" || request.method == "HEAD") return false;
  const size_t scheme = origin->find("://");
  if (scheme == std::string_view::npos) return true;  // "null"
  const std::string_view authority = origin->substr(scheme + 3);
  if (host && is_same(authority, *host)) return false;
  return std::none_of(config.allowed_hosts.begin(), config.allowed_hosts.end(),
                      [&](const std::string& allowed) {
                        return allowed == "*" || is_same(allowed, authority) ||
                               is_same(allowed, host_name(authority));
                      });
}

// Takes the key out of the headers, so that no log and no handler sees it.
std::string take_key(Request* request) {
  std::string key, other;
  std::erase_if(request->headers, [&](auto& header) {
    if (is_same(header.first, "Authorization")) {
      constexpr std::string_view kScheme = "bearer ";
      if (key.empty() && lower(header.second).starts_with(kScheme)) {
        key = header.second.substr(kScheme.size());
        absl::StripAsciiWhitespace(&key);
      }
      return true;
    }
    if (!is_same(header.first, "X-Api-Key")) return false;
    if (other.empty()) other = std::move(header.second);
    return true;
  });
  return key.empty() ? other : key;
}

}  // namespace

std::string request_id(const Request& request) {
  const std::string_view given = request.header("X-Request-Id").value_or("");
  const auto is_fine = [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
  };
  if (!given.empty() && given.size() <= kRequestIdBytesMax &&
      std::all_of(given.begin(), given.end(), is_fine)) {
    return std::string(given);
  }
  thread_local std::mt19937_64 random(uint64_t{std::random_device()()} << 32 ^
                                      std::random_device()());
  return absl::StrFormat("%016x%016x", random(), random());
}

bool is_loopback(std::string_view host) {
  const std::string name = lower(host);
  unsigned char bytes[16];
  if (inet_pton(AF_INET, name.c_str(), bytes) == 1) return bytes[0] == 127;
  return name == "localhost" || name == "::1";
}

bool is_own_host(const ServerConfig& config, std::string_view host_header) {
  const std::string name = host_name(host_header);
  if (name == "localhost" || is_address(name) || name == lower(config.host)) return true;
  return std::any_of(
      config.allowed_hosts.begin(), config.allowed_hosts.end(), [&](const std::string& allowed) {
        return allowed == "*" || is_same(allowed, name) || is_same(allowed, host_header);
      });
}

std::optional<Response> Admission::check_headers(bool is_http_1_0, const Request& request) const {
  const size_t n_hosts = count(request, "Host");
  if (n_hosts > 1 || (n_hosts == 0 && !is_http_1_0)) {
    return error_response(400, absl::StrCat("found ", n_hosts, " Host headers; expected one"));
  }
  if (n_hosts == 1 && !is_own_host(options_.config, *request.header("Host"))) {
    return error_response(
        421, absl::StrCat("Host \"", clean_text(*request.header("Host"), kShownBytesMax),
                          "\" is not a name of this server; expected an address, localhost or a "
                          "name in [server] allowed_hosts: add it there if clients shall use it"));
  }
  const auto coding = request.header("Transfer-Encoding");
  if (coding && (count(request, "Transfer-Encoding") > 1 || !is_same(*coding, "chunked"))) {
    return error_response(400,
                          "found a Transfer-Encoding other than chunked; expected none, or "
                          "chunked alone");
  }
  const auto content = request.header("Content-Encoding");
  if (content && !is_same(*content, "identity")) {
    return error_response(415,
                          "found a compressed body (Content-Encoding); expected it plain: "
                          "send it without compression");
  }
  return std::nullopt;
}

std::optional<Response> Admission::identify(const Route& route, Request* request) const {
  const bool is_cross = is_cross_site(options_.config, *request);
  const std::string key = take_key(request);
  if (route.scope == Scope::kPublic) return std::nullopt;
  // A page cannot send a key that it does not know; without one, its browser must not act for it.
  if (key.empty() && is_cross) {
    return error_response(403,
                          "found an Origin that is not this server's; expected none, a key, or "
                          "a host listed in [server] allowed_hosts");
  }
  absl::StatusOr<Identity> who = options_.authenticate(key);
  if (!who.ok()) return error_response(who.status());
  if (who->scope < route.scope) {
    return error_response(
        403, absl::StrCat("the key may not use ", route.pattern, "; expected one of scope ",
                          route.scope == Scope::kAdmin ? "admin" : "inference"));
  }
  request->who = *std::move(who);
  return std::nullopt;
}

std::optional<Response> Admission::examine(std::string_view target, bool is_http_1_0,
                                           Request* request, const Route** route) const {
  if (auto refusal = check_headers(is_http_1_0, *request)) return refusal;
  absl::StatusOr<Target> parsed = parse_target(target);
  if (!parsed.ok()) return error_response(parsed.status());
  request->path = parsed->path;
  Match match = router_.find(request->method, *parsed);
  if (match.allow.empty()) {
    return error_response(404, absl::StrCat("no route ", clean_text(parsed->path, kShownBytesMax),
                                            "; /openapi.json lists them"));
  }
  if (match.route == nullptr) {
    Response answer;
    answer.status = 204;
    if (request->method != "OPTIONS") {
      answer =
          error_response(405, absl::StrCat("found ", clean_text(request->method, kShownBytesMax),
                                           " ", clean_text(parsed->path, kShownBytesMax),
                                           "; expected one of ", match.allow));
    }
    answer.headers.emplace_back("Allow", match.allow);
    return answer;
  }
  request->path_values = std::move(match.path_values);
  request->query = std::move(parsed->query);
  *route = match.route;
  if (auto refusal = identify(*match.route, request)) return refusal;
  const bool has_body = request->header("Transfer-Encoding") ||
                        request->header("Content-Length").value_or("0") != "0";
  const std::string_view type = request->header("Content-Type").value_or("");
  if (has_body && !is_json(type) && !(match.route->takes_binary && is_binary(type))) {
    return error_response(
        415, absl::StrCat("found Content-Type \"", clean_text(type, kShownBytesMax),
                          "\"; expected application/json",
                          match.route->takes_binary ? " or application/octet-stream" : ""));
  }
  return std::nullopt;
}

}  // namespace varve::http
