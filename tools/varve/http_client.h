// Asks a running server.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace varve::cli {

struct HttpRequest {
  std::string url;  // "http://127.0.0.1:8080"; a path in it goes before `path`
  std::string method = "GET";
  std::string path;  // "/metrics"
  std::string body;  // JSON, or empty
  std::string key;   // sent as a bearer token when not empty
  std::vector<std::pair<std::string, std::string>> headers;  // sent as they are, in order
  absl::Duration timeout = absl::Seconds(30);                // of each step: connect, write, read
};

struct HttpAnswer {
  int status = 0;
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;  // names as the server writes them
};

// kInvalidArgument for a URL that is none, kUnavailable when nobody answers. Any status of the
// server's is an answer.
absl::StatusOr<HttpAnswer> ask_server(const HttpRequest& request);

// The key in the environment variable `name`; "" for an empty name. kNotFound when it is not set.
absl::StatusOr<std::string> key_from_environment(const std::string& name);

}  // namespace varve::cli
