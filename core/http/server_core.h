// What the server's connections share. Private to core/http/{server,connection}.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <memory>
#include <unordered_map>

#include "core/base/mutex.h"
#include "core/http/admission.h"
#include "core/http/server.h"

namespace varve::http {

class Connection;

// Handlers that tokenise beside each other; lanes do the work that takes long.
inline constexpr size_t kHandlerThreads = 2;

// Lives until the server and its last connection are gone.
struct ServerCore {
  ServerCore(ServerOptions o, Router r) : options(std::move(o)), router(std::move(r)) {}

  void log(LogLevel level, std::string_view text) const {
    if (options.log) options.log(level, "http", text);
  }

  const ServerOptions options;
  const Router router;
  const Admission admission{options, router};
  std::atomic<bool> is_draining{false};
  std::atomic<size_t> n_open_requests{0};
  Mutex mutex;
  std::unordered_map<Connection*, std::weak_ptr<Connection>> connections ABSL_GUARDED_BY(mutex);
  bool is_closing ABSL_GUARDED_BY(mutex) = false;
  boost::asio::io_context io;
  boost::asio::thread_pool workers{kHandlerThreads};
  boost::asio::thread_pool quiet_workers{1};  // health and metrics: never behind the others
};

}  // namespace varve::http
