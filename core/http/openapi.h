// The OpenAPI document: what clients read at /openapi.json, and what requests are checked with.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "core/http/request_schema.h"

namespace varve::http {

// core/http/openapi.json with includes merged, optional members nullable, texts without NUL, and
// the errors that every route can give.
const nlohmann::json& openapi_document();
// components.schemas.<name>, compiled; `name` exists.
const Schema& request_schema(std::string_view name);

}  // namespace varve::http
