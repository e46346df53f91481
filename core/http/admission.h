// What a request must pass before its body is read: request line, host, route, key, content type.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/http/router.h"
#include "core/http/server.h"

namespace varve::http {

// The client's X-Request-Id when it matches ^[A-Za-z0-9._-]{1,128}$, else 32 random hex digits.
std::string request_id(const Request& request);

// True for a name or address that only this machine can reach.
bool is_loopback(std::string_view host);

// Against DNS rebinding: a page from elsewhere can make a browser call this server only by a name,
// so addresses, "localhost", the configured host and allowed_hosts ("*": any) pass.
bool is_own_host(const ServerConfig& config, std::string_view host_header);

// Immutable but for what options.authenticate does.
class Admission {
 public:
  Admission(const ServerOptions& options, const Router& router)
      : options_(options), router_(router) {}

  // `request` has its method, headers and id. Fills in path, values, query and identity, takes the
  // key out of the headers, and sets *route; or returns the answer that refuses it.
  std::optional<Response> examine(std::string_view target, bool is_http_1_0, Request* request,
                                  const Route** route) const;

 private:
  std::optional<Response> check_headers(bool is_http_1_0, const Request& request) const;
  std::optional<Response> identify(const Route& route, Request* request) const;

  const ServerOptions& options_;
  const Router& router_;
};

}  // namespace varve::http
