// A client that sends exactly the bytes it is given, and a server to send them to.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <map>
#include <string>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/http/server.h"

namespace varve::http {

struct Answer {
  int status = 0;                              // 0: the connection ended before an answer
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // without chunk marks
  bool is_whole = false;
};

class RawClient {
 public:
  explicit RawClient(uint16_t port, int receive_bytes = 0) {
    socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_bytes > 0) {
      setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
    }
    const timeval wait{30, 0};  // against a test that hangs
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
    setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    is_connected_ = connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  RawClient(RawClient&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)),
        is_connected_(other.is_connected_),
        received_(std::move(other.received_)) {}
  ~RawClient() {
    if (socket_ >= 0) close(socket_);
  }

  bool is_connected() const { return is_connected_; }

  // False when the server has closed the connection.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  void reset() {
    const linger now{1, 0};
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    close(std::exchange(socket_, -1));
  }

  bool receive() {
    char bytes[65536];
    const ssize_t n = recv(socket_, bytes, sizeof(bytes), 0);
    if (n > 0) received_.append(bytes, static_cast<size_t>(n));
    return n > 0;
  }

  // True when all that comes is the end of the connection.
  bool at_end() { return received_.empty() && !receive(); }

  // Up to and with `mark`; less when the connection ends before.
  std::string read_to(std::string_view mark) {
    while (received_.find(mark) == std::string::npos) {
      if (!receive()) return std::exchange(received_, {});
    }
    return take(received_.find(mark) + mark.size());
  }

  Answer answer(bool is_head = false) {
    Answer answer;
    const std::string head = read_to("\r\n\r\n");
    if (!head.starts_with("HTTP/1.1 ")) return answer;
    answer.status = std::stoi(head.substr(9, 3));
    for (size_t at = head.find("\r\n") + 2; at + 2 < head.size();) {
      const size_t end = head.find("\r\n", at), colon = head.find(": ", at);
      answer.headers[absl::AsciiStrToLower(head.substr(at, colon - at))] =
          head.substr(colon + 2, end - colon - 2);
      at = end + 2;
    }
    if (answer.headers.contains("transfer-encoding")) {
      read_chunks(answer);
    } else if (answer.headers.contains("content-length") && !is_head) {
      const size_t n = std::stoul(answer.headers["content-length"]);
      while (received_.size() < n && receive()) {
      }
      answer.is_whole = received_.size() >= n;
      answer.body = take(n);
    } else {
      answer.is_whole = true;
    }
    return answer;
  }

 private:
  std::string take(size_t n) {
    std::string taken = received_.substr(0, n);
    received_.erase(0, n);
    return taken;
  }

  void read_chunks(Answer& answer) {
    while (true) {
      const std::string line = read_to("\r\n");
      uint64_t n = 0;
      if (!absl::SimpleHexAtoi(line.substr(0, line.find('\r')), &n)) return;
      while (received_.size() < n + 2 && receive()) {
      }
      answer.body += take(n);
      take(2);
      answer.is_whole = n == 0;
      if (n == 0) return;
    }
  }

  int socket_ = -1;
  bool is_connected_ = false;
  std::string received_;
};

// "GET /x HTTP/1.1" with a Host and what else is given, lines ended by CRLF.
inline std::string request_text(std::string_view line, std::string_view headers = "",
                                std::string_view body = "") {
  std::string text =
      absl::StrCat(std::string(line), " HTTP/1.1\r\nHost: localhost\r\n", std::string(headers));
  if (!body.empty()) {
    absl::StrAppend(&text, "Content-Type: application/json\r\nContent-Length: ", body.size(),
                    "\r\n");
  }
  return absl::StrCat(text, "\r\n", std::string(body));
}

}  // namespace varve::http
