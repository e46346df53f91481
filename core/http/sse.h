// Server-sent events over a Responder, as OpenAI's clients read them.
#pragma once

#include <memory>
#include <string_view>

#include "absl/time/time.h"
#include "core/http/http.h"

namespace varve::http {

// The answer starts with the first event or ping; until then a failure is still a plain HTTP error.
// While nothing else is sent, a comment (": ping") goes out every `ping_interval`, from a thread of
// its own. Every method may be called from any thread and never waits for the client; calls after
// finish() or fail() do nothing. Dropping the last reference before either leaves the Responder
// without an answer, or with a broken-off one.
class EventStream {
 public:
  // ping_interval zero or infinite: no pings. `headers` go with the 200.
  static std::shared_ptr<EventStream> start(std::shared_ptr<Responder> responder,
                                            absl::Duration ping_interval, Headers headers = {});
  virtual ~EventStream() = default;

  // One event: "data: <json>". `json` has no line breaks.
  virtual void data(std::string_view json) = 0;
  // Before the start: sent as it is. After it: its body as an event, then [DONE].
  virtual void fail(Response error) = 0;
  // "data: [DONE]" and the end.
  virtual void finish() = 0;
  virtual bool started() const = 0;
};

}  // namespace varve::http
