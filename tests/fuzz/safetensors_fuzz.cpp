// The safetensors check, and config.json by the same bytes: they may refuse with ModelError and
// must do nothing else.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "adapters/light/model/hf_config.h"
#include "adapters/light/model/model_error.h"
#include "adapters/light/model/safetensors_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const varve::light::Memory bytes(std::as_bytes(std::span(data, size)));
  try {
    varve::light::check_safetensors(bytes, "fuzz");
  } catch (const varve::light::ModelError&) {
  }
  try {
    varve::light::hf_config(std::string(reinterpret_cast<const char*>(data), size), "fuzz");
  } catch (const varve::light::ModelError&) {
  }
  return 0;
}
