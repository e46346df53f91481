// "Did you mean …": the known name closest to a misspelt one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace varve {

// Levenshtein distance over bytes: fewest insertions, deletions and replacements.
size_t edit_distance(std::string_view a, std::string_view b);

// The name with the smallest distance (the first of equals), or "" when none is within max(2, a
// third of the length).
std::string nearest_name(std::string_view misspelt, const std::vector<std::string>& names);

// "; did you mean "x"?", to go after what was expected, or "" when no name is near.
std::string suggestion(std::string_view misspelt, const std::vector<std::string>& names);

}  // namespace varve
