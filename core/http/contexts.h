// Registered contexts: texts that were read once and that later requests begin with.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/mutex.h"
#include "core/engine/text.h"
#include "core/http/held_memory.h"
#include "core/route/dispatcher.h"

namespace varve::http {

struct Context {
  std::string id, tenant, name;
  // true: `messages` go before those of a chat. false: `prefix` goes before a completion's prompt.
  bool is_template = true;
  std::vector<ChatMessage> messages;  // contents as `known` tokens
  // What every later prompt begins with; read and kept by the lane.
  std::vector<int32_t> prefix;
  Placement placement;         // of the lane that has it; later requests for that stack stay there
  const char* param = "text";  // the field that it came from
  uint64_t cached_tokens = 0;
  int64_t created_s = 0;  // since 1970
};

// Thread-safe. A tenant sees its own alone. Lives in a shared_ptr.
class Contexts : public std::enable_shared_from_this<Contexts> {
 public:
  // A place among a tenant's contexts, until it is given to add() or ends.
  class Place {
   public:
    Place(std::shared_ptr<Contexts> contexts, std::string tenant)
        : contexts_(std::move(contexts)), tenant_(std::move(tenant)) {}
    Place(Place&& other) noexcept = default;
    Place& operator=(Place&&) = delete;
    ~Place() {
      if (contexts_ != nullptr) contexts_->give_up(tenant_);
    }

   private:
    friend class Contexts;
    std::shared_ptr<Contexts> contexts_;
    std::string tenant_;
  };
  // kFailedPrecondition when the tenant has contexts_max contexts and places.
  absl::StatusOr<Place> reserve(const std::string& tenant, uint32_t contexts_max);
  void add(Place place, std::shared_ptr<const Context> context);

  // Contexts of a tenant whose prefixes a lane cannot tell apart (all full blocks are equal) share
  // what is kept. pin() comes before the lane keeps it; each ends in an unpin(), which is true when
  // nobody needs it any more: the lane has to forget it then.
  void pin(const Context& context);
  bool unpin(const Context& context);
  // Counts what is kept, once for all who share it. Errors as HeldMemory::hold().
  absl::Status hold(const Context& context, std::shared_ptr<HeldMemory> memory, uint64_t bytes,
                    uint32_t percent);

  // kNotFound, with "context" as param, also for one of another tenant.
  absl::StatusOr<std::shared_ptr<const Context>> find(const std::string& tenant,
                                                      const std::string& id) const;
  absl::StatusOr<std::shared_ptr<const Context>> remove(const std::string& tenant,
                                                        const std::string& id);
  std::vector<std::shared_ptr<const Context>> list(const std::string& tenant) const;

 private:
  // Lane, tenant, and the name of the prefix.
  using PinKey = std::tuple<const Lane*, std::string, std::string>;
  struct Pin {
    uint32_t n = 0;
    HeldPart held;
  };
  struct Tenant {
    uint32_t n_reserved = 0;
    std::map<std::string, std::shared_ptr<const Context>> contexts;
  };

  static PinKey key_of(const Context& context);
  void give_up(const std::string& tenant);

  mutable Mutex mutex_;
  std::map<std::string, Tenant> tenants_ ABSL_GUARDED_BY(mutex_);
  std::map<PinKey, Pin> pins_ ABSL_GUARDED_BY(mutex_);
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
