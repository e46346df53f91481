// A server's own rules: which version it serves.
#include "mri/conformance/runtime_client.h"

namespace mri::conformance {
namespace {

std::string shown(const std::vector<std::string>& values) {
  if (values.empty()) return "no X-MRI-Version";
  std::string text = "X-MRI-Version";
  for (const std::string& value : values) text += " '" + value.substr(0, 20) + "'";
  return text;
}

void serves_versions(Bench& bench) {
  struct Case {
    std::vector<std::string> asked;
    std::string served;
  };
  // Absent is the oldest, never the newest: proxies drop headers.
  for (const Case& c :
       {Case{{}, "1.0"}, Case{{"1.0"}, "1.0"}, Case{{"1.1"}, "1.1"}, Case{{"1.7"}, "1.1"}}) {
    const VersionAnswer answer = bench.server->ask_with_versions(c.asked);
    const std::string at = shown(c.asked) + ": ";
    bench.report->expect(answer.http_status == 200,
                         at + "HTTP " + std::to_string(answer.http_status));
    bench.report->expect(answer.served == c.served,
                         at + "served as '" + answer.served + "', expected " + c.served);
    bench.report->expect(answer.supported.find("1.0") == 0,
                         at + "X-MRI-Supported is '" + answer.supported + "'");
  }
}

void refuses_versions(Bench& bench) {
  const auto refuses = [&](const std::vector<std::string>& asked, const char* rule) {
    const VersionAnswer answer = bench.server->ask_with_versions(asked);
    const std::string at = shown(asked) + ": ";
    bench.report->expect(answer.http_status == 400,
                         at + "HTTP " + std::to_string(answer.http_status) + ", expected 400");
    bench.report->expect(answer.body.find(rule) != std::string::npos,
                         at + "the body does not name " + rule);
  };
  for (const char* version : {"2.0", "0.9"}) refuses({version}, "MRI-E012");
  for (const char* version : {"", "1", "v1.1", "1.1.0", "1.01", "1,1", "1.1 x"})
    refuses({version}, "MRI-E010");
  refuses({"1.0", "1.1"}, "MRI-E010");
  refuses({std::string(2000, '1')}, "MRI-E010");
}

constexpr Test kTests[] = {
    {"url.version", "url", 2, MRI_1_0,
     "X-MRI-Version is echoed as served: absent is 1.0, a later minor is the newest there is.",
     "Never take an absent header for the newest version.", serves_versions},
    {"url.bad-version", "url", 2, MRI_1_0,
     "Another major is 400 MRI-E012, anything but one major.minor 400 MRI-E010.",
     "Parse the header strictly, and refuse two of them.", refuses_versions},
};

}  // namespace

std::span<const Test> url_tests() { return kTests; }

}  // namespace mri::conformance
