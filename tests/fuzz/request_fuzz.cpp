// Any bytes as the body of a request: the first byte picks the route, the rest is what a client
// sent. A request is taken, or refused with a status of 400 and a message.
#include <cstdlib>
#include <string_view>

#include "core/http/openai_request.h"
#include "core/http/request_json.h"

namespace {

using varve::http::ParseOptions;

void require(bool is_true) {
  if (!is_true) std::abort();
}

void check(const absl::Status& status) {
  if (status.ok()) return;
  const varve::http::Response response = varve::http::error_response(status);
  require(response.status == 400);
  const auto error = nlohmann::json::parse(response.body).at("error");
  require(!error.at("message").get<std::string>().empty());
}

void check_call(const absl::StatusOr<varve::http::GenerateCall>& call) {
  check(call.status());
  if (!call.ok()) return;
  require(call->n >= 1 && call->best_of >= call->n && call->best_of <= 8);
  require(call->is_chat ? !call->messages.empty() : !call->prompts.empty());
  require(call->stop.size() <= 16 && call->n_logprobs >= -1 && call->n_logprobs <= 20);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data + 1), size - 1);
  const ParseOptions options{8, (data[0] & 8) != 0 ? "reject" : "warn"};
  std::vector<std::string> warnings;
  switch (data[0] & 3) {
    case 0:
      check_call(varve::http::parse_chat(body, options));
      break;
    case 1:
      check_call(varve::http::parse_completion(body, options));
      break;
    case 2:
      for (const char* schema : {"TokenizeRequest", "DetokenizeRequest"})
        check(varve::http::checked_body(body, schema, options, &warnings).status());
      break;
    default:
      check(varve::http::checked_body(body, "ContextRequest", options, &warnings).status());
  }
  return 0;
}
