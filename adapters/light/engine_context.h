// engine_context.h: one context and its lease. For the engine's own sources.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "adapters/light/engine.h"
#include "mri/sdk/error.hpp"

namespace varve::light {

inline mri_error empty_error() {
  mri_error err{};
  err.struct_size = sizeof(err);
  return err;
}

struct Engine::Context {
  Context(const KvStore& store, uint64_t budget_bytes, std::span<const mri_token_range> pinned,
          uint64_t max)
      : cache(store, budget_bytes, pinned), max_tokens(max) {}
  Context(const KvStore& store, uint64_t budget_bytes, const KvPrefix& prefix, size_t n_blocks,
          uint64_t max)
      : cache(store, budget_bytes, prefix, n_blocks), max_tokens(max) {}

  KvCache cache;
  const uint64_t max_tokens;
  // Whose turn it is, and the next number to draw; first come, first served, so that an eviction
  // is not starved by steps. Guarded by Engine::mutex_.
  uint64_t turn = 0, next_turn = 0;
  // Guarded by the lease.
  bool summary_is_legal = false;
  std::unique_ptr<mri_timings> timings;  // null: not asked for
};

// Sole use of one context from the constructor to the destructor. Empty when there is no such
// context.
class Engine::Lease {
 public:
  Lease(Engine& engine, uint64_t ctx) : engine_(engine), ctx_(ctx) {
    engine_.mutex_.lock();
    Context* context = find();
    const uint64_t mine = context != nullptr ? context->next_turn++ : 0;
    while (context != nullptr && context->turn != mine) {
      engine_.returned_.wait(engine_.mutex_);
      context = find();
    }
    context_ = context;
    engine_.mutex_.unlock();
  }
  // A new context, which nobody else can have before this lease ends.
  Lease(Engine& engine, std::unique_ptr<Context> context)
      : engine_(engine), context_(context.get()) {
    MutexLock lock(engine.mutex_);
    context->next_turn = 1;
    ctx_ = engine.next_ctx_++;
    engine.contexts_.emplace(ctx_, std::move(context));
  }
  Lease(Lease&& other) noexcept
      : engine_(other.engine_), ctx_(other.ctx_), context_(other.context_) {
    other.context_ = nullptr;
  }
  Lease& operator=(Lease&&) = delete;
  ~Lease() { end(false); }

  Context* get() const { return context_; }
  uint64_t ctx() const { return ctx_; }

  Context& operator*() const {
    if (context_ == nullptr)
      throw mri::Error(MRI_E_NOT_FOUND, "no context " + std::to_string(ctx_));
    return *context_;
  }

  // Gives the context back, or away for good.
  void end(bool remove) {
    if (context_ == nullptr) return;
    std::unique_ptr<Context> gone;
    {
      MutexLock lock(engine_.mutex_);
      ++context_->turn;
      if (remove) {
        const auto at = engine_.contexts_.find(ctx_);
        gone = std::move(at->second);
        engine_.contexts_.erase(at);
      }
    }
    context_ = nullptr;
    engine_.returned_.notify_all();
  }

 private:
  Context* find() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(engine_.mutex_) {
    const auto at = engine_.contexts_.find(ctx_);
    return at == engine_.contexts_.end() ? nullptr : at->second.get();
  }

  Engine& engine_;
  uint64_t ctx_ = 0;
  Context* context_ = nullptr;
};

}  // namespace varve::light
