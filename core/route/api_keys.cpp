#include "core/route/api_keys.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/sha256.h"
#include "core/config/keys.h"
#include "core/config/nearest_name.h"
#include "core/config/value.h"
#include "toml++/toml.h"

namespace varve {
namespace {

constexpr size_t kFileBytesMax = size_t{1} << 20;
constexpr size_t kKeysMax = 4096;
constexpr double kLimitMax = 1e12;

struct Entry {
  Sha256 digest{};
  Identity who;
  std::map<std::string, std::string, std::less<>> tiers;
  ApiKeys::Limits limits;
};

const std::vector<KeySpec>& entry_keys() {
  const auto text = [](const char* key, const char* choices, const char* value) {
    return KeySpec{key, "", choices, ValueType::kString, Value(std::string(value)), 0, 0};
  };
  const auto limit = [](const char* key) {
    return KeySpec{key, "", "", ValueType::kInt, Value(int64_t{0}), 0, kLimitMax};
  };
  static const auto* keys = new std::vector<KeySpec>{
      text("sha256", "", ""),
      text("tenant", "", ""),
      text("class", "", ""),
      {"tiers", "", "", ValueType::kStrings, Value(std::vector<std::string>{}), 0, 0},
      text("scope", "inference|admin", "inference"),
      limit("requests_per_minute"),
      limit("tokens_per_minute")};
  return *keys;
}

absl::Status error_at(const std::string& where, const std::string& text) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", text));
}

std::string did_you_mean(const std::string& name, const std::vector<std::string>& known) {
  const std::string nearest = nearest_name(name, known);
  return nearest.empty() ? "" : absl::StrCat("; did you mean ", quoted(nearest), "?");
}

bool is_name(std::string_view name) {
  const auto fits = [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.';
  };
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), fits);
}

// A file that only its owner (and group) may change: whoever writes it decides who is admin.
absl::StatusOr<std::string> read_keys_file(const std::string& path) {
  const auto bad = [&](const std::string& found) {
    return error_at(path, absl::StrCat("found ", found, "; expected a TOML file of API keys"));
  };
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return bad(absl::StrCat("no readable file (", std::strerror(errno), ")"));
  struct stat info {};
  std::string text(kFileBytesMax + 1, '\0');
  size_t size = 0;
  absl::Status status;
  if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) {
    status = bad("no regular file");
  } else if ((info.st_mode & S_IWOTH) != 0) {
    status = error_at(path, "found a file that everybody may write; expected chmod o-w on it");
  }
  while (status.ok() && size < text.size()) {
    const ssize_t n = read(file, text.data() + size, text.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      status = bad(absl::StrCat("a file that cannot be read (", std::strerror(errno), ")"));
    if (n <= 0) break;
    size += static_cast<size_t>(n);
  }
  close(file);
  if (status.ok() && size > kFileBytesMax)
    status = bad(absl::StrCat("more than ", kFileBytesMax, " bytes"));
  if (!status.ok()) return status;
  text.resize(size);
  return text;
}

class Reader {
 public:
  Reader(const std::string& path, const std::vector<std::string>& classes)
      : path_(path), classes_(classes) {}

  absl::StatusOr<std::vector<Entry>> read(const std::string& text) {
    try {
      return read_root(toml::parse(text, path_));
    } catch (const toml::parse_error& error) {
      std::string why(error.description());
      std::replace_if(
          why.begin(), why.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; }, ' ');
      return error_at(place(error.source().begin),
                      absl::StrCat("found a syntax error; expected TOML: ", why));
    }
  }

 private:
  using Values = std::map<std::string, Value, std::less<>>;

  std::string place(const toml::source_position& at) const {
    return absl::StrCat(path_, ":", at.line, ":", at.column);
  }

  absl::StatusOr<std::vector<Entry>> read_root(const toml::table& root) {
    std::vector<Entry> entries;
    for (const auto& [name, node] : root) {
      const std::string where = place(name.source().begin);
      if (name.str() != "key" || !node.is_table()) {
        return error_at(where, absl::StrCat("found ", quoted(name.str()),
                                            "; expected only tables with a name, [key.NAME]"));
      }
      for (const auto& [inner, value] : *node.as_table()) {
        absl::StatusOr<Entry> entry = read_entry(std::string(inner.str()), inner, value);
        if (!entry.ok()) return entry.status();
        for (const Entry& other : entries) {
          if (other.digest != entry->digest) continue;
          return error_at(place(inner.source().begin),
                          absl::StrCat("[key.", entry->who.key_id, "]: found the sha256 of [key.",
                                       other.who.key_id, "]; expected another key"));
        }
        if (entries.size() == kKeysMax)
          return error_at(where, absl::StrCat("found more than ", kKeysMax, " keys"));
        entries.push_back(*std::move(entry));
      }
    }
    return entries;
  }

  absl::StatusOr<Values> read_values(const std::string& table, const toml::table& node) const {
    Values values;
    for (const KeySpec& spec : entry_keys()) values[spec.key] = spec.default_value;
    for (const auto& [key, value] : node) {
      const std::string name(key.str());
      const std::string where = place(key.source().begin);
      const KeySpec* spec = find_key(entry_keys(), name);
      if (spec == nullptr) {
        std::vector<std::string> known;
        for (const KeySpec& one : entry_keys()) known.push_back(one.key);
        return error_at(
            where, absl::StrCat("found unknown key ", quoted(name), "; expected a key of [", table,
                                "]", did_you_mean(name, known)));
      }
      absl::StatusOr<Value> read = checked_value(*spec, value_of(value));
      if (!read.ok())
        return error_at(where, absl::StrCat(table, ".", name, ": ", read.status().message()));
      values[name] = *std::move(read);
    }
    return values;
  }

  // Whatever cannot be a value of a key becomes a boolean, which no key of the file takes.
  static Value value_of(const toml::node& node) {
    if (const auto* n = node.as_integer()) return n->get();
    if (const auto* text = node.as_string()) return text->get();
    if (const toml::array* array = node.as_array()) {
      std::vector<std::string> list;
      for (const toml::node& item : *array) {
        if (const auto* text = item.as_string()) list.push_back(text->get());
      }
      if (list.size() == array->size()) return list;
    }
    return node.is_boolean() && node.as_boolean()->get();
  }

  absl::StatusOr<Entry> read_entry(const std::string& name, const toml::key& key,
                                   const toml::node& node) const {
    const std::string table = absl::StrCat("key.", name);
    const std::string where = absl::StrCat(place(key.source().begin), ": [", clean(table), "]");
    if (!is_name(name) || !node.is_table())
      return error_at(where, "found no table with a plain name; expected [key.NAME]");
    absl::StatusOr<Values> values = read_values(table, *node.as_table());
    if (!values.ok()) return values.status();
    const auto text = [&](const char* of) { return std::get<std::string>((*values)[of]); };

    Entry entry;
    entry.who.key_id = name;
    entry.who.tenant = text("tenant");
    entry.who.class_name = text("class");
    entry.who.scope = text("scope") == "admin" ? Scope::kAdmin : Scope::kInference;
    entry.limits.requests_per_minute =
        static_cast<uint64_t>(std::get<int64_t>((*values)["requests_per_minute"]));
    entry.limits.tokens_per_minute =
        static_cast<uint64_t>(std::get<int64_t>((*values)["tokens_per_minute"]));
    const std::string hex = text("sha256");
    if (hex.size() != 2 * entry.digest.size() ||
        !std::all_of(hex.begin(), hex.end(),
                     [](unsigned char c) { return absl::ascii_isxdigit(c); })) {
      return error_at(where,
                      "found no sha256 of 64 hex digits; expected what "
                      "printf %s \"$KEY\" | sha256sum writes");
    }
    const std::string bytes = absl::HexStringToBytes(hex);
    std::copy(bytes.begin(), bytes.end(), entry.digest.begin());
    if (!is_name(entry.who.tenant)) {
      return error_at(where, absl::StrCat("found the tenant ", quoted(entry.who.tenant),
                                          "; expected 1 to 64 letters, digits, _, - and ."));
    }
    if (absl::Status status = check_class(where, entry.who.class_name); !status.ok()) return status;
    if (absl::Status status =
            read_tiers(where, std::get<std::vector<std::string>>((*values)["tiers"]), entry);
        !status.ok())
      return status;
    return entry;
  }

  static std::string clean(const std::string& text) { return absl::CEscape(text.substr(0, 80)); }

  absl::Status check_class(const std::string& where, const std::string& name) const {
    if (std::find(classes_.begin(), classes_.end(), name) != classes_.end())
      return absl::OkStatus();
    return error_at(where,
                    absl::StrCat("found the class ", quoted(name), "; expected one of ",
                                 absl::StrJoin(classes_, ", "), did_you_mean(name, classes_)));
  }

  absl::Status read_tiers(const std::string& where, const std::vector<std::string>& list,
                          Entry& entry) const {
    for (const std::string& item : list) {
      const std::pair<std::string, std::string> tier =
          absl::StrSplit(item, absl::MaxSplits(':', 1));
      if (item.find(':') == std::string::npos || !is_table_name(tier.first) ||
          tier.first == "auto" || tier.first == "default") {
        return error_at(where, absl::StrCat("found the tier ", quoted(item),
                                            "; expected service_tier:class, such as priority:vip"));
      }
      if (absl::Status status = check_class(where, tier.second); !status.ok()) return status;
      if (!entry.tiers.emplace(tier.first, tier.second).second)
        return error_at(where, absl::StrCat("found the tier ", quoted(tier.first), " twice"));
      entry.who.tier_classes.push_back(tier.second);
    }
    return absl::OkStatus();
  }

  const std::string& path_;
  const std::vector<std::string>& classes_;
};

class KeysFromFile final : public ApiKeys {
 public:
  explicit KeysFromFile(std::vector<Entry> entries) : entries_(std::move(entries)) {}

  absl::StatusOr<Identity> find(std::string_view key) const override {
    const Sha256 digest = sha256(key);
    // Every entry is looked at, however early one fits.
    size_t found = entries_.size();
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (CRYPTO_memcmp(digest.data(), entries_[i].digest.data(), digest.size()) == 0) found = i;
    }
    if (key.empty())
      return absl::UnauthenticatedError("found no API key; expected Authorization: Bearer KEY");
    if (found == entries_.size())
      return absl::UnauthenticatedError("found an unknown API key; expected one of this server's");
    return entries_[found].who;
  }

  absl::StatusOr<std::string> class_for_tier(const Identity& who,
                                             std::string_view tier) const override {
    if (tier.empty() || tier == "auto" || tier == "default") return who.class_name;
    std::string known = "auto, default";
    if (const Entry* entry = entry_of(who.key_id)) {
      const auto allowed = entry->tiers.find(tier);
      if (allowed != entry->tiers.end()) return allowed->second;
      for (const auto& [name, to] : entry->tiers) absl::StrAppend(&known, ", ", name);
    }
    return absl::PermissionDeniedError(absl::StrCat(
        "service_tier: found ", quoted(tier), "; expected one that this key may choose: ", known));
  }

  Limits limits(std::string_view key_id) const override {
    const Entry* entry = entry_of(key_id);
    return entry == nullptr ? Limits{} : entry->limits;
  }

 private:
  const Entry* entry_of(std::string_view key_id) const {
    const auto it = std::find_if(entries_.begin(), entries_.end(),
                                 [&](const Entry& e) { return e.who.key_id == key_id; });
    return it == entries_.end() ? nullptr : &*it;
  }

  const std::vector<Entry> entries_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const ApiKeys>> ApiKeys::load(
    const std::string& path, const std::vector<std::string>& classes) {
  const absl::StatusOr<std::string> text = read_keys_file(path);
  if (!text.ok()) return text.status();
  absl::StatusOr<std::vector<Entry>> entries = Reader(path, classes).read(*text);
  if (!entries.ok()) return entries.status();
  return std::make_shared<const KeysFromFile>(*std::move(entries));
}

absl::StatusOr<std::shared_ptr<const ApiKeys>> load_keys(const ServeConfig& config) {
  if (config.server.keys_path.empty()) return std::shared_ptr<const ApiKeys>();
  return ApiKeys::load(config.server.keys_path, class_names(config));
}

}  // namespace varve
