#include "tools/mri_conform/remote_runtime.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/mri_conform/outcome.h"

namespace varve::conform {
namespace {

using Json = nlohmann::json;
namespace mc = mri::conformance;

mri_status status_of(int http) {
  switch (http) {
    case 200:
      return MRI_OK;
    case 400:
      return MRI_E_ARG;
    case 404:
      return MRI_E_NOT_FOUND;
    case 409:
      return MRI_E_STATE;
    case 429:
      return MRI_E_NOMEM;
    case 499:
      return MRI_E_CANCELLED;
    case 501:
      return MRI_E_UNSUPPORTED;
    case 503:
      return MRI_E_BUSY;
    default:
      return MRI_E_INTERNAL;
  }
}

uint64_t number(const Json& from, const char* name) {
  const auto at = from.find(name);
  return at != from.end() && at->is_number_unsigned() ? at->get<uint64_t>() : 0;
}

mri_kv_usage usage_of(const Json& answer) {
  mri_kv_usage usage{};
  const auto at = answer.find("usage");
  if (at == answer.end() || !at->is_object()) return usage;
  usage.hot_bytes = number(*at, "hot_bytes");
  usage.warm_bytes = number(*at, "warm_bytes");
  usage.cold_bytes = number(*at, "cold_bytes");
  usage.hot_tokens = number(*at, "hot_tokens");
  usage.warm_tokens = number(*at, "warm_tokens");
  usage.cold_tokens = number(*at, "cold_tokens");
  return usage;
}

// JSON has no infinities, so a server may write null.
std::vector<float> logits_of(const Json& from) {
  std::vector<float> logits;
  const auto add = [&](const auto& self, const Json& value) -> void {
    if (value.is_array()) {
      for (const Json& one : value) self(self, one);
    } else {
      logits.push_back(value.is_number() ? value.get<float>() : NAN);
    }
  };
  if (const auto at = from.find("logits"); at != from.end() && at->is_array()) add(add, *at);
  return logits;
}

Json ranges_json(const std::vector<mri_token_range>& ranges) {
  Json list = Json::array();
  for (const mri_token_range& range : ranges)
    list.push_back({{"first", range.first}, {"count", range.count}});
  return list;
}

}  // namespace

RemoteRuntime::RemoteRuntime(std::string url, std::string key, uint32_t version)
    : url_(std::move(url)), key_(std::move(key)), version_(version_name(version)) {
  mc::Init one;
  one.tokens = {1};
  one.logits = true;
  const mc::Inited made = init(one);
  if (made.status != MRI_OK) return;
  vocabulary_ = made.logits.size();
  release(made.ctx);
}

cli::HttpRequest RemoteRuntime::request(const std::string& method, const std::string& path) const {
  cli::HttpRequest request;
  request.url = url_;
  request.method = method;
  request.path = path;
  request.key = key_;
  request.headers = {{"X-MRI-Version", version_}};
  return request;
}

mri_status RemoteRuntime::post(const std::string& path, const Json& body, Json* answer,
                               std::string* text) const {
  cli::HttpRequest asked = request("POST", path);
  asked.body = body.dump();
  const absl::StatusOr<cli::HttpAnswer> got = cli::ask_server(asked);
  if (!got.ok()) {
    *text = std::string(got.status().message());
    return MRI_E_DEVICE;
  }
  *answer = Json::parse(got->body, nullptr, false);
  if (!answer->is_object()) *answer = Json::object();
  const mri_status status = status_of(got->status);
  if (status != MRI_OK) *text = absl::StrCat("HTTP ", got->status, " ", got->body.substr(0, 500));
  return status;
}

mc::Inited RemoteRuntime::init(const mc::Init& init) {
  mc::Inited out;
  Json answer;
  out.status = post("/mri/init_context",
                    {{"tokens", init.tokens},
                     {"logits", init.logits},
                     {"chunk_tokens", init.chunk_tokens},
                     {"max_tokens", init.max_tokens},
                     {"budget_bytes", init.budget_bytes},
                     {"pinned", ranges_json(init.pinned)}},
                    &answer, &out.text);
  if (out.status != MRI_OK) return out;
  out.ctx = number(answer, "ctx");
  out.n_chunks = number(answer, "n_chunks");
  out.usage = usage_of(answer);
  out.logits = logits_of(answer);
  return out;
}

mc::SteppedAll RemoteRuntime::step(const std::vector<mc::Step>& steps) {
  mc::SteppedAll out;
  Json seqs = Json::array(), answer;
  for (const mc::Step& step : steps) {
    seqs.push_back({{"ctx", step.ctx},
                    {"tokens", step.tokens},
                    {"logits", step.logits},
                    {"all_logits", step.all_logits ? 1 : 0},
                    {"flags", step.flags}});
  }
  out.status = post("/mri/forward_step", {{"seqs", std::move(seqs)}}, &answer, &out.text);
  if (out.status != MRI_OK) return out;
  out.n_tokens = number(answer, "n_tokens");
  for (const Json& seq : answer.value("seqs", Json::array())) {
    out.seqs.push_back(
        {static_cast<mri_status>(number(seq, "status")), number(seq, "position"), logits_of(seq)});
  }
  return out;
}

mc::Listed RemoteRuntime::list(uint64_t ctx, uint64_t first_token, uint64_t n_tokens) {
  mc::Listed out;
  Json answer;
  out.status =
      post("/mri/get_kv_summary",
           {{"ctx", ctx}, {"first_token", first_token}, {"n_tokens", n_tokens}, {"what", 0}},
           &answer, &out.text);
  if (out.status != MRI_OK) return out;
  out.n_out = number(answer, "n_out");
  out.kv_epoch = number(answer, "kv_epoch");
  out.usage = usage_of(answer);
  for (const Json& row : answer.value("out", Json::array())) {
    out.rows.push_back({number(row, "id"), number(row, "position"),
                        static_cast<uint32_t>(number(row, "n_tokens")),
                        static_cast<uint32_t>(number(row, "tier")), number(row, "bytes")});
  }
  return out;
}

mc::Evicted RemoteRuntime::evict(uint64_t ctx, const std::vector<mri_token_range>& ranges,
                                 uint32_t granularity) {
  mc::Evicted out;
  Json answer;
  out.status = post("/mri/evict_kv",
                    {{"ctx", ctx}, {"ranges", ranges_json(ranges)}, {"granularity", granularity}},
                    &answer, &out.text);
  if (out.status != MRI_OK) return out;
  out.n_evicted = number(answer, "n_evicted");
  out.bytes_freed = number(answer, "bytes_freed");
  out.is_confirmation_there = answer.contains("confirm_state");
  out.confirm_state = static_cast<uint32_t>(number(answer, "confirm_state"));
  out.n_refused = static_cast<uint32_t>(number(answer, "n_refused"));
  out.confirm_epoch = number(answer, "confirm_epoch");
  return out;
}

void RemoteRuntime::release(uint64_t ctx) {
  // Nothing can be done about a failure, and a context that is not there is no failure.
  (void)cli::ask_server(request("DELETE", absl::StrCat("/mri/contexts/", ctx)));
}

mc::VersionAnswer RemoteRuntime::ask_with_versions(const std::vector<std::string>& values) {
  mc::VersionAnswer out;
  cli::HttpRequest asked = request("POST", "/mri/init_context");
  asked.headers.clear();
  for (const std::string& value : values) asked.headers.emplace_back("X-MRI-Version", value);
  asked.body = R"({"tokens":[1]})";
  const absl::StatusOr<cli::HttpAnswer> got = cli::ask_server(asked);
  if (!got.ok()) {
    out.body = std::string(got.status().message());
    return out;
  }
  out.http_status = got->status;
  out.body = got->body;
  for (const auto& [name, value] : got->headers) {
    if (absl::EqualsIgnoreCase(name, "X-MRI-Version")) out.served = value;
    if (absl::EqualsIgnoreCase(name, "X-MRI-Supported")) out.supported = value;
  }
  const Json answer = Json::parse(got->body, nullptr, false);
  if (answer.is_object() && number(answer, "ctx") != 0) release(number(answer, "ctx"));
  return out;
}

}  // namespace varve::conform
