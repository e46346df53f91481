// A lane on the native engine gives the answers that a session alone gives.
#include <gtest/gtest.h>

#include "core/engine/session.h"
#include "tests/support/light_stack.h"
#include "tests/support/tiny_models.h"
#include "tests/unit/core/engine/lane_fixture.h"

namespace varve::test {
namespace {

TEST(LaneLight, AnswersAsASessionAlone) {
  TempDir folder;
  const std::string path = folder.path("model.gguf");
  write_gguf(tiny_model(light::Architecture::kLlama), path);
  ThreadPool threads(2);
  StackSpec spec;
  spec.plugin_directories = {VARVE_PLUGIN_DIRECTORY};
  spec.services.threads = &threads;
  spec.plugins = {
      {"runtime", "light", {{"model_path", Value(path)}, {"compute", Value(std::string("f32"))}}},
      {"kv_tier", "full", {}},
      {"quantizer", "int8", {}},
      {"attention", "dense", {}},
      {"batching", "router", {}}};
  auto loaded = load_stack(spec);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const std::shared_ptr<Stack> stack(*std::move(loaded));
  const Text text(stack->text().table, stack->text().self);
  const uint64_t n_vocabulary = text.model_info()->vocab_size;

  Turnstile turnstile;
  auto lane = Lane::start({}, stack, &turnstile);
  ASSERT_TRUE(lane.ok()) << lane.status();
  std::vector<std::pair<GenerateRequest, std::shared_ptr<Recorder>>> sent;
  for (size_t i = 0; i < 14; ++i) {
    GenerateRequest r;
    r.tenant.assign(1, static_cast<char>('a' + i % 3));
    r.prompt = random_tokens(5 + 23 * i, i / 2);  // pairs begin alike
    r.max_tokens = 24;
    r.ignore_end = true;
    sent.emplace_back(r, std::make_shared<Recorder>());
    ASSERT_TRUE((*lane)->submit(r, sent.back().second, nullptr).ok());
  }
  for (const auto& [r, sink] : sent) {
    ASSERT_TRUE(sink->wait().status.ok()) << sink->wait().status;
    auto session =
        Session::start(stack->runtime().table, stack->runtime().self, n_vocabulary, r.prompt, {});
    ASSERT_TRUE(session.ok()) << session.status();
    auto sampler = Sampler::make({}, *stack);
    std::string expected;
    for (uint64_t t = 0; t < r.max_tokens; ++t) {
      const int32_t token = *(*sampler)->sample((*session)->logits());
      expected += *text.detokenize({&token, 1});
      ASSERT_TRUE((*session)->append({&token, 1}).ok());
    }
    EXPECT_EQ(sink->text(), expected) << r.prompt.size();
  }
}

}  // namespace
}  // namespace varve::test
