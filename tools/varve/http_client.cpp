#include "tools/varve/http_client.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <cstdlib>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace varve::cli {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

constexpr uint64_t kAnswerBytesMax = uint64_t{64} << 20;

struct Address {
  std::string host, port = "80", prefix;
  std::string host_header;
};

absl::StatusOr<Address> parse_url(const std::string& url) {
  const absl::Status bad = absl::InvalidArgumentError(
      absl::StrCat("found the URL '", url, "'; expected one like http://127.0.0.1:8080"));
  constexpr std::string_view kScheme = "http://";
  std::string_view rest = url;
  if (rest.substr(0, kScheme.size()) != kScheme) return bad;
  rest.remove_prefix(kScheme.size());
  Address address;
  const size_t slash = rest.find('/');
  if (slash != std::string_view::npos) address.prefix = rest.substr(slash);
  while (!address.prefix.empty() && address.prefix.back() == '/') address.prefix.pop_back();
  rest = rest.substr(0, slash);
  address.host_header = rest;
  size_t end = rest.find(':');
  if (!rest.empty() && rest.front() == '[') {  // an IPv6 address
    const size_t close = rest.find(']');
    if (close == std::string_view::npos) return bad;
    address.host = rest.substr(1, close - 1);
    end = close + 1 < rest.size() ? close + 1 : std::string_view::npos;
    if (end != std::string_view::npos && rest[end] != ':') return bad;
  } else {
    address.host = rest.substr(0, end);
  }
  if (end != std::string_view::npos) address.port = rest.substr(end + 1);
  const bool is_number = address.port.find_first_not_of("0123456789") == std::string::npos;
  if (address.host.empty() || address.port.empty() || address.port.size() > 5 || !is_number)
    return bad;
  return address;
}

// One request over one connection. Each step is asynchronous, since only then Beast's deadlines
// hold, and waited for.
class Exchange {
 public:
  explicit Exchange(const HttpRequest& request) : request_(request), stream_(io_) {}

  absl::StatusOr<HttpAnswer> run() {
    const absl::StatusOr<Address> address = parse_url(request_.url);
    if (!address.ok()) return address.status();
    asio::ip::tcp::resolver resolver(io_);
    const auto endpoints = resolver.resolve(address->host, address->port, error_);
    if (error_) return failed("find");
    step([&] { stream_.async_connect(endpoints, [&](auto error, auto&&) { error_ = error; }); });
    if (error_) return failed("connect to");
    http::request<http::string_body> message(http::string_to_verb(request_.method),
                                             address->prefix + request_.path, 11);
    message.set(http::field::host, address->host_header);
    message.set(http::field::connection, "close");
    if (!request_.key.empty())
      message.set(http::field::authorization, absl::StrCat("Bearer ", request_.key));
    if (!request_.body.empty()) message.set(http::field::content_type, "application/json");
    for (const auto& [name, value] : request_.headers) message.insert(name, value);
    message.body() = request_.body;
    message.prepare_payload();
    step([&] { http::async_write(stream_, message, [&](auto error, size_t) { error_ = error; }); });
    if (error_) return failed("write to");
    http::response_parser<http::string_body> answer;
    answer.body_limit(kAnswerBytesMax);
    beast::flat_buffer buffer;
    step([&] {
      http::async_read(stream_, buffer, answer, [&](auto error, size_t) { error_ = error; });
    });
    if (error_) return failed("read from");
    HttpAnswer got{static_cast<int>(answer.get().result_int()), std::move(answer.get().body()), {}};
    for (const auto& field : answer.get())
      got.headers.emplace_back(field.name_string(), field.value());
    return got;
  }

 private:
  template <class Begin>
  void step(Begin begin) {
    stream_.expires_after(absl::ToChronoMilliseconds(request_.timeout));
    begin();
    io_.restart();
    io_.run();
  }
  absl::Status failed(const char* what) const {
    return absl::UnavailableError(absl::StrCat("cannot ", what, " ", request_.url, ": ",
                                               error_.message(), "; is the server running?"));
  }

  const HttpRequest& request_;
  asio::io_context io_;
  beast::tcp_stream stream_;
  beast::error_code error_;
};

}  // namespace

absl::StatusOr<HttpAnswer> ask_server(const HttpRequest& request) {
  return Exchange(request).run();
}

absl::StatusOr<std::string> key_from_environment(const std::string& name) {
  if (name.empty()) return std::string();
  const char* key = std::getenv(name.c_str());
  if (key == nullptr || *key == '\0') {
    return absl::NotFoundError(
        absl::StrCat("the environment variable ", name, " (--key-env) is empty or not set"));
  }
  return std::string(key);
}

}  // namespace varve::cli
