// The libraries of this process, which are what a plugin that is loaded into it gets.
#pragma once

#include <map>
#include <string>

namespace varve::cli {

class SystemLibraries {
 public:
  // Whether `library` (a file name) is here without `version`; of one that is not here nothing is
  // known. Reads the file at its first mention.
  bool lacks(const std::string& library, const std::string& version);

 private:
  std::map<std::string, std::string> bytes_;
};

}  // namespace varve::cli
