#include "core/plugin/isolation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace varve {
namespace {

using testing::AllOf;
using testing::HasSubstr;

absl::StatusOr<Isolation> read(const std::string& text, const char* table) {
  ProfileSources sources;
  sources.path = "p.toml";
  const absl::StatusOr<Profile> profile = Profile::parse(text, sources);
  if (!profile.ok()) return profile.status();
  return isolation_of(*profile, table);
}

TEST(Isolation, IsInProcessByDefault) {
  for (const char* table : {"runtime", "attention", "kv_tier", "quantizer", "summary", "batching"})
    EXPECT_FALSE(read("", table)->is_worker) << table;
}

TEST(Isolation, ReadsATable) {
  const auto isolation = read(
      "[plugins]\nworker_path = \"/opt/mri-worker\"\n"
      "[kv_tier]\nisolation = \"worker\"\nfallback = \"age\"\nworker_deadline_ms = 20\n"
      "worker_memory_mb = 512\nworker_failures_max = 9\nworker_backoff_ms = 0\n",
      "kv_tier");
  ASSERT_TRUE(isolation.ok()) << isolation.status();
  EXPECT_TRUE(isolation->is_worker);
  EXPECT_EQ(isolation->fallback, "age");
  EXPECT_EQ(isolation->deadline_ms, 20u);
  EXPECT_EQ(isolation->memory_mb, 512u);
  EXPECT_EQ(isolation->failures_max, 9u);
  EXPECT_EQ(isolation->backoff_ms, 0u);
  EXPECT_EQ(isolation->program, "/opt/mri-worker");
  EXPECT_TRUE(read("[quantizer]\nisolation = \"worker\"\n", "quantizer")->is_worker);
}

TEST(Isolation, SaysWhyNot) {
  for (const char* table : {"runtime", "attention"}) {
    const std::string text = absl::StrCat("[", table, "]\nisolation = \"worker\"\n");
    EXPECT_THAT(std::string(read(text, table).status().message()),
                AllOf(HasSubstr("p.toml:2:1: "), HasSubstr("works on the runtime's memory"),
                      HasSubstr("expected kv_tier, quantizer, summary or batching")));
  }
  EXPECT_THAT(
      std::string(read("[kv_tier]\nisolation = \"thread\"\n", "kv_tier").status().message()),
      HasSubstr("expected one of in_process, worker"));
}

}  // namespace
}  // namespace varve
