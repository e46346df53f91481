// Experiments of a running server, and its reload; for keys of scope admin.
//
//   GET  /admin/experiments
//     {"experiments": [{"name", "version", "class", "mode",
//       "arms": [{"arm", "weight", "requests", "errors", "open", "unanswered",
//                 "unanswered_ms_max", "ttft_ms_mean", "quality_samples", "kld_mean", "top1_mean",
//                 "stopped"}]}]}
//   POST /admin/experiments/{name}/stop  {"arm": "int4", "why": "…"}   the same of that experiment
//   POST /admin/reload                   {"changes": ["class.vip.priority: 1 -> 10"]}
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "core/base/text.h"
#include "core/http/request_json.h"
#include "core/http/service.h"

namespace varve::http {
namespace {

using Json = nlohmann::json;

constexpr size_t kWhyBytesMax = 1024;

Json number_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json arm_json(const ArmStatus& arm) {
  return {{"arm", arm.arm},
          {"weight", arm.weight},
          {"requests", arm.requests},
          {"errors", arm.errors},
          {"open", arm.open},
          {"unanswered", arm.unanswered},
          {"unanswered_ms_max", arm.unanswered_ms_max},
          {"ttft_ms_mean", number_or_null(arm.ttft_ms_mean)},
          {"quality_samples", arm.quality_samples},
          {"kld_mean", number_or_null(arm.kld_mean)},
          {"top1_mean", number_or_null(arm.top1_mean)},
          {"stopped", arm.stopped.empty() ? Json(nullptr) : Json(arm.stopped)}};
}

Json experiment_json(const ExperimentStatus& experiment) {
  Json arms = Json::array();
  for (const ArmStatus& arm : experiment.arms) arms.push_back(arm_json(arm));
  return {{"name", experiment.name},
          {"version", experiment.version},
          {"class", experiment.class_name},
          {"mode", experiment.mode},
          {"arms", std::move(arms)}};
}

Response json_response(const Json& json) {
  Response response;
  response.body = dump(json);
  return response;
}

absl::StatusOr<std::string> text_field(const Json& body, const char* key) {
  const auto found = body.find(key);
  if (found == body.end() || !found->is_string() || found->get_ref<const std::string&>().empty())
    return invalid(key, "found no text; expected one that is not empty");
  return found->get<std::string>();
}

Response experiments(const Service& service) {
  Json list = Json::array();
  for (const ExperimentStatus& experiment : service.dispatcher->experiments())
    list.push_back(experiment_json(experiment));
  return json_response({{"experiments", std::move(list)}});
}

Response stop(const Service& service, const Request& request) {
  const absl::StatusOr<Json> body = parse_body(request.body);
  if (!body.ok()) return error_response(body.status());
  const absl::StatusOr<std::string> arm = text_field(*body, "arm");
  if (!arm.ok()) return error_response(arm.status());
  const absl::StatusOr<std::string> why = text_field(*body, "why");
  if (!why.ok()) return error_response(why.status());
  const auto name = request.path_values.find("name");
  const std::string experiment = name == request.path_values.end() ? "" : name->second;
  const absl::Status status = service.dispatcher->stop_arm(
      experiment, *arm, absl::StrCat(request.who.key_id, ": ", clean_text(*why, kWhyBytesMax)));
  if (!status.ok()) return error_response(status);
  for (const ExperimentStatus& one : service.dispatcher->experiments()) {
    if (one.name == experiment) return json_response(experiment_json(one));
  }
  return error_response(404, "found no such experiment any more: a reload has ended it");
}

Response reload(const Service& service) {
  if (!service.reload) return error_response(501, "this server has no profile to read again");
  const absl::StatusOr<std::vector<std::string>> changes = service.reload();
  if (!changes.ok()) return error_response(changes.status());
  return json_response({{"changes", *changes}});
}

}  // namespace

void add_admin_routes(Service& service, std::vector<Route>& routes) {
  routes.push_back({"GET", "/admin/experiments", Scope::kAdmin,
                    [&service](const Request&, std::shared_ptr<Responder> responder) {
                      responder->send(experiments(service));
                    }});
  routes.push_back({"POST", "/admin/experiments/{name}/stop", Scope::kAdmin,
                    [&service](const Request& request, std::shared_ptr<Responder> responder) {
                      responder->send(stop(service, request));
                    }});
  routes.push_back({"POST", "/admin/reload", Scope::kAdmin,
                    [&service](const Request&, std::shared_ptr<Responder> responder) {
                      responder->send(reload(service));
                    }});
}

}  // namespace varve::http
