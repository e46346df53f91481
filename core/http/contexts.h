// Registered contexts: texts that were read once and that later requests begin with.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/mutex.h"
#include "core/engine/text.h"
#include "core/route/dispatcher.h"

namespace varve::http {

struct Context {
  std::string id, tenant, name;
  // true: `messages` go before those of a chat. false: `prefix` goes before a completion's prompt.
  bool is_template = true;
  std::vector<ChatMessage> messages;  // contents as `known` tokens
  // What every later prompt begins with; read and kept by the lane.
  std::vector<int32_t> prefix;
  Placement placement;  // of the lane that has it; later requests for that stack stay there
  uint64_t cached_tokens = 0;
  int64_t created_s = 0;  // since 1970
};

// Thread-safe. A tenant sees its own alone.
class Contexts {
 public:
  // A place among the tenant's contexts_max; kFailedPrecondition when there is none. Each place
  // ends in add() or give_up().
  absl::Status reserve(const std::string& tenant, uint32_t contexts_max);
  void give_up(const std::string& tenant);
  void add(std::shared_ptr<const Context> context);

  // kNotFound, with "context" as param, also for one of another tenant.
  absl::StatusOr<std::shared_ptr<const Context>> find(const std::string& tenant,
                                                      const std::string& id) const;
  absl::StatusOr<std::shared_ptr<const Context>> remove(const std::string& tenant,
                                                        const std::string& id);
  std::vector<std::shared_ptr<const Context>> list(const std::string& tenant) const;

 private:
  struct Tenant {
    uint32_t n_reserved = 0;
    std::map<std::string, std::shared_ptr<const Context>> contexts;
  };

  mutable Mutex mutex_;
  std::map<std::string, Tenant> tenants_ ABSL_GUARDED_BY(mutex_);
};

// "ctx_" and 128 random bits.
std::string new_context_id();

// The messages of a chat that begins with the context: where it ends in a user message, the system
// and user messages that follow go on in that message, parted by an empty line, so that a document
// and its question stand together as models are used to.
std::vector<ChatMessage> joined(const Context& context, std::vector<ChatMessage> messages);

// Makes `messages` into known tokens and finds `prefix`: what the model's template leaves the same
// whatever follows.
absl::Status prepare_messages(const Text& text, std::vector<ChatMessage> messages,
                              Context* context);

}  // namespace varve::http
