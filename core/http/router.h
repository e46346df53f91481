// Which route answers a request target.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/http/http.h"

namespace varve::http {

// "%41" as "A", and '+' as a space where `plus_is_space`. Nothing when a '%' is not followed by two
// hex digits, or the result is not well-formed UTF-8 (overlong forms) or has control characters.
std::optional<std::string> percent_decoded(std::string_view text, bool plus_is_space = false);

struct Target {
  std::string path;                   // decoded
  std::vector<std::string> segments;  // decoded each for itself: "%2F" does not part them
  std::map<std::string, std::string> query;
};

// kInvalidArgument for what is no "/path?query" in good order: bad escapes, "." and ".." segments,
// a query key given twice.
absl::StatusOr<Target> parse_target(std::string_view target);

struct Match {
  const Route* route = nullptr;  // null: see `allow`
  std::map<std::string, std::string> path_values;
  // Methods of the routes whose pattern fits, "GET, HEAD, OPTIONS"; empty: no route has this path.
  std::string allow;
};

// Immutable. HEAD finds the route of GET. A fixed segment goes before a {name}.
class Router {
 public:
  // Patterns and methods are the program's own; two equal ones are kInvalidArgument.
  static absl::StatusOr<Router> make(std::vector<Route> routes);
  Match find(std::string_view method, const Target& target) const;
  const std::vector<Route>& routes() const { return routes_; }

 private:
  std::vector<Route> routes_;
  std::vector<std::vector<std::string>> patterns_;  // segments, one list per route
};

}  // namespace varve::http
