// Grammars (GBNF) for answers that must be JSON, or one of some texts.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace varve {

// A grammar whose every text is JSON that the schema accepts; not every accepted JSON is a text of
// it. Read: type (one or several), enum, const, anyOf, oneOf (as anyOf), allOf of one, $ref inside
// the document, $defs; properties, required, additionalProperties; items, minItems, maxItems;
// minLength, maxLength, format (date, time, date-time, uuid). Properties come in the schema's order
// (nlohmann::json sorts them by name: parse to ordered_json to keep it), others after them and only
// where additionalProperties says so. Blanks between tokens are few.
//
// Any other keyword is kInvalidArgument that names it and where it stands, as is a schema of more
// than 64 KiB, nested deeper than 64, or with a grammar of more than 64 KiB.
absl::StatusOr<std::string> json_schema_grammar(const nlohmann::ordered_json& schema);
absl::StatusOr<std::string> json_schema_grammar(const nlohmann::json& schema);

// For any JSON object.
std::string json_object_grammar();

// For one of the texts, exactly; at least one, none empty.
std::string choice_grammar(const std::vector<std::string>& choices);

}  // namespace varve
