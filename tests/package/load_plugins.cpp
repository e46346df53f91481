// load_plugins FOLDER KIND NAME: loads and activates one plugin; prints "id MRI version" or why
// not.
#include <iostream>

#include "core/base/text.h"
#include "core/plugin/stack.h"
#include "tests/support/fake_host.h"

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: load_plugins FOLDER KIND NAME\n";
    return 2;
  }
  varve::StackSpec spec;
  spec.plugin_directories = {argv[1]};
  spec.plugins = {{argv[2], argv[3], {}}};
  spec.kernels = &varve::test::ref_kernels();
  const auto stack = varve::load_stack(spec);
  if (!stack.ok()) {
    std::cerr << stack.status().message() << "\n";
    return 1;
  }
  const varve::PluginInfo info = (*stack)->report()[0].info;
  std::cout << info.id << " " << varve::version_text(info.negotiated) << "\n";
  return 0;
}
