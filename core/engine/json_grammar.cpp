#include "core/engine/json_grammar.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace varve {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kSchemaBytesMax = 64 << 10;
constexpr size_t kGrammarBytesMax = 64 << 10;
constexpr int kDepthMax = 64;
constexpr uint64_t kCountMax = 2000;   // what the grammar engine repeats
constexpr size_t kNameBytesMax = 256;  // of properties that others must differ from

// Rules that others name. Days after the 28th are left out, since not every month has them. A
// string's escapes leave out surrogates: outside the basic plane a
// character stands as it is. Numbers are short enough for a double.
constexpr const char* kCommonRules = R"(ws ::= " "? | "\n" " "{0,16}
hex ::= [0-9a-fA-F]
char ::= [^"\\\x00-\x1F\x7F] | "\\" (["\\/bfnrt] | "u" ([0-9a-cA-CefEF] hex{3} | [dD] [0-7] hex{2}))
string ::= "\"" char* "\""
integer ::= "-"? ("0" | [1-9] [0-9]{0,15})
number ::= integer ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?
boolean ::= "true" | "false"
null ::= "null"
value ::= object | array | string | number | boolean | null
object ::= "{" ws (pair ("," ws pair)*)? "}"
pair ::= string ":" ws value ws
array ::= "[" ws (value ws ("," ws value ws)*)? "]"
date ::= [0-9]{4} "-" ("0" [1-9] | "1" [0-2]) "-" ("0" [1-9] | "1" [0-9] | "2" [0-8])
time ::= ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] offset
offset ::= "Z" | [+-] [01] [0-9] ":" [0-5] [0-9]
uuid ::= hex{8} "-" hex{4} "-" hex{4} "-" hex{4} "-" hex{12}
)";

std::string json_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// `text` as a quoted text of a grammar.
std::string literal(std::string_view text) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += {'\\', c};
    } else if (byte < 0x20 || byte == 0x7F) {
      quoted += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

// One code point as a member of a class of characters.
std::string class_member(std::string_view code_point) {
  const bool is_mark = code_point == "]" || code_point == "[" || code_point == "-" ||
                       code_point == "\\" || code_point == "^" || code_point == "\"";
  return absl::StrCat(is_mark ? "\\" : "", std::string(code_point));
}

const std::set<std::string_view> kAnnotations = {
    "title",    "description", "default",     "examples",   "$schema",  "$id",
    "$comment", "$defs",       "definitions", "deprecated", "readOnly", "writeOnly"};
const std::map<std::string_view, std::set<std::string_view>> kKeywordsOfType = {
    {"object", {"properties", "required", "additionalProperties"}},
    {"array", {"items", "minItems", "maxItems"}},
    {"string", {"minLength", "maxLength", "format"}},
    {"integer", {}},
    {"number", {}},
    {"boolean", {}},
    {"null", {}}};

bool has_type(const Json& value, std::string_view type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  return type == "boolean" ? value.is_boolean() : value.is_null();
}

// Where a schema stands.
struct At {
  std::string pointer;  // "#/properties/a"
  int depth = 0;

  At in(std::string_view key) const {
    std::string step;
    for (const char c : key) step += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
    return {absl::StrCat(pointer, "/", step), depth + 1};
  }
};

// Thrown inside this file alone: a schema is walked in depth, and each step may fail.
struct Refused {
  absl::Status status;
};

[[noreturn]] void refuse(const At& at, const std::string& what) {
  throw Refused{absl::InvalidArgumentError(absl::StrCat("schema at ", at.pointer, ": ", what))};
}

class Writer {
 public:
  explicit Writer(const Json& root) : root_(root) {}

  std::string write() {
    add_rule("root", expression(root_, {"#", 0}));
    while (!waiting_.empty()) {
      const auto [pointer, rule] = waiting_.back();
      waiting_.pop_back();
      add_rule(rule, expression(*pointer.second, {pointer.first, 0}));
    }
    return text_ + kCommonRules;
  }

 private:
  using Target = std::pair<std::string, const Json*>;

  void add_rule(const std::string& name, const std::string& body) {
    absl::StrAppend(&text_, name, " ::= ", body, "\n");
    if (text_.size() + std::string_view(kCommonRules).size() > kGrammarBytesMax) {
      throw Refused{absl::InvalidArgumentError(absl::StrCat("schema: its grammar has more than ",
                                                            kGrammarBytesMax,
                                                            " bytes; expected a smaller one"))};
    }
  }
  std::string new_rule(const std::string& body) {
    std::string name = absl::StrCat("r", n_rules_++);
    add_rule(name, body);
    return name;
  }

  void allow_only(const Json& schema, const At& at, std::set<std::string_view> keywords,
                  std::string_view beside = "") {
    for (const auto& [key, value] : schema.items()) {
      if (keywords.count(key) > 0 || kAnnotations.count(key) > 0) continue;
      if (key == "uniqueItems" && value == false) continue;
      refuse(at, absl::StrCat("found the keyword ", literal(key),
                              beside.empty() ? "" : absl::StrCat(" beside ", std::string(beside)),
                              ", which is not supported here; remove it"));
    }
  }

  // A GBNF expression that can stand anywhere: one name, one text, or in brackets.
  std::string expression(const Json& schema, const At& at) {
    if (at.depth > kDepthMax)
      refuse(at, absl::StrCat("nested deeper than ", kDepthMax, "; use $defs or a flatter schema"));
    if (schema == true) return "value";
    if (!schema.is_object())
      refuse(at,
             absl::StrCat("found ", schema == false ? "false, which nothing matches" : "no object",
                          "; expected a schema"));
    if (schema.contains("$ref")) {
      allow_only(schema, at, {"$ref"}, "$ref");
      return reference(schema["$ref"], at.in("$ref"));
    }
    for (const char* keyword : {"enum", "const"}) {
      if (!schema.contains(keyword)) continue;
      allow_only(schema, at, {keyword, "type"}, keyword);
      return constants(schema, keyword, at);
    }
    for (const char* keyword : {"anyOf", "oneOf", "allOf"}) {
      if (!schema.contains(keyword)) continue;
      allow_only(schema, at, {keyword}, keyword);
      return alternatives(schema[keyword], keyword, at.in(keyword));
    }
    return typed(schema, at);
  }

  std::string reference(const Json& value, const At& at) {
    if (!value.is_string()) refuse(at, "expected a text");
    const auto& target = value.get_ref<const std::string&>();
    if (target.empty() || target[0] != '#')
      refuse(at, absl::StrCat("found ", literal(target), "; expected one that begins with #"));
    const auto [known, is_new] = rule_of_.emplace(target, "");
    if (!is_new) return known->second;
    const Json* found = nullptr;
    try {
      found = &root_.at(Json::json_pointer(target.substr(1)));
    } catch (const Json::exception&) {
      refuse(at, absl::StrCat("found ", literal(target), ", but the document has nothing there"));
    }
    known->second = absl::StrCat("r", n_rules_++);
    waiting_.push_back({{target, found}, known->second});
    return known->second;
  }

  std::string constants(const Json& schema, const std::string& keyword, const At& at) {
    const Json values = keyword == "enum" ? schema["enum"] : Json::array({schema["const"]});
    if (!values.is_array()) refuse(at.in(keyword), "expected a list");
    const std::vector<std::string> types = types_of(schema, at);
    std::string body;
    for (const Json& value : values) {
      const bool fits =
          types.empty() || std::any_of(types.begin(), types.end(),
                                       [&](const auto& t) { return has_type(value, t); });
      if (fits) absl::StrAppend(&body, body.empty() ? "" : " | ", literal(json_text(value)));
    }
    if (body.empty()) refuse(at.in(keyword), "found no value that fits the type");
    return new_rule(body);
  }

  std::string alternatives(const Json& list, std::string_view keyword, const At& at) {
    if (!list.is_array() || list.empty()) refuse(at, "expected a list of schemas");
    if (keyword == "allOf" && list.size() != 1)
      refuse(at, "found several schemas; only one is supported here: merge them");
    std::string body;
    for (size_t i = 0; i < list.size(); ++i) {
      absl::StrAppend(&body, i == 0 ? "" : " | ", expression(list[i], at.in(std::to_string(i))));
    }
    return new_rule(body);
  }

  // The type keyword's; empty when there is none.
  std::vector<std::string> types_of(const Json& schema, const At& at) {
    if (!schema.contains("type")) return {};
    const Json& type = schema["type"];
    std::vector<std::string> types;
    for (const Json& one : type.is_array() ? type : Json::array({type})) {
      if (!one.is_string() || kKeywordsOfType.count(one.get_ref<const std::string&>()) == 0)
        refuse(at.in("type"), absl::StrCat("found ", json_text(one),
                                           "; expected object, array, string, integer, number, "
                                           "boolean or null"));
      types.push_back(one.get<std::string>());
    }
    if (types.empty()) refuse(at.in("type"), "found an empty list; expected at least one type");
    return types;
  }

  std::string typed(const Json& schema, const At& at) {
    std::vector<std::string> types = types_of(schema, at);
    // Keywords of one type alone speak of that type.
    for (const auto& [type, keywords] : kKeywordsOfType) {
      const bool speaks = std::any_of(keywords.begin(), keywords.end(), [&](std::string_view k) {
        return schema.contains(std::string(k));
      });
      if (!schema.contains("type") && speaks) types.emplace_back(type);
    }
    std::set<std::string_view> keywords = {"type"};
    for (const std::string& type : types) {
      const auto& more = kKeywordsOfType.at(type);
      keywords.insert(more.begin(), more.end());
    }
    allow_only(schema, at, keywords);
    if (types.empty()) return "value";
    std::string body;
    for (const std::string& type : types) {
      const std::string one = type == "object"   ? object(schema, at)
                              : type == "array"  ? array(schema, at)
                              : type == "string" ? text(schema, at)
                                                 : type;
      if (types.size() == 1) return one;
      absl::StrAppend(&body, body.empty() ? "" : " | ", one);
    }
    return new_rule(body);
  }

  // The value of a counting keyword, or `otherwise`.
  uint64_t count(const Json& schema, const char* keyword, uint64_t otherwise, const At& at) {
    if (!schema.contains(keyword)) return otherwise;
    const Json& value = schema[keyword];
    if (!value.is_number_unsigned() || value.get<uint64_t>() > kCountMax)
      refuse(at.in(keyword),
             absl::StrCat("found ", json_text(value), "; expected 0 to ", kCountMax));
    return value.get<uint64_t>();
  }

  // "{2,5}" for the keywords' values; "{2,}" without the upper one.
  std::string times(const Json& schema, const char* least, const char* most, uint64_t less,
                    const At& at) {
    const uint64_t low = count(schema, least, 0, at);
    const uint64_t high = count(schema, most, UINT64_MAX, at);
    if (high < low) refuse(at, absl::StrCat("found ", most, " below ", least));
    const uint64_t from = low > less ? low - less : 0;
    if (high == UINT64_MAX) return absl::StrCat("{", from, ",}");
    return absl::StrCat("{", from, ",", high > less ? high - less : 0, "}");
  }

  std::string text(const Json& schema, const At& at) {
    if (schema.contains("format")) {
      const Json& format = schema["format"];
      if (schema.contains("minLength") || schema.contains("maxLength"))
        refuse(at, "found a length beside format; remove one of them");
      if (format == "date-time") return R"(("\"" date "T" time "\""))";
      if (format != "date" && format != "time" && format != "uuid")
        refuse(at.in("format"), absl::StrCat("found ", json_text(format),
                                             "; expected date, time, date-time or uuid"));
      return absl::StrCat(R"(("\"" )", format.get<std::string>(), R"( "\""))");
    }
    if (!schema.contains("minLength") && !schema.contains("maxLength")) return "string";
    return absl::StrCat(R"(("\"" char)", times(schema, "minLength", "maxLength", 0, at),
                        R"( "\""))");
  }

  std::string array(const Json& schema, const At& at) {
    const std::string item =
        schema.contains("items") ? expression(schema["items"], at.in("items")) : "value";
    const std::string more = times(schema, "minItems", "maxItems", 1, at);
    if (count(schema, "maxItems", 1, at) == 0) return R"(("[" ws "]"))";
    const bool may_be_empty = count(schema, "minItems", 0, at) == 0;
    return new_rule(absl::StrCat(R"("[" ws ()", item, R"( ws ("," ws )", item, " ws)", more, ")",
                                 may_be_empty ? "?" : "", R"( "]")"));
  }

  struct Property {
    std::string pair;  // expression of "name": value
    bool is_required = false;
  };

  std::string object(const Json& schema, const At& at) {
    static const Json kNone = Json::object();
    const Json& properties = schema.contains("properties") ? schema["properties"] : kNone;
    if (!properties.is_object()) refuse(at.in("properties"), "expected an object");
    const Json required = schema.value("required", Json::array());
    std::set<std::string> needed;
    if (!required.is_array()) refuse(at.in("required"), "expected a list of names");
    for (const Json& name : required) {
      if (!name.is_string()) refuse(at.in("required"), "expected a list of names");
      needed.insert(name.get<std::string>());
    }
    // Without properties nothing is said about any: all are allowed.
    const Json extra = schema.value("additionalProperties", Json(properties.empty()));
    std::vector<Property> list;
    std::vector<std::string> names;
    const auto add = [&](const std::string& name, const std::string& value, bool is_needed) {
      const std::string key = literal(json_text(name));
      list.push_back({absl::StrCat("(", key, R"( ":" ws )", value, " ws)"), is_needed});
      names.push_back(name);
    };
    for (const auto& [name, property] : properties.items())
      add(name, expression(property, at.in("properties").in(name)), needed.erase(name) > 0);
    if (extra == false && !needed.empty())
      refuse(at.in("required"), absl::StrCat("found ", literal(*needed.begin()),
                                             ", which properties lacks and no other may be added"));
    if (extra == false && list.empty()) return R"(("{" ws "}"))";
    const std::string other =
        extra == false ? "" : expression(extra, at.in("additionalProperties"));
    for (const std::string& name : needed) add(name, other, true);
    std::string pair;
    if (!other.empty()) {
      for (const std::string& name : names) {
        if (name.size() > kNameBytesMax)
          refuse(at.in("properties"),
                 "found a name of more than 256 bytes beside others; set "
                 "additionalProperties to false");
      }
      const std::string key = names.empty() ? "string" : other_name(names);
      pair = new_rule(absl::StrCat(key, R"( ":" ws )", other, " ws"));
    }
    return members(list, pair);
  }

  // Rules from the last property to the first: what may come after some member, and at the start.
  std::string members(const std::vector<Property>& list, const std::string& other) {
    std::string after = other.empty() ? "" : absl::StrCat(R"((","  ws )", other, ")*");
    std::string start = other.empty() ? "\"\"" : absl::StrCat("(", other, " ", after, ")?");
    for (size_t i = list.size(); i-- > 0;) {
      const std::string& pair = list[i].pair;
      const char* maybe = list[i].is_required ? "" : "?";
      std::string first = absl::StrCat(pair, " ", after);
      if (!list[i].is_required) first = absl::StrCat(first, " | ", start);
      const std::string next = absl::StrCat(R"(("," ws )", pair, ")", maybe, " ", after);
      start = new_rule(first);
      after = i > 0 ? new_rule(next) : "";
    }
    return new_rule(absl::StrCat(R"("{" ws )", start, R"( "}")"));
  }

  // A quoted name that is none of `names`: at each point it either leaves all of them, by a
  // character that none goes on with, or stops where none ends.
  std::string other_name(const std::vector<std::string>& names) {
    return new_rule(absl::StrCat(R"("\"" )", unlike(names, 0), R"( "\"")"));
  }

  std::string unlike(const std::vector<std::string>& names, size_t at) {
    std::map<std::string, std::vector<std::string>> by_next;  // [next code point]
    bool is_name = false;
    for (const std::string& name : names) {
      if (name.size() <= at) {
        is_name = true;
        continue;
      }
      size_t end = at + 1;
      while (end < name.size() && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) ++end;
      by_next[name.substr(at, end - at)].push_back(name);
    }
    std::string taken, body;
    for (const auto& [next, those] : by_next) {
      const auto byte = static_cast<unsigned char>(next[0]);
      if (byte < 0x20 || byte == 0x7F || next == "\"" || next == "\\")
        continue;  // stands escaped, and escapes are not among the characters here
      absl::StrAppend(&taken, class_member(next));
      absl::StrAppend(&body, literal(next), " ", unlike(those, at + next.size()), " | ");
    }
    absl::StrAppend(&body, R"([^"\\\x00-\x1F\x7F)", taken, "] char*");
    return absl::StrCat(new_rule(body), is_name ? "" : "?");
  }

  const Json& root_;
  std::string text_;
  uint32_t n_rules_ = 0;
  std::map<std::string, std::string> rule_of_;           // [reference]
  std::vector<std::pair<Target, std::string>> waiting_;  // referenced, not written
};

}  // namespace

absl::StatusOr<std::string> json_schema_grammar(const nlohmann::ordered_json& schema) {
  if (const size_t n = json_text(schema).size(); n > kSchemaBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("schema: found ", n, " bytes; expected at most ", kSchemaBytesMax));
  }
  try {
    return Writer(schema).write();
  } catch (const Refused& refused) {
    return refused.status;
  }
}

absl::StatusOr<std::string> json_schema_grammar(const nlohmann::json& schema) {
  return json_schema_grammar(nlohmann::ordered_json(schema));
}

std::string json_object_grammar() { return absl::StrCat("root ::= object\n", kCommonRules); }

std::string choice_grammar(const std::vector<std::string>& choices) {
  const auto quote = [](std::string* out, const std::string& choice) { *out += literal(choice); };
  return absl::StrCat("root ::= ", absl::StrJoin(choices, " | ", quote), "\n");
}

}  // namespace varve
