// Runs the choices of one chat or completion and answers it, whole or as a stream.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/http/contexts.h"
#include "core/http/openai_prompt.h"
#include "core/http/openai_request.h"
#include "core/http/service.h"

namespace varve::http {

// One thread for answers that are too long to be written on a lane's. What is posted before the
// destructor is still done.
class Worker {
 public:
  static std::shared_ptr<Worker> make();
  virtual ~Worker() = default;
  virtual void post(std::function<void()> task) = 0;
};

struct RunParts {
  GenerateCall call;
  std::vector<Prompt> prompts;
  Arrival arrival;
  Placement placement;
  std::string request_id, model_name, fingerprint;
  absl::Duration ping_interval;
  Dispatcher* dispatcher = nullptr;
  std::weak_ptr<Worker> worker;
};

// Always answers. When the client goes away the choices are cancelled; one that fails ends them
// all, as a plain error before the first chunk and as an event after it.
void run_generation(RunParts parts, std::shared_ptr<Responder> responder);

// X-Varve-Class, X-Varve-Arm and X-Varve-Stack, for admin keys alone.
Headers placement_headers(const Arrival& arrival, const Placement& placement);

}  // namespace varve::http
