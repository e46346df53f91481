// Requests and answers as handlers see them. Boost.Beast stays inside core/http/server.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/route/identity.h"

namespace varve::http {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct Request {
  std::string id;      // X-Request-Id of the client when it is sane, else made here
  std::string method;  // upper case
  std::string path;    // decoded, without query
  std::map<std::string, std::string> path_values;  // {id} of the route's pattern
  std::map<std::string, std::string> query;
  Headers headers;
  std::string body;
  Identity who;

  // Case-insensitive; the first one.
  std::optional<std::string_view> header(std::string_view name) const;
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  Headers headers;
  std::string body;
};

// Answers one request: send(), or start() then write() any number of times then finish(). Every
// method may be called from any thread at any time, also after the client has gone (then it does
// nothing). Dropping the last reference without an answer is a 500.
class Responder {
 public:
  virtual ~Responder() = default;
  virtual void send(Response response) = 0;
  // Chunked answer; content type text/event-stream unless given.
  virtual void start(Response head) = 0;
  virtual void write(std::string bytes) = 0;
  virtual void finish() = 0;
  virtual bool gone() const = 0;
  // Runs once when the client goes away before the answer is complete, or reads so slowly that
  // Limits::stream_buffer_bytes_max is passed; at once when it has gone already.
  virtual void on_gone(std::function<void()> call) = 0;
};

// Runs on a worker thread, not on the connection's: may tokenise, must not wait for a lane.
using Handler = std::function<void(const Request& request, std::shared_ptr<Responder> responder)>;

struct Route {
  std::string method;
  std::string pattern;  // "/v1/contexts/{id}"
  Scope scope = Scope::kAdmin;
  Handler handler;
  bool is_quiet = false;  // health and metrics: not logged, and with a worker thread of their own
  // Bodies may be application/octet-stream; else application/json alone.
  bool takes_binary = false;
};

// {"error":{"message","type","param","code"}} as OpenAI's clients read it. type and code follow
// from the status: 400 invalid_request_error, 401 authentication_error/invalid_api_key, 403
// permission_error, 404 not_found_error, 409 conflict_error/invalid_state, 413, 415, 429
// rate_limit_error, 500 server_error, 501 unsupported, 503 unavailable, 504 deadline.
std::string error_json(int status, std::string_view message, std::string_view param = "",
                       std::string_view code = "");
Response error_response(int status, std::string_view message, std::string_view param = "",
                        std::string_view code = "");
// The same from a status of the layers below, with what with_param() left in it; kResourceExhausted
// brings Retry-After and retry-after-ms, kFailedPrecondition is 409 invalid_state.
Response error_response(const absl::Status& status);
// A status whose answer names `param` ("messages[0].content") and OpenAI's `code`, where they are
// not empty.
absl::Status with_param(absl::Status status, std::string_view param, std::string_view code = "");
int http_status(const absl::Status& status);

}  // namespace varve::http
