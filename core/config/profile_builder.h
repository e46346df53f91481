// Merges the layers of a profile and collects what is wrong with them. Internal to core/config.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "core/config/profile.h"

namespace varve {

// Problems by position: layer, then line and column.
class ErrorList {
 public:
  void add(Layer layer, uint32_t line, uint32_t column, std::string text);
  // OK, or the first problem and how many more there are.
  absl::Status status() const;

 private:
  std::vector<std::tuple<Layer, uint32_t, uint32_t, std::string>> errors_;
};

// Call the add functions in the order of the layers.
class ProfileBuilder {
 public:
  explicit ProfileBuilder(std::string path) : path_(std::move(path)) {}

  void add_defaults();
  void add_file(std::string_view text);
  void add_environment(const std::string& name, const std::string& value);
  void add_override(const std::string& assignment);

  absl::Status status() const { return errors_.status(); }
  std::map<std::string, SettingTable, std::less<>> take_tables() { return std::move(tables_); }

 private:
  struct Place {
    Layer layer;
    uint32_t line, column;
    std::string where;
  };
  // A table to write to: "runtime", or "class.vip" of the family "class".
  struct Target {
    const TableSpec& spec;
    std::string name;
  };
  class TomlReader;

  void add_error(const Place& place, std::string_view text);
  // A value whose type the file states.
  void add_value(const Target& table, const std::string& key, Value value, const Place& place);
  // A value from a command line or the environment.
  void add_text(const Target& table, const std::string& key, const std::string& value,
                const Place& place);
  void store(const std::string& table, const std::string& key, Setting setting);
  // Makes the table [family.name] with its defaults unless it is there. False: a bad name.
  bool open_named(const TableSpec& family, const std::string& name, const Place& place);
  void add_named_environment(const TableSpec& family, const std::string& rest,
                             const std::string& value, const Place& place);
  void add_named_override(const TableSpec& family, const std::string& rest, const Place& place);
  void add_unknown_key(const Target& table, const std::string& key, const Place& place);
  void add_unknown_table(const std::string& table, const Place& place);

  std::string path_;
  uint32_t n_overrides_ = 0;
  ErrorList errors_;
  std::map<std::string, SettingTable, std::less<>> tables_;
};

}  // namespace varve
