// The tables of a profile and the keys that the host itself reads. Other keys of a plugin's table
// belong to the plugin.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/config/value.h"

namespace varve {

struct TableSpec {
  std::string name;
  std::string help;
  std::vector<KeySpec> keys;
  bool has_plugin = false;  // the table of a plugin kind: has the key `plugin`, takes further keys
};

// In the order in which varve.toml lists them.
const std::vector<TableSpec>& profile_tables();

// Tables of which a profile may have several: [class.vip], [class.standard]. Their names match
// ^[a-z][a-z0-9_-]{0,31}$. In a Profile each is a table called "class.vip".
const std::vector<TableSpec>& named_tables();
bool is_table_name(std::string_view name);

// nullptr when there is none.
const TableSpec* find_table(std::string_view name);
const TableSpec* find_named_table(std::string_view name);
const KeySpec* find_key(const std::vector<KeySpec>& keys, std::string_view key);

// "VARVE_ATTENTION_TOP_K_BLOCKS" for ("attention", "top_k_blocks").
std::string environment_name(std::string_view table, std::string_view key);

}  // namespace varve
