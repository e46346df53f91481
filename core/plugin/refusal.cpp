#include "core/plugin/refusal.h"

#include "absl/strings/str_cat.h"

namespace varve {
namespace {

std::string message(const Refusal& r) {
  return absl::StrCat(r.rule, " ", r.who, ": ", r.what, ": wants ", r.wants, ", has ", r.has, ". ",
                      r.do_this);
}

}  // namespace

absl::Status refused(const Refusal& refusal) {
  return absl::FailedPreconditionError(message(refusal));
}

absl::Status not_found(const Refusal& refusal) { return absl::NotFoundError(message(refusal)); }

}  // namespace varve
