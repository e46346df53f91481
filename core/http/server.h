// The HTTP server: connections, limits, keys, routes. Boost.Beast and Asio.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/log.h"
#include "core/config/serve_config.h"
#include "core/http/http.h"

namespace varve::http {

struct ServerOptions {
  ServerConfig config;
  LogSink log;
  // The identity behind a key ("" when the client sent none). kUnauthenticated is 401.
  std::function<absl::StatusOr<Identity>(std::string_view key)> authenticate;
  // Route pattern, status, seconds; for metrics. May be empty.
  std::function<void(const std::string&, int, double)> on_answered;
  uint64_t header_bytes_max = 64 << 10;
  uint32_t headers_max = 128;
  uint64_t stream_buffer_bytes_max = 4 << 20;
};

class Server {
 public:
  // Binds and serves on its own threads. Errors name address and cause. Raises the process's soft
  // limit of open files as far as connections_max needs it.
  static absl::StatusOr<std::unique_ptr<Server>> start(ServerOptions options,
                                                       std::vector<Route> routes);
  virtual ~Server() = default;  // closes everything
  virtual uint16_t port() const = 0;
  virtual const std::vector<Route>& routes() const = 0;
  // No new connections and no new requests (503, Connection: close); answers under way go on.
  virtual void stop_accepting() = 0;
  virtual size_t connections() const = 0;
  // Requests whose answer is not complete.
  virtual size_t open_requests() const = 0;
};

}  // namespace varve::http
