#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "adapters/light/model/load_model.h"
#include "adapters/light/model/model_error.h"
#include "adapters/light/model/tokenizer.h"
#include "tests/support/tiny_models.h"

namespace varve::light {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string error_of(const std::string& path) {
  try {
    load_model(path, {.threads = 1});
  } catch (const ModelError& e) {
    return e.what();
  }
  return "";
}

// Every file that the script writes is refused with its message, on one line that names the file;
// the good ones load.
TEST(BadModelsTest, AreRefusedWithTheReason) {
  const test::TempDir dir;
  const std::string command = std::string("python3 ") + VARVE_BAD_MODELS_SCRIPT + " " + dir.path();
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  std::ifstream expected(dir.path("expected.tsv"));
  size_t refused = 0, loaded = 0;
  for (std::string line; std::getline(expected, line);) {
    const std::string path = line.substr(0, line.find('\t')),
                      piece = line.substr(line.find('\t') + 1);
    SCOPED_TRACE(path);
    const std::string error = error_of(path);
    if (piece.empty()) {
      EXPECT_EQ(error, "");
      ++loaded;
      continue;
    }
    EXPECT_THAT(error, HasSubstr(piece));
    EXPECT_THAT(error, HasSubstr(path));
    EXPECT_THAT(error, Not(HasSubstr("\n")));
    ++refused;
  }
  EXPECT_EQ(loaded, 2u);
  EXPECT_GE(refused, 100u);
}

TEST(BadModelsTest, PathsThatAreNoModelsAreRefused) {
  const test::TempDir dir;
  EXPECT_THAT(error_of(dir.path("none.gguf")), HasSubstr("cannot be opened"));
  EXPECT_THAT(error_of(dir.path()), HasSubstr("config.json"));
  EXPECT_THAT(error_of("/dev/zero"), HasSubstr("not a regular file"));
  EXPECT_THAT(error_of("model.safetensors"), HasSubstr("give the folder"));
}

TEST(BadModelsTest, NamesFromTheFileCannotBreakTheLine) {
  const test::TempDir dir;
  auto model = test::tiny_model(Architecture::kLlama, {.n_layers = 1});
  model.tensors["a\nb\x1b[31m.bias"] = {1, 1, {0.0f}};
  write_gguf(model, dir.path("m.gguf"));
  EXPECT_THAT(error_of(dir.path("m.gguf")), HasSubstr("tensor 'a?b?[31m.bias'"));
}

TEST(BadModelsTest, TokenizerRefusesThemToo) {
  const test::TempDir dir;
  std::ofstream(dir.path("m.gguf")) << "GGUF and then nothing of use at all";
  EXPECT_THROW(Tokenizer(dir.path("m.gguf")), ModelError);
}

}  // namespace
}  // namespace varve::light
