#include "core/http/contexts.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/engine/prefix_keys.h"
#include "core/http/request_json.h"

namespace varve::http {
namespace {

absl::Status not_found(const std::string& id) {
  return with_param(absl::NotFoundError(absl::StrCat("context: found none of the name \"", id,
                                                     "\"; GET /v1/contexts lists yours")),
                    "context");
}

}  // namespace

absl::StatusOr<Contexts::Place> Contexts::reserve(const std::string& tenant,
                                                  uint32_t contexts_max) {
  const MutexLock lock(&mutex_);
  Tenant& entry = tenants_[tenant];
  if (entry.contexts.size() + entry.n_reserved >= contexts_max) {
    return with_param(absl::FailedPreconditionError(
                          absl::StrCat("found ", contexts_max,
                                       " contexts, the most a tenant may have "
                                       "(server.contexts_max); DELETE one of them first")),
                      "", "contexts_max");
  }
  ++entry.n_reserved;
  return Place(shared_from_this(), tenant);
}

void Contexts::give_up(const std::string& tenant) {
  const MutexLock lock(&mutex_);
  --tenants_[tenant].n_reserved;
}

void Contexts::add(Place place, std::shared_ptr<const Context> context) {
  {
    const MutexLock lock(&mutex_);
    Tenant& entry = tenants_[place.tenant_];
    entry.contexts[context->id] = std::move(context);
    --entry.n_reserved;
  }
  place.contexts_.reset();
}

Contexts::PinKey Contexts::key_of(const Context& context) {
  PrefixKeys chain("", context.tenant);
  const std::span<const mri_prefix_key> keys = chain.extend(context.prefix);
  // Of less than a block nothing is kept: each has its own nothing.
  std::string name = context.id;
  if (!keys.empty()) name.assign(std::begin(keys.back().bytes), std::end(keys.back().bytes));
  return {context.placement.lane.get(), context.tenant, std::move(name)};
}

void Contexts::pin(const Context& context) {
  PinKey key = key_of(context);
  const MutexLock lock(&mutex_);
  ++pins_[std::move(key)].n;
}

bool Contexts::unpin(const Context& context) {
  const PinKey key = key_of(context);
  const MutexLock lock(&mutex_);
  const auto pin = pins_.find(key);
  if (--pin->second.n > 0) return false;
  pins_.erase(pin);
  return true;
}

absl::Status Contexts::hold(const Context& context, std::shared_ptr<HeldMemory> memory,
                            uint64_t bytes, uint32_t percent) {
  const PinKey key = key_of(context);
  const auto is_held = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return pins_.at(key).held.bytes() > 0;
  };
  {
    const MutexLock lock(&mutex_);
    if (is_held()) return absl::OkStatus();
  }
  HeldPart part;
  const absl::Status status = part.hold(std::move(memory), *context.placement.lane, bytes, percent);
  const MutexLock lock(&mutex_);
  if (status.ok() && !is_held()) pins_.at(key).held = std::move(part);
  return status;
}

absl::StatusOr<std::shared_ptr<const Context>> Contexts::find(const std::string& tenant,
                                                              const std::string& id) const {
  const MutexLock lock(&mutex_);
  const auto entry = tenants_.find(tenant);
  if (entry == tenants_.end()) return not_found(id);
  const auto found = entry->second.contexts.find(id);
  if (found == entry->second.contexts.end()) return not_found(id);
  return found->second;
}

absl::StatusOr<std::shared_ptr<const Context>> Contexts::remove(const std::string& tenant,
                                                                const std::string& id) {
  const MutexLock lock(&mutex_);
  Tenant& entry = tenants_[tenant];
  const auto found = entry.contexts.find(id);
  if (found == entry.contexts.end()) return not_found(id);
  std::shared_ptr<const Context> context = std::move(found->second);
  entry.contexts.erase(found);
  return context;
}

std::vector<std::shared_ptr<const Context>> Contexts::list(const std::string& tenant) const {
  std::vector<std::shared_ptr<const Context>> all;
  {
    const MutexLock lock(&mutex_);
    if (const auto entry = tenants_.find(tenant); entry != tenants_.end()) {
      for (const auto& [id, context] : entry->second.contexts) all.push_back(context);
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a->created_s < b->created_s; });
  return all;
}

std::string new_context_id() {
  std::random_device random;
  std::string id = "ctx_";
  for (int i = 0; i < 4; ++i) absl::StrAppend(&id, absl::Hex(random(), absl::kZeroPad8));
  return id;
}

std::vector<ChatMessage> joined(const Context& context, std::vector<ChatMessage> messages) {
  std::vector<ChatMessage> all = context.messages;
  const std::string last = all.back().role;
  size_t n_joined = 0;
  const auto continues = [&](const std::string& role) {
    return role == last || (last == "user" && role == "system");
  };
  while (n_joined < messages.size() && continues(messages[n_joined].role)) {
    absl::StrAppend(&all.back().content, "\n\n", messages[n_joined].content);
    if (messages[n_joined++].role == "user") break;
  }
  std::move(messages.begin() + static_cast<std::ptrdiff_t>(n_joined), messages.end(),
            std::back_inserter(all));
  return all;
}

absl::Status prepare_messages(const Text& text, std::vector<ChatMessage> messages,
                              Context* context) {
  for (ChatMessage& message : messages) {
    absl::StatusOr<std::vector<int32_t>> tokens = text.tokenize(message.content, false, false);
    if (!tokens.ok()) return tokens.status();
    message.known = std::make_shared<const std::vector<int32_t>>(*std::move(tokens));
    message.content.clear();
  }
  context->messages = std::move(messages);
  // Two chats that have nothing in common but the context.
  absl::StatusOr<std::vector<int32_t>> one = chat_tokens(text, joined(*context, {{"user", "A"}}));
  if (!one.ok()) return one.status();
  const absl::StatusOr<std::vector<int32_t>> other =
      chat_tokens(text, joined(*context, {{"user", "7"}}));
  if (!other.ok()) return other.status();
  const auto parting = std::mismatch(one->begin(), one->end(), other->begin(), other->end());
  one->erase(parting.first, one->end());
  context->prefix = *std::move(one);
  return absl::OkStatus();
}

}  // namespace varve::http
