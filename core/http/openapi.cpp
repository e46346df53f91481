#include "core/http/openapi.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "core/http/http.h"
#include "core/http/request_json.h"
#include "core/http/service.h"

namespace varve::http {

extern const char kOpenapiText[];

namespace {

using nlohmann::json;

// What the server itself may answer on any route, and what the layers below a route may.
constexpr const char* kServerErrors[] = {"400", "401", "403", "404", "405", "408", "413", "415",
                                         "417", "421", "429", "431", "500", "503", "505"};
constexpr const char* kPostErrors[] = {"409", "499", "501", "504"};

// x-includes names a schema whose properties count as the schema's own.
json with_includes(json document) {
  json& schemas = document["components"]["schemas"];
  for (json& schema : schemas) {
    const auto included = schema.find("x-includes");
    if (included == schema.end()) continue;
    const json source = schemas.at(included->get<std::string>());
    schema.erase("x-includes");
    for (const auto& [name, property] : source.at("properties").items())
      schema["properties"].emplace(name, property);
  }
  return document;
}

const json& source_document() {
  static const json document = with_includes(json::parse(kOpenapiText));
  return document;
}

json or_null(json schema) {
  if (schema.empty()) return schema;
  if (schema.contains("anyOf")) {
    schema["anyOf"].push_back({{"type", "null"}});
    return schema;
  }
  if (schema.contains("$ref")) return {{"anyOf", {schema, {{"type", "null"}}}}};
  if (schema.contains("enum")) schema["enum"].push_back(nullptr);
  schema["type"] = json::array({schema.at("type"), "null"});
  return schema;
}

// Tells clients what the checks allow beyond the plain schema: null for absent, and no NUL.
void describe_inputs(json& schema) {
  if (!schema.is_object()) return;
  if (schema.value("type", "") == "string" && !schema.contains("enum"))
    schema["pattern"] = "^[^\\u0000]*$";
  for (const char* inner : {"items", "additionalProperties"}) {
    if (schema.contains(inner)) describe_inputs(schema[inner]);
  }
  if (schema.contains("anyOf")) {
    for (json& branch : schema["anyOf"]) describe_inputs(branch);
  }
  if (!schema.contains("properties")) return;
  const json required = schema.value("required", json::array());
  for (auto& [name, property] : schema["properties"].items()) {
    describe_inputs(property);
    if (std::find(required.begin(), required.end(), name) == required.end())
      property = or_null(std::move(property));
  }
}

void add_errors(json& operation, bool is_post) {
  const json error = {{"$ref", "#/components/responses/Error"}};
  for (const char* status : kServerErrors) operation["responses"].emplace(status, error);
  if (!is_post) return;
  for (const char* status : kPostErrors) operation["responses"].emplace(status, error);
}

json served_document() {
  json document = source_document();
  for (auto& [name, schema] : document["components"]["schemas"].items()) {
    const bool is_input =
        absl::EndsWith(name, "Request") || name == "Messages" || name == "Generation";
    if (is_input) describe_inputs(schema);
  }
  for (auto& [path, operations] : document["paths"].items()) {
    for (auto& [method, operation] : operations.items()) add_errors(operation, method != "get");
  }
  return document;
}

}  // namespace

const json& openapi_document() {
  static const json document = served_document();
  return document;
}

const Schema& request_schema(std::string_view name) {
  static const std::map<std::string, Schema, std::less<>>* const schemas = [] {
    auto* all = new std::map<std::string, Schema, std::less<>>;
    const json& document = source_document();
    for (const auto& [key, schema] : document.at("components").at("schemas").items()) {
      if (absl::EndsWith(key, "Request")) all->emplace(key, Schema(schema, document));
    }
    return all;
  }();
  return schemas->find(name)->second;
}

void add_openapi_route(Service& service, std::vector<Route>& routes) {
  json document = openapi_document();
  document["info"]["version"] = service.version;
  const Handler handler = [text = dump(document)](const Request&,
                                                  const std::shared_ptr<Responder>& responder) {
    Response response;
    response.body = text;
    responder->send(std::move(response));
  };
  routes.push_back({"GET", "/openapi.json", Scope::kPublic, handler, false});
}

}  // namespace varve::http
