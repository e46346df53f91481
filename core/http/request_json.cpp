#include "core/http/request_json.h"

#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "core/base/text.h"

namespace varve::http {
namespace {

using nlohmann::json;

constexpr size_t kShownBytesMax = 160;

// Builds the value with the limits looked at before anything is kept. nlohmann's parser calls this
// from a loop, not by recursion.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(std::string_view name) : name_(name) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(Json::number_integer_t value) override { return add(value); }
  bool number_unsigned(Json::number_unsigned_t value) override { return add(value); }
  bool number_float(Json::number_float_t value, const std::string&) override { return add(value); }
  bool binary(Json::binary_t&) override { return fail("found binary data"); }
  bool string(std::string& value) override {
    if (value.find('\0') != std::string::npos)
      return fail("found NUL (\\u0000) in a text, which no model reads");
    return add(std::move(value));
  }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    Open& object = open_.back();
    object.key = name;
    if (name.find('\0') != std::string::npos) return fail("found NUL (\\u0000) in a name");
    if (object.names.size() >= kJsonMembersMax)
      return fail(absl::StrCat("found an object of more than ", kJsonMembersMax, " members"));
    return object.names.insert(std::move(name)).second ||
           fail("found twice in one object; expected once");
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::json::exception& error) override {
    std::string_view what = error.what();
    what.remove_prefix(std::min(what.size(), what.find("] ") + 2));
    return fail(
        absl::StrCat("found no JSON at byte ", position, ": ", clean_text(what, kShownBytesMax)));
  }

  Json& value() { return root_; }
  const absl::Status& status() const { return status_; }

 private:
  struct Open {
    Json* value;      // stays where it is while it is open: only the innermost grows
    std::string key;  // objects: of the member under way
    absl::flat_hash_set<std::string> names;
  };

  bool fail(const std::string& message) {
    status_ = invalid(path(), message);
    return false;
  }

  // Of the value that comes next.
  std::string path() const {
    std::string text = name_;
    for (size_t i = 0; i < open_.size(); ++i) {
      const bool is_last = i + 1 == open_.size();
      if (open_[i].value->is_array()) {
        absl::StrAppend(&text, "[", open_[i].value->size() - (is_last ? 0 : 1), "]");
      } else if (!open_[i].key.empty()) {
        absl::StrAppend(&text, text.empty() ? "" : ".", open_[i].key);
      }
      if (text.size() > kShownBytesMax) break;
    }
    return clean_text(text, kShownBytesMax);
  }

  template <class Value>
  bool add(Value&& value) {
    return place(Json(std::forward<Value>(value))) != nullptr;
  }

  Json* place(Json value) {
    if (++n_values_ > kJsonValuesMax) {
      fail(absl::StrCat("found more than ", kJsonValuesMax, " values; expected fewer"));
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back().value;
    if (parent.is_array()) return &parent.emplace_back(std::move(value));
    auto& members = parent.get_ref<Json::object_t&>();  // a vector; names are known to differ
    members.emplace_back(open_.back().key, std::move(value));
    return &members.back().second;
  }

  bool open(Json value) {
    if (open_.size() >= kJsonDepthMax) {
      // The whole path would say less than where it begins.
      status_ = invalid(name_.empty() ? clean_text(open_.front().key, kShownBytesMax) : name_,
                        absl::StrCat("found JSON nested deeper than ", kJsonDepthMax, " levels"));
      return false;
    }
    Json* placed = place(std::move(value));
    if (placed == nullptr) return false;
    open_.push_back({placed, "", {}});
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::string name_;
  Json root_;
  std::vector<Open> open_;
  size_t n_values_ = 0;
  absl::Status status_;
};

}  // namespace

absl::Status invalid(std::string_view param, std::string_view message, std::string_view code) {
  const std::string shown = param.empty() ? "request body" : std::string(param);
  return with_param(absl::InvalidArgumentError(absl::StrCat(shown, ": ", std::string(message))),
                    param, code);
}

void reply(Responder& responder, const absl::StatusOr<json>& body) {
  if (!body.ok()) return responder.send(error_response(body.status()));
  Response response;
  response.body = dump(*body);
  responder.send(std::move(response));
}

absl::StatusOr<Json> parse_json(std::string_view text, std::string_view param) {
  if (text.starts_with("\xEF\xBB\xBF"))
    return invalid(param, "begins with a byte order mark; expected JSON in UTF-8 without one");
  // The parser takes the byte for the end of its input.
  if (const size_t at = text.find('\0'); at != std::string_view::npos)
    return invalid(param, absl::StrCat("found a NUL byte at ", at, "; expected JSON"));
  Builder builder(param);
  if (!Json::sax_parse(text, &builder)) return builder.status();
  return std::move(builder.value());
}

absl::StatusOr<Json> parse_body(std::string_view body) {
  absl::StatusOr<Json> value = parse_json(body, "");
  if (value.ok() && !value->is_object())
    return invalid("", absl::StrCat("found ", value->type_name(), ", expected a JSON object"));
  return value;
}

std::string dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace varve::http
