#include "core/plugin/library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace varve {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<std::string> kProbes = {PROBE_PLUGINS};

std::string text_of(const absl::Status& status) { return std::string(status.message()); }

TEST(NegotiatedVersion, IsTheNewestThatBothSpeak) {
  EXPECT_EQ(negotiated_version({MRI_1_0, MRI_1_1}, {MRI_1_0, MRI_1_1}), MRI_1_1);
  EXPECT_EQ(negotiated_version({MRI_1_0, MRI_1_1}, {MRI_1_0, MRI_1_0}), MRI_1_0);
  EXPECT_EQ(negotiated_version({MRI_1_0, MRI_1_0}, {MRI_1_0, MRI_1_1}), MRI_1_0);
  EXPECT_EQ(negotiated_version({MRI_1_0, MRI_1_0}, {MRI_1_1, MRI_1_1}), 0u);
  EXPECT_EQ(negotiated_version({MRI_1_1, MRI_1_1}, {MRI_1_0, MRI_1_0}), 0u);
  EXPECT_EQ(negotiated_version({MRI_1_0, MRI_1_1}, {MRI_VERSION(2, 0), MRI_VERSION(2, 3)}), 0u);
}

TEST(LoadPlugin, DescribesTheLibrary) {
  const auto library = load_plugin(kProbes, "kv_tier", "probe");
  ASSERT_TRUE(library.ok()) << library.status();
  const PluginInfo& info = library->info;
  EXPECT_EQ(info.kind, "kv_tier");
  EXPECT_EQ(info.name, "probe");
  EXPECT_EQ(info.id, "org.varve.test.kv_tier");
  EXPECT_EQ(info.version, "1.2.3");
  EXPECT_EQ(info.negotiated, MRI_1_1);
  ASSERT_EQ(info.params.size(), 4u);
  EXPECT_EQ(info.params[0].key, "first_block");
  EXPECT_EQ(info.params[1].default_value, Value(0.5));
  EXPECT_EQ(info.params[3].choices, "plain|fancy");
}

TEST(LoadPlugin, TakesAnAbsolutePath) {
  const auto library = load_plugin({}, "runtime", std::string(PROBE_PLUGINS) + "/runtime-probe.so");
  ASSERT_TRUE(library.ok()) << library.status();
  EXPECT_EQ(library->info.name, "probe");
}

TEST(LoadPlugin, NamesTheNearestPlugin) {
  const auto library = load_plugin({"/nonexistent", PROBE_PLUGINS}, "kv_tier", "prob");
  EXPECT_EQ(library.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(text_of(library.status()),
              AllOf(HasSubstr("MRI-E001"), HasSubstr("kv_tier-prob.so in /nonexistent, "),
                    HasSubstr("has only probe"), HasSubstr("Did you mean \"probe\"?")));
}

TEST(LoadPlugin, RefusesOtherKind) {
  const auto library =
      load_plugin({}, "attention", std::string(PROBE_PLUGINS) + "/kv_tier-probe.so");
  EXPECT_THAT(text_of(library.status()),
              AllOf(HasSubstr("MRI-E008"), HasSubstr("wants attention, has kv_tier")));
}

TEST(LoadPlugin, RefusesWhatIsNotAPluginFile) {
  const std::string folder = testing::TempDir() + "/not_plugins";
  std::filesystem::create_directories(folder + "/quantizer-folder.so");
  std::ofstream(folder + "/quantizer-script.so") << "#!/bin/sh\nexit 1\n";
  std::ofstream(folder + "/quantizer-empty.so");
  const auto refusal = [&](const std::string& name) {
    return text_of(load_plugin({folder}, "quantizer", name).status());
  };
  EXPECT_THAT(refusal("folder"), AllOf(HasSubstr("MRI-E001"), HasSubstr("not a regular file")));
  EXPECT_THAT(refusal("script"), AllOf(HasSubstr("MRI-E002"), HasSubstr("no ELF header")));
  EXPECT_THAT(refusal("empty"), HasSubstr("MRI-E002"));
  EXPECT_THAT(refusal("./relative.so"), AllOf(HasSubstr("MRI-E001"), HasSubstr("a relative path")));
  EXPECT_THAT(refusal("/nowhere/x.so"), AllOf(HasSubstr("MRI-E001"), HasSubstr("no such file")));
}

TEST(ListPlugins, ShowsGoodAndBadOnes) {
  const std::vector<ListedPlugin> good = list_plugins(kProbes);
  ASSERT_EQ(good.size(), 4u);
  EXPECT_EQ(good[0].info->kind, "kv_tier");
  EXPECT_EQ(good[1].info->name, "rogue");
  EXPECT_EQ(good[2].info->kind, "runtime");
  EXPECT_EQ(good[3].info->name, "probe_1_0");
  EXPECT_EQ(good[3].info->negotiated, MRI_1_0);

  // Alone: some of the others end the process when they are loaded.
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "one_bad";
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(std::string(BAD_PLUGINS) + "/quantizer-wrong_magic.so",
                             folder / "quantizer-wrong_magic.so",
                             std::filesystem::copy_options::overwrite_existing);
  const std::vector<ListedPlugin> bad = list_plugins({folder.string(), "/nonexistent"});
  ASSERT_EQ(bad.size(), 1u);
  EXPECT_THAT(text_of(bad[0].info.status()), HasSubstr("MRI-E006"));
}

}  // namespace
}  // namespace varve
