#include "core/http/server.h"

#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "core/http/connection.h"

namespace varve::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

// Connections over connections_max that may be told so at a time; others are just closed.
constexpr size_t kTurnedAwayMax = 64;
// After accept() has failed, for lack of descriptors for example.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);

// Shared, so that what is pending on it can end after the server has.
class Listener final : public std::enable_shared_from_this<Listener> {
 public:
  explicit Listener(std::shared_ptr<ServerCore> core)
      : core_(std::move(core)),
        strand_(asio::make_strand(core_->io)),
        acceptor_(strand_),
        pause_(strand_) {}

  absl::Status open(const tcp::endpoint& endpoint) {
    ErrorCode error;
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (!error) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(
        "listen on ", core_->options.config.host, ":", endpoint.port(), ": ", error.message(),
        "; expected a free port and an address of this machine: stop what uses it, or set another "
        "[server] host or port"));
  }

  uint16_t port() const { return acceptor_.local_endpoint().port(); }

  void accept() {
    acceptor_.async_accept(asio::make_strand(core_->io),
                           [self = shared_from_this()](const ErrorCode& error, tcp::socket socket) {
                             self->on_accepted(error, std::move(socket));
                           });
  }

  void close() {
    asio::post(strand_, [self = shared_from_this()] {
      ErrorCode ignored;
      self->acceptor_.close(ignored);
      self->pause_.cancel();
    });
  }

 private:
  void on_accepted(const ErrorCode& error, tcp::socket socket) {
    if (!acceptor_.is_open()) return;
    if (error) {
      if (!has_failed_) core_->log(LogLevel::kWarning, absl::StrCat("accept: ", error.message()));
      has_failed_ = true;  // said once until it works again
      pause_.expires_after(kAcceptPause);
      pause_.async_wait([self = shared_from_this()](const ErrorCode& e) {
        if (!e && self->acceptor_.is_open()) self->accept();
      });
      return;
    }
    has_failed_ = false;
    admit(std::move(socket));
    accept();
  }

  void admit(tcp::socket socket) {
    const auto executor = socket.get_executor();
    const auto connection = std::make_shared<Connection>(core_, std::move(socket));
    size_t n;
    {
      const MutexLock lock(&core_->mutex);
      if (core_->is_closing) return;
      n = core_->connections.size();
      if (n >= core_->options.config.connections_max + kTurnedAwayMax) return;
      core_->connections.emplace(connection.get(), connection);
    }
    const bool is_admitted = n < core_->options.config.connections_max;
    asio::post(executor, [connection, is_admitted] {
      is_admitted ? connection->run() : connection->turn_away();
    });
  }

  const std::shared_ptr<ServerCore> core_;
  asio::strand<asio::io_context::executor_type> strand_;
  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  bool has_failed_ = false;
};

// Each connection is a descriptor, and the soft limit is often 1024.
void allow_descriptors(uint32_t connections_max) {
  constexpr rlim_t kOthers = 512;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min<rlim_t>(limit.rlim_max, connections_max + kOthers);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  setrlimit(RLIMIT_NOFILE, &limit);
}

class BeastServer final : public Server {
 public:
  BeastServer(std::shared_ptr<ServerCore> core, std::shared_ptr<Listener> listener)
      : core_(std::move(core)),
        listener_(std::move(listener)),
        port_(listener_->port()),
        work_(asio::make_work_guard(core_->io)) {
    listener_->accept();
    const uint32_t n = std::max(core_->options.config.http_threads, 1u);
    for (uint32_t i = 0; i < n; ++i) threads_.emplace_back([this] { serve(); });
  }

  // Everything is closed, and all pending operations end, before the threads are joined: so nothing
  // is left behind that would keep the core alive. Handlers that still hold Responders find their
  // connection gone.
  ~BeastServer() override {
    listener_->close();
    std::vector<std::shared_ptr<Connection>> open;
    {
      const MutexLock lock(&core_->mutex);
      core_->is_closing = true;
      for (const auto& [key, connection] : core_->connections) open.push_back(connection.lock());
    }
    for (const auto& connection : open) {
      if (connection != nullptr) connection->close_soon();
    }
    open.clear();
    for (auto* workers : {&core_->workers, &core_->quiet_workers}) {
      workers->stop();
      workers->join();
    }
    work_.reset();
    for (std::thread& thread : threads_) thread.join();
    listener_.reset();
    // A handler's thread may be about to find its connection gone, and hold it for that moment. The
    // routes, which the core owns, must not outlive the server.
    while (core_.use_count() > 1) std::this_thread::yield();
  }

  uint16_t port() const override { return port_; }
  const std::vector<Route>& routes() const override { return core_->router.routes(); }

  void stop_accepting() override {
    core_->is_draining = true;
    listener_->close();
  }

  size_t connections() const override {
    const MutexLock lock(&core_->mutex);
    return core_->connections.size();
  }

  size_t open_requests() const override { return core_->n_open_requests; }

 private:
  void serve() {
    while (true) {
      try {
        core_->io.run();
        return;
      } catch (const std::exception& e) {  // from a callback of ServerOptions
        core_->log(LogLevel::kError, absl::StrCat("connection: ", e.what()));
      }
    }
  }

  const std::shared_ptr<ServerCore> core_;
  std::shared_ptr<Listener> listener_;
  const uint16_t port_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::vector<std::thread> threads_;
};

absl::StatusOr<tcp::endpoint> resolved(ServerCore& core) {
  const ServerConfig& config = core.options.config;
  tcp::resolver resolver(core.io);
  ErrorCode error;
  const auto found = resolver.resolve(config.host, absl::StrCat(config.port), error);
  if (error || found.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("[server] host: found \"", config.host, "\" (", error.message(),
                     "); expected an address or name of this machine, 127.0.0.1 for example"));
  }
  const tcp::endpoint endpoint = *found.begin();
  if (!endpoint.address().is_loopback() && config.keys_path.empty() &&
      !config.allow_public_without_keys) {
    return absl::FailedPreconditionError(absl::StrCat(
        "[server] host: ", config.host,
        " can be reached from other machines, and there are no "
        "keys; expected keys (set [server] keys_path), a loopback address (127.0.0.1), or "
        "allow_public_without_keys = true if everybody may use this server"));
  }
  return endpoint;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::start(ServerOptions options,
                                                      std::vector<Route> routes) {
  absl::StatusOr<Router> router = Router::make(std::move(routes));
  if (!router.ok()) return router.status();
  const auto core = std::make_shared<ServerCore>(std::move(options), *std::move(router));
  const absl::StatusOr<tcp::endpoint> endpoint = resolved(*core);
  if (!endpoint.ok()) return endpoint.status();
  auto listener = std::make_shared<Listener>(core);
  const absl::Status status = listener->open(*endpoint);
  if (!status.ok()) return status;
  allow_descriptors(core->options.config.connections_max);
  return std::make_unique<BeastServer>(core, std::move(listener));
}

}  // namespace varve::http
