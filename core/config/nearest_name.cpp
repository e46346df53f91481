#include "core/config/nearest_name.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "core/config/value.h"

namespace varve {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::string nearest_name(std::string_view misspelt, const std::vector<std::string>& names) {
  constexpr size_t kNameBytesMax = 256;  // longer ones come from hostile input and are like no name
  if (misspelt.size() > kNameBytesMax) return "";
  size_t best = std::max<size_t>(2, misspelt.size() / 3) + 1;
  std::string nearest;
  for (const std::string& name : names) {
    const size_t distance = edit_distance(misspelt, name);
    if (distance < best) {
      best = distance;
      nearest = name;
    }
  }
  return nearest;
}

std::string suggestion(std::string_view misspelt, const std::vector<std::string>& names) {
  const std::string nearest = nearest_name(misspelt, names);
  return nearest.empty() ? "" : absl::StrCat("; did you mean ", quoted(nearest), "?");
}

}  // namespace varve
