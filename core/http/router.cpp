#include "core/http/router.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/text.h"

namespace varve::http {
namespace {

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = absl::ascii_tolower(static_cast<unsigned char>(c));
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// What stands between the separators; "a//b" has an empty one.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

absl::Status bad_target(std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("request target: found ", std::string(what),
                   "; expected /path?name=value with well-formed escapes"));
}

absl::Status parse_query(std::string_view text, std::map<std::string, std::string>* query) {
  for (const std::string_view part : split(text, '&')) {
    if (part.empty()) continue;
    const size_t equals = std::min(part.find('='), part.size());
    const auto key = percent_decoded(part.substr(0, equals), true);
    const auto value = percent_decoded(part.substr(std::min(equals + 1, part.size())), true);
    if (!key || !value) return bad_target("a malformed escape in the query");
    if (!query->emplace(*key, *value).second) {
      return bad_target(absl::StrCat("\"", clean_text(*key, 64), "\" twice in the query"));
    }
  }
  return absl::OkStatus();
}

bool is_variable(std::string_view segment) { return segment.starts_with('{'); }

bool fits(const std::vector<std::string>& pattern, const std::vector<std::string>& segments) {
  return std::equal(pattern.begin(), pattern.end(), segments.begin(), segments.end(),
                    [](const std::string& p, const std::string& s) {
                      return is_variable(p) ? !s.empty() : p == s;
                    });
}

}  // namespace

std::optional<std::string> percent_decoded(std::string_view text, bool plus_is_space) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      if (text.size() - i < 3) return std::nullopt;
      const int high = hex_value(text[i + 1]), low = hex_value(text[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    } else if (c == '+' && plus_is_space) {
      c = ' ';
    }
    decoded += c;
  }
  if (clean_prefix(decoded) != decoded.size()) return std::nullopt;
  return decoded;
}

absl::StatusOr<Target> parse_target(std::string_view target) {
  if (!target.starts_with('/')) return bad_target("no path");
  const size_t question = std::min(target.find('?'), target.size());
  Target parsed;
  for (const std::string_view part : split(target.substr(1, question - 1), '/')) {
    auto segment = percent_decoded(part);
    if (!segment) return bad_target("a malformed escape in the path");
    if (segment->find_first_of("\t\n") != std::string::npos) {
      return bad_target("a control character in the path");
    }
    if (*segment == "." || *segment == "..") return bad_target("a \".\" or \"..\" in the path");
    absl::StrAppend(&parsed.path, "/", *segment);
    parsed.segments.push_back(*std::move(segment));
  }
  if (question < target.size()) {
    const absl::Status status = parse_query(target.substr(question + 1), &parsed.query);
    if (!status.ok()) return status;
  }
  return parsed;
}

absl::StatusOr<Router> Router::make(std::vector<Route> routes) {
  Router router;
  // Segment by segment, fixed ones before variables.
  std::stable_sort(routes.begin(), routes.end(), [](const Route& a, const Route& b) {
    const auto of = [](const Route& r) {
      return split(std::string_view(r.pattern).substr(1), '/');
    };
    const auto first = of(a), second = of(b);
    return std::lexicographical_compare(
        first.begin(), first.end(), second.begin(), second.end(),
        [](std::string_view x, std::string_view y) { return !is_variable(x) && is_variable(y); });
  });
  std::set<std::pair<std::string, std::string>> known;
  for (const Route& route : routes) {
    if (!known.emplace(route.method, route.pattern).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("route ", route.method, " ", route.pattern, " is given twice"));
    }
    std::vector<std::string> pattern;
    for (const std::string_view part : split(std::string_view(route.pattern).substr(1), '/')) {
      pattern.emplace_back(part);
    }
    router.patterns_.push_back(std::move(pattern));
  }
  router.routes_ = std::move(routes);
  return router;
}

Match Router::find(std::string_view method, const Target& target) const {
  Match match;
  std::set<std::string> methods;
  for (size_t i = 0; i < routes_.size(); ++i) {
    if (!fits(patterns_[i], target.segments)) continue;
    const Route& route = routes_[i];
    methods.insert(route.method);
    if (match.route != nullptr) continue;
    if (route.method != method && !(method == "HEAD" && route.method == "GET")) continue;
    match.route = &route;
    for (size_t s = 0; s < patterns_[i].size(); ++s) {
      const std::string& part = patterns_[i][s];
      if (is_variable(part)) {
        match.path_values.emplace(part.substr(1, part.size() - 2), target.segments[s]);
      }
    }
  }
  if (methods.empty()) return match;
  if (methods.contains("GET")) methods.insert("HEAD");
  methods.insert("OPTIONS");
  match.allow = absl::StrJoin(methods, ", ");
  return match;
}

}  // namespace varve::http
