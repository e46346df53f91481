#include "core/http/connection.h"

#include <poll.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/text.h"

namespace varve::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;

constexpr size_t kIdleReadBytes = 1024, kReadBytes = 32 << 10;
// Requests that may wait behind the one being answered.
constexpr size_t kPipelineBytesMax = 64 << 10;
// With so many of them no read is pending, and the client is looked for so often instead.
constexpr absl::Duration kLookInterval = absl::Milliseconds(50);
// A body that comes more slowly than this, after header_timeout, is given up.
constexpr uint64_t kBodyBytesPerSecondMin = 16 << 10;
// How long a refused client may go on sending before the answer would be lost to a reset.
constexpr absl::Duration kLinger = absl::Seconds(2);
constexpr uint64_t kLingerBytesMax = 16 << 20;
constexpr size_t kLoggedPathBytesMax = 256;

Response refusal_of(const boost::system::error_code& found, const ServerOptions& options) {
  using beast::http::error;
  if (found == error::header_limit) {
    return error_response(431, absl::StrCat("the request's head is too large; expected at most ",
                                            options.header_bytes_max, " bytes"));
  }
  if (found == error::body_limit) {
    return error_response(
        413, absl::StrCat("the body is too large; expected at most ", options.config.body_mb_max,
                          " MiB ([server] body_mb_max)"));
  }
  return error_response(400, absl::StrCat("malformed HTTP: ", found.message()));
}

uint64_t body_bytes_max(const ServerOptions& options) {
  return std::min<uint64_t>(options.config.body_mb_max, uint64_t{1} << 40) << 20;
}

}  // namespace

Connection::Connection(std::shared_ptr<ServerCore> core, asio::ip::tcp::socket socket)
    : core_(std::move(core)),
      socket_(std::move(socket)),
      read_timer_(socket_.get_executor()),
      write_timer_(socket_.get_executor()) {}

Connection::~Connection() {
  const MutexLock lock(&core_->mutex);
  core_->connections.erase(this);
}

void Connection::run() {
  if (phase_ == Phase::kClosed) return;
  ErrorCode ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  arm(read_timer_, core_->options.config.idle_timeout, &Connection::on_read_due);
  process();
}

void Connection::turn_away() {
  if (phase_ == Phase::kClosed) return;
  request_.id = request_id(request_);
  request_.method = "-";  // in the log
  began_ = Clock::now();
  keep_alive_ = false;
  refuse(error_response(503, absl::StrCat("too many connections; expected at most ",
                                          core_->options.config.connections_max,
                                          " ([server] connections_max): try again later")));
}

void Connection::close_soon() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] { self->lose_client(); });
}

void Connection::read() {
  if (is_reading_ || at_end_ || phase_ == Phase::kClosed) return;
  if (phase_ == Phase::kAnswering && buffer_.size() >= kPipelineBytesMax)
    return arm(read_timer_, kLookInterval, &Connection::look_for_client);
  is_reading_ = true;
  if (phase_ == Phase::kIdle && buffer_.size() == 0) {
    buffer_.clear();
    buffer_.shrink_to_fit();
  }
  read_space_.resize(phase_ == Phase::kIdle ? kIdleReadBytes : kReadBytes);
  read_space_.shrink_to_fit();
  socket_.async_read_some(
      asio::buffer(read_space_),
      [self = shared_from_this()](const ErrorCode& e, size_t got) { self->on_read(e, got); });
}

// A read would tell of the end only behind the bytes that are still in the way.
void Connection::look_for_client() {
  if (phase_ != Phase::kAnswering) return;
  pollfd found{socket_.native_handle(), POLLRDHUP, 0};
  if (poll(&found, 1, 0) == 1) {
    on_read_end(asio::error::eof);
  } else {
    arm(read_timer_, kLookInterval, &Connection::look_for_client);
  }
}

void Connection::on_read(const ErrorCode& error, size_t n_bytes) {
  is_reading_ = false;
  buffer_.commit(asio::buffer_copy(buffer_.prepare(n_bytes), asio::buffer(read_space_, n_bytes)));
  if (phase_ == Phase::kClosed) return;
  if (!error) return process();
  on_read_end(error);
}

void Connection::on_read_end(const ErrorCode& error) {
  at_end_ = true;
  keep_alive_ = false;
  // A whole answer may still be on its way to a client that has stopped sending.
  if (error == asio::error::eof && phase_ == Phase::kAnswering && exchange_->is_complete()) return;
  lose_client();
}

void Connection::process() {
  while (true) {
    switch (phase_) {
      case Phase::kIdle:
        if (buffer_.size() == 0) return read();
        began_ = Clock::now();
        phase_ = Phase::kHeader;
        parser_.emplace();
        parser_->header_limit(core_->options.header_bytes_max);
        parser_->body_limit(std::numeric_limits<uint64_t>::max());  // until the head is known
        arm(read_timer_, core_->options.config.header_timeout, &Connection::on_read_due);
        break;
      case Phase::kHeader:
      case Phase::kBody:
        if (!parse()) return read();
        break;
      case Phase::kLingering:
        n_discarded_ += buffer_.size();
        buffer_.consume(buffer_.size());
        return n_discarded_ > kLingerBytesMax ? close() : read();
      case Phase::kAnswering:
        return read();
      case Phase::kClosed:
        return;
    }
  }
}

bool Connection::parse() {
  if (buffer_.size() == 0) return false;
  ErrorCode error;
  const size_t n_used = parser_->put(buffer_.data(), error);
  buffer_.consume(n_used);
  body_bytes_ += n_used;
  if (error == beast::http::error::need_more) {
    // The parser bounds heads and bodies, but not what may stand in a chunk's own line.
    if (phase_ == Phase::kHeader || buffer_.size() <= core_->options.header_bytes_max) {
      if (phase_ == Phase::kBody) begin_body();
      return false;
    }
    error = beast::http::error::bad_chunk_extension;
  }
  if (error) {
    if (request_.id.empty()) request_.id = request_id(request_);
    keep_alive_ = false;
    refuse(refusal_of(error, core_->options));
  } else if (phase_ == Phase::kHeader && parser_->is_header_done()) {
    on_head();
  } else if (phase_ == Phase::kBody && parser_->is_done()) {
    dispatch();
  } else if (phase_ == Phase::kBody) {
    begin_body();
  }
  return true;
}

void Connection::fill_request() {
  const auto& head = parser_->get();
  request_ = {};
  request_.method.assign(head.method_string().data(), head.method_string().size());
  for (const auto& field : head) {
    request_.headers.emplace_back(
        std::string(field.name_string().data(), field.name_string().size()),
        std::string(field.value().data(), field.value().size()));
  }
  request_.id = request_id(request_);
  is_http_1_0_ = head.version() < 11;
  keep_alive_ = head.keep_alive() && !is_http_1_0_ && !at_end_;
}

void Connection::on_head() {
  fill_request();
  const ServerOptions& options = core_->options;
  const auto& head = parser_->get();
  if (core_->is_draining) {
    keep_alive_ = false;
    return refuse(
        error_response(503, "the server is shutting down: ask another, or try again later"));
  }
  if (head.version() != 10 && head.version() != 11) {
    return refuse(error_response(505, "found another HTTP version; expected 1.0 or 1.1"));
  }
  if (request_.headers.size() > options.headers_max) {
    return refuse(
        error_response(431, absl::StrCat("found ", request_.headers.size(),
                                         " headers; expected at most ", options.headers_max)));
  }
  const std::string_view target(head.target().data(), head.target().size());
  if (auto refusal = core_->admission.examine(target, is_http_1_0_, &request_, &route_)) {
    // Where a malformed request ends is not certain either.
    if (refusal->status == 400) keep_alive_ = false;
    return refuse(*std::move(refusal));
  }
  if (parser_->content_length().value_or(0) > body_bytes_max(options)) {
    return refuse(refusal_of(beast::http::error::body_limit, options));
  }
  const std::string_view expect = request_.header("Expect").value_or("");
  if (!expect.empty() && !absl::EqualsIgnoreCase(std::string(expect), "100-continue")) {
    return refuse(error_response(417, "found an Expect that is not known; expected 100-continue"));
  }
  if (parser_->is_done()) return dispatch();
  parser_->body_limit(body_bytes_max(options));
  parser_->eager(true);
  phase_ = Phase::kBody;
  body_bytes_ = 0;
  begin_body();
  if (!expect.empty() && buffer_.size() == 0) send("HTTP/1.1 100 Continue\r\n\r\n");
}

void Connection::begin_body() {
  const absl::Duration spent = absl::FromChrono(Clock::now() - began_);
  const absl::Duration granted = absl::Seconds(body_bytes_ / kBodyBytesPerSecondMin);
  const absl::Duration wait = core_->options.config.header_timeout;
  if (wait <= absl::ZeroDuration()) return;
  arm(read_timer_, std::max(wait + granted - spent, absl::Milliseconds(1)),
      &Connection::on_read_due);
}

void Connection::dispatch() {
  auto request = std::make_shared<Request>(request_);
  request->body = std::move(parser_->get().body());
  begin_answer();
  // The plain pointer is safe: the workers are joined before the core is destroyed.
  asio::post(
      route_->is_quiet ? core_->quiet_workers : core_->workers,
      [core = core_.get(), route = route_, request = std::move(request),
       responder = Exchange::responder(exchange_)] {
        try {
          route->handler(*request, responder);
        } catch (const std::exception& e) {
          core->log(LogLevel::kError,
                    absl::StrCat(route->pattern, ": ", e.what(), " id=", request->id));
          responder->send(error_response(500, "an error inside the server; its log says more"));
        }
      });
}

void Connection::begin_answer() {
  if (!parser_ || !parser_->is_done()) keep_alive_ = false;
  parser_.reset();
  read_timer_.cancel();
  phase_ = Phase::kAnswering;
  answering_ = shared_from_this();
  answer_bytes_ = 0;
  ++core_->n_open_requests;
  ExchangeOptions options;
  options.request_id = request_.id;
  options.is_head = request_.method == "HEAD";
  options.is_chunked = !is_http_1_0_;
  options.keep_alive = keep_alive_;
  options.buffer_bytes_max = core_->options.stream_buffer_bytes_max;
  exchange_ = std::make_shared<Exchange>(std::move(options), [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->wake();
  });
}

void Connection::refuse(Response response) {
  begin_answer();
  exchange_->send(std::move(response));
}

void Connection::wake() {
  // Weak: what waits in the queue of a server that is gone must not keep it.
  asio::post(socket_.get_executor(), [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->pump();
  });
}

void Connection::pump() {
  if (exchange_ == nullptr) return;
  if (is_writing_) {
    if (exchange_->is_too_slow()) lose_client();
    return;
  }
  Exchange::Output output = exchange_->take();
  if (output.is_too_slow) return lose_client();
  if (!output.bytes.empty()) {
    answer_bytes_ += output.bytes.size();
    return send(std::move(output.bytes));
  }
  if (output.is_complete) end_answer(output.is_broken);
}

void Connection::send(std::string bytes) {
  out_ = std::move(bytes);
  n_written_ = 0;
  is_writing_ = true;
  write_some();
}

void Connection::write_some() {
  arm(write_timer_, core_->options.config.write_timeout, &Connection::lose_client);
  socket_.async_write_some(
      asio::buffer(out_.data() + n_written_, out_.size() - n_written_),
      [self = shared_from_this()](const ErrorCode& e, size_t n) { self->on_written(e, n); });
}

void Connection::on_written(const ErrorCode& error, size_t n_bytes) {
  write_timer_.cancel();
  is_writing_ = false;
  if (phase_ == Phase::kClosed) return;
  if (error) return lose_client();
  n_written_ += n_bytes;
  if (n_written_ < out_.size()) {
    is_writing_ = true;
    return write_some();
  }
  out_ = std::string();
  pump();
}

void Connection::end_answer(bool is_broken) {
  record(exchange_->status());
  exchange_.reset();
  answering_.reset();
  request_ = {};
  route_ = nullptr;
  if (is_broken) return close();
  if (!keep_alive_ || core_->is_draining) return linger();
  phase_ = Phase::kIdle;
  arm(read_timer_, core_->options.config.idle_timeout, &Connection::on_read_due);
  process();
}

void Connection::record(int status) {
  --core_->n_open_requests;
  const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
  if (core_->options.on_answered) {
    core_->options.on_answered(route_ == nullptr ? "unmatched" : route_->pattern, status, seconds);
  }
  if (route_ != nullptr && route_->is_quiet) return;
  core_->log(LogLevel::kInfo,
             absl::StrFormat("%s %s %d %.1f ms %d B id=%s key=%s",
                             clean_text(request_.method, kLoggedPathBytesMax),
                             clean_text(request_.path, kLoggedPathBytesMax), status, seconds * 1e3,
                             answer_bytes_, request_.id, request_.who.key_id));
}

void Connection::lose_client() {
  if (phase_ == Phase::kClosed) return;
  const auto exchange = std::exchange(exchange_, nullptr);
  if (exchange != nullptr) {
    constexpr int kClientClosedRequest = 499;
    record(kClientClosedRequest);
    // What the kernel still holds for a client that does not read is dropped too.
    ErrorCode ignored;
    socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  }
  close();
  answering_.reset();
  if (exchange != nullptr) exchange->lose();
}

void Connection::linger() {
  ErrorCode ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  if (at_end_) return close();
  phase_ = Phase::kLingering;
  arm(read_timer_, kLinger, &Connection::close);
  process();
}

void Connection::close() {
  phase_ = Phase::kClosed;
  read_timer_.cancel();
  write_timer_.cancel();
  ErrorCode ignored;
  socket_.close(ignored);
}

void Connection::arm(asio::steady_timer& timer, absl::Duration wait, void (Connection::*on_due)()) {
  timer.cancel();
  if (wait <= absl::ZeroDuration() || wait > absl::Hours(24 * 365)) return;
  timer.expires_after(absl::ToChronoNanoseconds(wait));
  timer.async_wait([weak = weak_from_this(), &timer, on_due](const ErrorCode& error) {
    const auto self = weak.lock();
    // The wait may have been over already when the timer was armed again.
    if (!error && self != nullptr && timer.expiry() <= Clock::now()) (self.get()->*on_due)();
  });
}

void Connection::on_read_due() {
  if (phase_ == Phase::kHeader || phase_ == Phase::kBody) {
    if (request_.id.empty()) request_.id = request_id(request_);
    keep_alive_ = false;
    return refuse(
        error_response(408, "the request did not arrive in time ([server] header_timeout)"));
  }
  if (phase_ == Phase::kIdle) close();
}

}  // namespace varve::http
