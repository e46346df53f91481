// Runs one test in a process of its own, which may crash, hang, exit or leave things behind.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "mri/conformance/suite.h"

namespace varve::conform {

using mri::conformance::Report;

struct Finding {
  Report::What what;
  std::string text;
};

// What became of a child.
struct Ended {
  enum class How { kDone, kCrash, kTimeout };
  How how = How::kDone;
  std::string why;  // "signal 11 (Segmentation fault)"
  std::vector<Finding> findings;
  std::vector<std::string> answers;  // what the child said besides
  std::string output;                // the end of what it printed
  double seconds = 0;
};

// What a child may say to its parent.
struct Parent {
  Report::Sink finding;
  std::function<void(const std::string&)> answer;
};

// Calls work in a child with its own process group and limits on memory, files and CPU time. At the
// time-out everything of the group is killed; so is what is left of it at the end, which is a
// finding. The time that this process is stopped does not count. The caller must have no threads.
Ended run_in_child(double timeout_s, const std::function<void(const Parent&)>& work);

}  // namespace varve::conform
