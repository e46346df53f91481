// tiny_model FILE: writes a small llama model with random weights.
#include <exception>
#include <iostream>

#include "tests/support/tiny_models.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: tiny_model FILE\n";
    return 2;
  }
  try {
    varve::test::write_gguf(varve::test::tiny_model(varve::light::Architecture::kLlama), argv[1]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
