#include "core/http/mri_version.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/text.h"
#include "mri/version.h"

namespace varve::http {
namespace {

constexpr char kHeader[] = "X-MRI-Version";
constexpr uint32_t kMin = MRI_1_0, kMax = MRI_1_1;
constexpr size_t kShownBytesMax = 32;

std::string supported() { return absl::StrCat(version_text(kMin), "-", version_text(kMax)); }

// Digits without a leading zero, below 2^16.
std::optional<uint32_t> number(std::string_view text) {
  uint16_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (text.size() > 1 && text.front() == '0') return std::nullopt;
  return value;
}

std::optional<uint32_t> parsed(std::string_view text) {
  const size_t dot = text.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const auto major = number(text.substr(0, dot)), minor = number(text.substr(dot + 1));
  if (!major || !minor) return std::nullopt;
  return MRI_VERSION(*major, *minor);
}

MriVersion refused(std::string_view found, std::string_view code, std::string_view what) {
  const std::string shown = clean_text(found, kShownBytesMax);
  return {kMin, error_response(
                    400,
                    absl::StrCat(std::string(what), ": found ", kHeader, " \"", shown,
                                 "\"; this server speaks ", supported(),
                                 ": send one of these, or no such header for ", version_text(kMin)),
                    kHeader, code)};
}

}  // namespace

MriVersion negotiate_mri(const Request& request) {
  const auto n = std::count_if(request.headers.begin(), request.headers.end(), [](const auto& h) {
    return absl::EqualsIgnoreCase(h.first, kHeader);
  });
  if (n == 0) return {kMin, std::nullopt};
  const std::string_view text = *request.header(kHeader);
  const std::optional<uint32_t> wanted = parsed(text);
  if (n > 1 || !wanted) return refused(text, "MRI-E010", "malformed version");
  const uint32_t served = std::min(*wanted, kMax);
  if (*wanted >> 16 != kMax >> 16 || served < kMin) {
    return refused(text, "MRI-E012", "no common version");
  }
  return {served, std::nullopt};
}

void add_mri_headers(uint32_t served, Response* response) {
  response->headers.emplace_back(kHeader, version_text(served));
  response->headers.emplace_back("X-MRI-Supported", supported());
}

}  // namespace varve::http
