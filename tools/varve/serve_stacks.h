// The stacks that a server's profile names, loaded, each behind its lane.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/base/log.h"
#include "core/base/thread_pool.h"
#include "core/config/serve_config.h"
#include "core/engine/lane.h"
#include "core/engine/turnstile.h"
#include "core/route/dispatcher.h"

namespace varve::cli {

// By stack name.
struct Lanes {
  std::map<std::string, std::unique_ptr<Lane>> by_stack;
  std::map<std::string, std::string> digests;  // of model and stack
};

// Loads every stack that a class or an experiment uses, main always. The pool computes for all of
// them; it and the turnstile outlive the lanes. Errors name the stack.
absl::StatusOr<Lanes> start_lanes(const ServeConfig& config, ThreadPool& threads,
                                  Turnstile& turnstile, const LogSink& log);

// Loads stacks for reloads. The loader must end before what it refers to.
StackLoader stack_loader(ThreadPool& threads, Turnstile& turnstile, LogSink log);

}  // namespace varve::cli
