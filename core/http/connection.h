// One client's connection: requests in, answers out, one after the other. Private to core/http.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/http/exchange.h"
#include "core/http/server_core.h"

namespace varve::http {

// A read is pending while a handler works: so a client that goes away is noticed, and requests that
// come early (pipelining) wait in the buffer. Once that is full the client is looked for instead.
// All methods run on the socket's strand, except those marked [any].
class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  // The socket's executor is a strand of core->io.
  Connection(std::shared_ptr<ServerCore> core, boost::asio::ip::tcp::socket socket);
  ~Connection();

  void run();
  // Answers 503 and closes: there are too many connections.
  void turn_away();
  void close_soon();  // [any]

 private:
  using ErrorCode = boost::system::error_code;
  using Clock = std::chrono::steady_clock;
  enum class Phase { kIdle, kHeader, kBody, kAnswering, kLingering, kClosed };

  void read();
  void on_read(const ErrorCode& error, size_t n_bytes);
  void on_read_end(const ErrorCode& error);
  void look_for_client();
  void process();
  bool parse();  // false: wait for more bytes
  void on_head();
  void fill_request();
  void begin_body();
  void dispatch();

  void begin_answer();
  void refuse(Response response);
  void wake();  // [any]
  void pump();
  void send(std::string bytes);
  void write_some();
  void on_written(const ErrorCode& error, size_t n_bytes);
  void end_answer(bool is_broken);
  void record(int status);
  void lose_client();
  void linger();
  void close();

  // Calls on_due() in `wait` unless armed again or cancelled before; never for a wait of none.
  void arm(boost::asio::steady_timer& timer, absl::Duration wait, void (Connection::*on_due)());
  void on_read_due();

  const std::shared_ptr<ServerCore> core_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer read_timer_, write_timer_;
  Phase phase_ = Phase::kIdle;
  // What a pending read fills; buffer_ is consumed meanwhile.
  std::vector<char> read_space_;
  boost::beast::flat_buffer buffer_;
  bool is_reading_ = false;
  bool at_end_ = false;  // the client sends nothing more

  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  Request request_;
  const Route* route_ = nullptr;
  bool is_http_1_0_ = false, keep_alive_ = true;
  uint64_t body_bytes_ = 0;
  Clock::time_point began_;

  std::shared_ptr<Exchange> exchange_;
  std::string out_;
  size_t n_written_ = 0;
  bool is_writing_ = false;
  uint64_t answer_bytes_ = 0, n_discarded_ = 0;
  // Itself while it answers: there may be no read pending, and to be woken does not keep it alive.
  std::shared_ptr<Connection> answering_;
};

}  // namespace varve::http
