// Requests of the MRI routes: the members of the C structs by their names. Names that are not known
// are ignored, as a callee ignores what lies beyond its own size of a struct.
#include <limits>

#include "absl/strings/str_cat.h"
#include "core/http/mri_calls.h"
#include "core/http/request_json.h"

namespace varve::http {
namespace {

constexpr uint64_t kU64Max = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kU32Max = std::numeric_limits<uint32_t>::max();

// Members of one object. The first mistake is kept; what is absent or null is 0.
class Fields {
 public:
  Fields(const MriFrame& frame, const nlohmann::json& object, std::string place)
      : frame_(frame), object_(object), place_(std::move(place)) {
    if (!object.is_object()) status_ = invalid(place_, "expected an object");
  }

  uint64_t number(const char* name, uint64_t max, uint64_t min = 0) {
    const nlohmann::json* value = find(name);
    if (value == nullptr && min == 0) return 0;
    if (value != nullptr && value->is_number_unsigned()) {
      const uint64_t n = value->get<uint64_t>();
      if (n >= min && n <= max) return n;
    }
    fail(name, absl::StrCat("expected an integer from ", min, " to ", max));
    return 0;
  }

  bool flag(const char* name) {
    const nlohmann::json* value = find(name);
    if (value == nullptr) return false;
    if (value->is_boolean()) return value->get<bool>();
    if (value->is_number_unsigned() && *value <= 1) return *value == 1;
    fail(name, "expected true or false");
    return false;
  }

  std::vector<int32_t> tokens(const char* name) {
    const nlohmann::json* value = find(name);
    if (value == nullptr) return {};
    auto tokens = read_tokens(frame_, *value, absl::StrCat(place_, name));
    if (tokens.ok()) return *std::move(tokens);
    keep(tokens.status());
    return {};
  }

  // The objects of a list, each by `read(Fields&)`.
  template <class Read>
  void each(const char* name, uint64_t n_max, Read&& read) {
    const nlohmann::json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_array() || value->size() > n_max) {
      return fail(name, absl::StrCat("expected a list of at most ", n_max, " objects"));
    }
    for (size_t i = 0; i < value->size() && status_.ok(); ++i) {
      Fields item(frame_, (*value)[i], absl::StrCat(place_, name, "[", i, "]."));
      if (item.status_.ok()) read(item);
      keep(item.status_);
    }
  }

  std::vector<mri_token_range> ranges(const char* name, uint64_t n_max) {
    std::vector<mri_token_range> ranges;
    each(name, n_max, [&](Fields& item) {
      const uint64_t first = item.number("first", kU64Max);
      ranges.push_back({first, item.number("count", kU64Max - first)});
    });
    return ranges;
  }

  void fail(const char* name, const std::string& message) {
    keep(invalid(absl::StrCat(place_, name), message));
  }
  const absl::Status& status() const { return status_; }

 private:
  const nlohmann::json* find(const char* name) const {
    if (!object_.is_object()) return nullptr;
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  void keep(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }

  const MriFrame& frame_;
  const nlohmann::json& object_;
  const std::string place_;
  absl::Status status_;
};

template <class T>
absl::StatusOr<T> parsed(const Fields& fields, T value) {
  if (!fields.status().ok()) return fields.status();
  return value;
}

}  // namespace

absl::StatusOr<MriInit> parse_init(const MriFrame& frame, const MriLimits& limits) {
  Fields fields(frame, frame.json, "");
  MriInit init;
  init.context_key = fields.number("context_key", kU64Max);
  init.seed = fields.number("seed", kU64Max);
  init.tokens = fields.tokens("tokens");
  init.max_tokens = fields.number("max_tokens", kU64Max);
  init.budget_bytes = fields.number("budget_bytes", kU64Max);
  init.chunk_tokens = static_cast<uint32_t>(fields.number("chunk_tokens", kU32Max));
  init.pinned = fields.ranges("pinned", limits.ranges);
  init.logits = fields.flag("logits");
  if (init.logits && init.tokens.empty()) {
    fields.fail("logits", "expected false with an empty prompt: there is no last token");
  }
  return parsed(fields, std::move(init));
}

absl::StatusOr<MriStep> parse_step(const MriFrame& frame, const MriLimits& limits) {
  constexpr uint32_t kFlags = MRI_STEP_PROMPT | MRI_STEP_MORE | MRI_STEP_NO_SUMMARIES;
  Fields fields(frame, frame.json, "");
  MriStep step;
  step.step_id = fields.number("step_id", kU64Max);
  uint64_t n_tokens = 0;
  fields.each("seqs", limits.step_sequences, [&](Fields& item) {
    MriStepSeq seq;
    seq.ctx = item.number("ctx", kU64Max, 1);
    seq.tokens = item.tokens("tokens");
    seq.all_logits = item.flag("all_logits");
    seq.logits = item.flag("logits") || seq.all_logits;
    seq.flags = static_cast<uint32_t>(item.number("flags", kFlags));
    if (seq.tokens.empty()) item.fail("tokens", "expected at least one token");
    for (const MriStepSeq& other : step.seqs) {
      if (other.ctx == seq.ctx) item.fail("ctx", "expected each context at most once in a step");
    }
    n_tokens += seq.tokens.size();
    step.seqs.push_back(std::move(seq));
  });
  if (step.seqs.empty()) fields.fail("seqs", "expected at least one sequence");
  if (n_tokens > limits.step_tokens) {
    fields.fail("seqs", absl::StrCat("found ", n_tokens, " tokens in one step; expected at most ",
                                     limits.step_tokens, ": send a prompt in several steps (flags ",
                                     MRI_STEP_PROMPT | MRI_STEP_MORE, ")"));
  }
  return parsed(fields, std::move(step));
}

absl::StatusOr<MriSummary> parse_summary(const MriFrame& frame) {
  Fields fields(frame, frame.json, "");
  MriSummary summary;
  summary.ctx = fields.number("ctx", kU64Max, 1);
  summary.first_token = fields.number("first_token", kU64Max);
  summary.n_tokens = fields.number("n_tokens", kU64Max);
  summary.what = static_cast<uint32_t>(fields.number("what", MRI_SUMMARY_BLOCKS));
  return parsed(fields, summary);
}

absl::StatusOr<MriEvict> parse_evict(const MriFrame& frame, const MriLimits& limits) {
  constexpr uint64_t kReasonMax = 2;
  Fields fields(frame, frame.json, "");
  MriEvict evict;
  evict.ctx = fields.number("ctx", kU64Max, 1);
  evict.request_id = fields.number("request_id", kU64Max);
  evict.ranges = fields.ranges("ranges", limits.ranges);
  evict.granularity = static_cast<uint32_t>(fields.number("granularity", MRI_EVICT_SEGMENT));
  evict.reason = static_cast<uint32_t>(fields.number("reason", kReasonMax));
  if (evict.ranges.empty()) fields.fail("ranges", "expected at least one range");
  return parsed(fields, std::move(evict));
}

}  // namespace varve::http
