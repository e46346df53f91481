#include "core/http/exchange.h"

#include <boost/beast/http/status.hpp>
#include <utility>

#include "absl/strings/str_cat.h"

namespace varve::http {
namespace {

// A value from a handler cannot end the line it stands in.
void add_header(std::string* head, std::string_view name, std::string_view value) {
  absl::StrAppend(head, std::string(name), ": ");
  for (const char c : value) *head += static_cast<unsigned char>(c) < 0x20 && c != '\t' ? ' ' : c;
  *head += "\r\n";
}

std::string chunk(const std::string& bytes) {
  return absl::StrCat(absl::Hex(bytes.size()), "\r\n", bytes, "\r\n");
}

bool has_no_body(int status) { return status == 204 || status == 304; }

}  // namespace

Exchange::Exchange(ExchangeOptions options, std::function<void()> wake)
    : options_(std::move(options)), wake_(std::move(wake)) {}

std::shared_ptr<Responder> Exchange::responder(std::shared_ptr<Exchange> exchange) {
  Exchange* raw = exchange.get();
  return {raw, [exchange = std::move(exchange)](Responder*) { exchange->abandon(); }};
}

std::string Exchange::head_text(const Response& head, bool has_length) const {
  namespace beast = boost::beast::http;
  const auto reason = beast::obsolete_reason(beast::int_to_status(head.status));
  std::string text = absl::StrCat("HTTP/1.1 ", head.status, " ",
                                  std::string(reason.data(), reason.size()), "\r\n");
  add_header(&text, "X-Request-Id", options_.request_id);
  if (!has_no_body(head.status)) {
    add_header(&text, "Content-Type", head.content_type);
    if (has_length) {
      add_header(&text, "Content-Length", absl::StrCat(head.body.size()));
    } else if (options_.is_chunked) {
      add_header(&text, "Transfer-Encoding", "chunked");
    }
  }
  for (const auto& [name, value] : head.headers) add_header(&text, name, value);
  if (!options_.keep_alive) add_header(&text, "Connection", "close");
  return text + "\r\n";
}

void Exchange::add(std::string bytes) {
  if (is_lost_ || is_too_slow_) return;
  if (out_.empty()) {
    out_ = std::move(bytes);
  } else {
    out_ += bytes;
  }
}

std::vector<std::function<void()>> Exchange::complete() {
  state_ = State::kComplete;
  return std::exchange(on_gone_, {});
}

void Exchange::send(Response response) {
  // Destroyed after the lock is released: what a callback holds may be the last of its kind.
  std::vector<std::function<void()>> dropped;
  {
    const MutexLock lock(&mutex_);
    if (state_ != State::kNew) return;
    status_ = response.status;
    std::string text = head_text(response, true);
    if (!options_.is_head && !has_no_body(response.status)) text += response.body;
    add(std::move(text));
    dropped = complete();
  }
  wake_();
}

void Exchange::start(Response head) {
  {
    const MutexLock lock(&mutex_);
    if (state_ != State::kNew) return;
    if (head.content_type == Response().content_type) head.content_type = "text/event-stream";
    status_ = head.status;
    state_ = State::kStreaming;
    add(head_text(head, false));
  }
  wake_();
}

void Exchange::write(std::string bytes) {
  {
    const MutexLock lock(&mutex_);
    // An empty chunk would end the answer.
    if (state_ != State::kStreaming || options_.is_head || bytes.empty()) return;
    add(options_.is_chunked ? chunk(bytes) : std::move(bytes));
    if (taken_bytes_ + out_.size() > options_.buffer_bytes_max) {
      is_too_slow_ = true;
      out_ = std::string();
    }
  }
  wake_();
}

void Exchange::finish() {
  std::vector<std::function<void()>> dropped;
  {
    const MutexLock lock(&mutex_);
    if (state_ != State::kStreaming) return;
    if (options_.is_chunked && !options_.is_head) add("0\r\n\r\n");
    is_broken_ = !options_.is_chunked;
    // Whoever was too slow learns of it from on_gone, which is still to be called.
    if (is_too_slow_) return;
    dropped = complete();
  }
  wake_();
}

bool Exchange::gone() const {
  const MutexLock lock(&mutex_);
  return is_lost_ || is_too_slow_;
}

void Exchange::on_gone(std::function<void()> call) {
  {
    const MutexLock lock(&mutex_);
    if (state_ == State::kComplete) return;
    if (!is_lost_) {
      on_gone_.push_back(std::move(call));
      return;
    }
  }
  call();
}

Exchange::Output Exchange::take() {
  const MutexLock lock(&mutex_);
  Output output{std::exchange(out_, {}), state_ == State::kComplete, is_broken_, is_too_slow_};
  taken_bytes_ = output.bytes.size();
  return output;
}

bool Exchange::is_complete() const {
  const MutexLock lock(&mutex_);
  return state_ == State::kComplete;
}

bool Exchange::is_too_slow() const {
  const MutexLock lock(&mutex_);
  return is_too_slow_;
}

int Exchange::status() const {
  const MutexLock lock(&mutex_);
  return status_;
}

void Exchange::lose() {
  std::vector<std::function<void()>> calls;
  {
    const MutexLock lock(&mutex_);
    is_lost_ = true;
    out_ = std::string();
    calls.swap(on_gone_);
  }
  for (const auto& call : calls) call();
}

void Exchange::abandon() {
  bool is_new;
  std::vector<std::function<void()>> dropped;
  {
    const MutexLock lock(&mutex_);
    if (state_ == State::kComplete) return;
    is_new = state_ == State::kNew;
    if (!is_new) {
      is_broken_ = true;
      dropped = complete();
    }
  }
  if (is_new) {
    send(error_response(500,
                        "the request was dropped without an answer; the server's log may say "
                        "why: send it again, and report it if that does not help"));
  } else {
    wake_();
  }
}

}  // namespace varve::http
