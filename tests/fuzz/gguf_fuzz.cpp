// The GGUF check over arbitrary bytes: it may refuse with ModelError and must do nothing else.
#include <cstddef>
#include <cstdint>
#include <span>

#include "adapters/light/model/gguf_check.h"
#include "adapters/light/model/model_error.h"
#include "adapters/light/model/model_source.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const varve::light::Memory bytes(std::as_bytes(std::span(data, size)));
  try {
    varve::light::gguf_config(varve::light::check_gguf(bytes, "fuzz"), "fuzz");
  } catch (const varve::light::ModelError&) {
  }
  return 0;
}
