#include "core/plugin/trust.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/base/sha256.h"
#include "core/plugin/library.h"

namespace varve {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_all(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// A folder that only this user may write, and two libraries whose constructors leave the marks "a"
// and "b". A number at the end makes each copy another file: what was loaded once stays loaded.
class TrustTest : public testing::Test {
 protected:
  TrustTest() {
    std::string name = testing::TempDir() + "/trust-XXXXXX";
    folder_ = fs::canonical(mkdtemp(name.data())).string();
    marks_ = folder_ + "/marks";
    path_ = folder_ + "/quantizer-q.so";
    setenv("VARVE_TEST_MARKS", marks_.c_str(), 1);
  }
  ~TrustTest() override {
    unsetenv("VARVE_TEST_MARKS");
    fs::remove_all(folder_);
  }

  std::string library(const char* mark) {
    static int n = 0;
    return absl::StrCat(read_all(absl::StrCat(MARKED_PLUGINS, "/quantizer-marked_", mark, ".so")),
                        ++n, folder_);
  }
  // What is told when the file is loaded; "" for success.
  std::string load(const Trust& trust = {}) {
    return std::string(PluginLibrary::load(path_, "quantizer", {}, trust).status().message());
  }
  std::string marks() const { return read_all(marks_); }

  std::string folder_, marks_, path_;
};

Trust pinned(std::vector<std::string> pins, TrustLevel level = TrustLevel::kNone) {
  return {level, std::move(pins), {}};
}

TEST_F(TrustTest, LoadsWhatIsPinned) {
  const std::string a = library("a"), b = library("b"), pin = sha256_hex(a);
  write_all(path_, a);
  EXPECT_EQ(load(pinned({sha256_hex(b), pin})), "");
  EXPECT_EQ(marks(), "a");
  EXPECT_EQ(load(pinned({pin}, TrustLevel::kHash)), "");
  EXPECT_EQ(marks(), "a") << "the same bytes are loaded once";
  EXPECT_EQ(PluginLibrary::load(path_, "", {}, pinned({pin}))->info.sha256, pin);
}

TEST_F(TrustTest, RefusesWhatIsNotPinned) {
  write_all(path_, library("a"));
  const std::string other = sha256_hex(library("b"));
  EXPECT_THAT(load(pinned({other})),
              AllOf(HasSubstr("MRI-E022"), HasSubstr(other), HasSubstr(sha256_hex(read_all(path_))),
                    HasSubstr("nothing of it has run")));
  EXPECT_THAT(load(pinned({}, TrustLevel::kHash)),
              AllOf(HasSubstr("MRI-E022"), HasSubstr("wants a pin")));
  EXPECT_EQ(marks(), "");
  EXPECT_EQ(load(), "") << "without trust";
}

TEST_F(TrustTest, TakesAReplacedFileForAnotherLibrary) {
  const std::string a = library("a"), b = library("b");
  write_all(path_, a);
  const auto first = PluginLibrary::load(path_, "quantizer");
  ASSERT_TRUE(first.ok());
  write_all(path_ + "-new", b);
  fs::rename(path_ + "-new", path_);
  EXPECT_THAT(load(pinned({sha256_hex(a)})), HasSubstr("MRI-E022"));
  const auto second = PluginLibrary::load(path_, "quantizer");
  ASSERT_TRUE(second.ok()) << "also from the path of the first";
  EXPECT_NE(second->entry, first->entry);
  EXPECT_NE(second->info.sha256, first->info.sha256);
  EXPECT_EQ(marks(), "ab");
}

TEST_F(TrustTest, LoadsTheBytesThatWereChecked) {
  const std::string a = library("a");
  const Trust trust = pinned({sha256_hex(a)});
  write_all(path_, a);
  const auto file = read_library(path_, trust);
  ASSERT_TRUE(file.ok()) << file.status();
  write_all(path_ + "-new", library("b"));
  fs::rename(path_ + "-new", path_);
  EXPECT_TRUE(PluginLibrary::load(*file, "quantizer", {}, trust).ok());
  EXPECT_EQ(marks(), "a");
}

TEST_F(TrustTest, CopiesWhatNobodyCanChange) {
  write_all(path_, "bytes");
  const auto file = read_library(path_, {});
  ASSERT_TRUE(file.ok()) << file.status();
  write_all(path_, "other");
  const auto fd = sealed_copy(*file);
  ASSERT_TRUE(fd.ok()) << fd.status();
  EXPECT_EQ(read_all(absl::StrCat("/proc/self/fd/", fd->get())), "bytes");
  EXPECT_EQ(pwrite(fd->get(), "x", 1, 0), -1);
  EXPECT_NE(ftruncate(fd->get(), 0), 0);
}

TEST_F(TrustTest, RefusesWhatEverybodyMayWrite) {
  write_all(path_, library("a"));
  chmod(path_.c_str(), 0646);
  EXPECT_THAT(load(), AllOf(HasSubstr("MRI-E021"), HasSubstr(path_ + ", which everybody may"),
                            HasSubstr("chmod o-w")));
  chmod(path_.c_str(), 0644);
  for (const mode_t mode : {0777, 01777}) {
    chmod(folder_.c_str(), mode);
    EXPECT_THAT(load(), AllOf(HasSubstr("MRI-E021"), HasSubstr(folder_ + ", which everybody may")));
  }
  chmod(folder_.c_str(), 0755);
  EXPECT_EQ(marks(), "");
  EXPECT_EQ(load(), "");
}

TEST_F(TrustTest, WithTrustTheOwnerAloneMayWrite) {
  const std::string bytes = library("a");
  const Trust trust = pinned({sha256_hex(bytes)}, TrustLevel::kHash);
  fs::create_directories(folder_ + "/upper/lower");
  path_ = folder_ + "/upper/lower/quantizer-q.so";
  write_all(path_, bytes);
  for (const std::string& name : {path_, folder_ + "/upper/lower", folder_ + "/upper"}) {
    chmod(name.c_str(), 0775);
    EXPECT_THAT(load(trust), AllOf(HasSubstr("MRI-E021"), HasSubstr(name + ", which its group")));
    if (geteuid() == 0) {
      chmod(name.c_str(), 0755);
      ASSERT_EQ(chown(name.c_str(), 12345, 0), 0);
      EXPECT_THAT(load(trust), AllOf(HasSubstr("MRI-E021"), HasSubstr(name + ", of user 12345")));
      ASSERT_EQ(chown(name.c_str(), 0, 0), 0);
    }
    chmod(name.c_str(), 0755);
  }
  chmod((folder_ + "/upper").c_str(), 0777);
  EXPECT_THAT(load(trust), HasSubstr("upper, which everybody may"));
  EXPECT_EQ(marks(), "");
  chmod((folder_ + "/upper").c_str(), 01777);
  EXPECT_EQ(load(trust), "") << "a sticky folder further up is like /tmp";
}

TEST_F(TrustTest, RefusesLinksThatLeadOut) {
  fs::create_directories(folder_ + "/plugins");
  write_all(folder_ + "/q.so", library("a"));
  path_ = folder_ + "/plugins/quantizer-q.so";
  fs::create_symlink("../q.so", path_);
  EXPECT_THAT(load(), AllOf(HasSubstr("MRI-E021"), HasSubstr("a link to " + folder_ + "/q.so")));
  EXPECT_EQ(marks(), "");
  fs::rename(folder_ + "/q.so", folder_ + "/plugins/q.so.1");
  fs::remove(path_);
  fs::create_symlink("q.so.1", path_);
  EXPECT_EQ(load(), "");
  fs::create_directory_symlink(folder_ + "/plugins", folder_ + "/link");
  path_ = folder_ + "/link/quantizer-q.so";
  EXPECT_EQ(load(), "") << "a folder may be named by a link";
}

TEST_F(TrustTest, RefusesWhatIsNoFile) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(load(), AllOf(HasSubstr("MRI-E001"), HasSubstr("not a regular file")));
}

class SignatureTest : public TrustTest {
 protected:
  static std::string pem(char seed) {
    const std::string der =
        absl::HexStringToBytes("302e020100300506032b657004220420") + std::string(32, seed);
    return absl::StrCat("-----BEGIN PRIVATE KEY-----\n", absl::Base64Escape(der),
                        "\n-----END PRIVATE KEY-----\n");
  }
  // Trusts the key of `seed`.
  static Trust signed_by(char seed) {
    return {TrustLevel::kSignature, {}, {*ed25519_key(ed25519_sign(pem(seed), "")->public_key)}};
  }
  void sign(char seed, const std::string& bytes) {
    write_all(path_ + ".sig", ed25519_sign(pem(seed), bytes)->signature);
  }
};

TEST_F(SignatureTest, LoadsWhatIsSigned) {
  const std::string bytes = library("a");
  write_all(path_, bytes);
  sign('1', bytes);
  Trust trust = signed_by('2');
  trust.signers.push_back(signed_by('1').signers[0]);
  EXPECT_EQ(load(trust), "");
  trust.sha256 = {sha256_hex("another")};
  EXPECT_THAT(load(trust), HasSubstr("MRI-E022")) << "pins hold too";
}

TEST_F(SignatureTest, RefusesWhatIsNotSigned) {
  const std::string bytes = library("a");
  write_all(path_, bytes);
  const auto refused = [&](const char* has) {
    EXPECT_THAT(load(signed_by('1')),
                AllOf(HasSubstr("MRI-E023"), HasSubstr(path_ + ".sig"), HasSubstr(has),
                      HasSubstr("nothing of the library has run")));
  };
  refused("no such file");
  sign('2', bytes);
  refused("of another key");
  sign('1', bytes + "x");
  refused("of other bytes");
  write_all(path_ + ".sig", "short");
  refused("of another key");
  write_all(path_ + ".sig", std::string(65, 'x'));
  refused("65 bytes, more than 64");
  fs::remove(path_ + ".sig");
  fs::create_directory(path_ + ".sig");
  refused("not a regular file");
  EXPECT_EQ(marks(), "");
}

absl::StatusOr<Trust> read(const std::string& text, const char* table = "quantizer") {
  ProfileSources sources;
  sources.path = "p.toml";
  const absl::StatusOr<Profile> profile = Profile::parse(text, sources);
  if (!profile.ok()) return profile.status();
  return trust_of(*profile, table);
}

TEST(TrustOf, ReadsAProfile) {
  const std::string key(64, 'a'), pin(64, 'B');
  const auto trust = read(absl::StrCat("[plugins]\ntrust = \"signature\"\nsigners = [\"", key,
                                       "\"]\n[quantizer]\nsha256 = [\"", pin, "\"]\n"));
  ASSERT_TRUE(trust.ok()) << trust.status();
  EXPECT_EQ(trust->level, TrustLevel::kSignature);
  EXPECT_EQ(trust->signers.size(), 1u);
  EXPECT_EQ(trust->sha256, std::vector<std::string>{std::string(64, 'b')});
  EXPECT_TRUE(read("")->sha256.empty());
  EXPECT_EQ(read("")->level, TrustLevel::kNone);
  EXPECT_EQ(read("[plugins]\ntrust = \"hash\"\n", "no_such_kind")->level, TrustLevel::kHash);
}

TEST(TrustOf, SaysWhatIsWrong) {
  const auto error = [](const std::string& text) {
    return std::string(read(text).status().message());
  };
  EXPECT_THAT(error("[quantizer]\nsha256 = [\"abc\"]\n"),
              AllOf(HasSubstr("p.toml:2:1: quantizer.sha256: found \"abc\""),
                    HasSubstr("expected 64 hex digits")));
  EXPECT_THAT(error("[plugins]\nsigners = [\"abc\"]\n"), HasSubstr("a public key"));
  EXPECT_THAT(error("[plugins]\ntrust = \"signature\"\n"), HasSubstr("no plugins.signers"));
  EXPECT_THAT(error("[plugins]\ntrust = \"sha256\"\n"), HasSubstr("none, hash, signature"));
}

TEST(TrustOf, IsInherited) {
  ProfileSources sources;
  sources.path = "folder/p.toml";
  const auto main = Profile::parse("[plugins]\ntrust = \"hash\"\nsigners = [\"x\"]\n", sources);
  auto other = Profile::parse("", {"elsewhere/q.toml", {}, {}});
  ASSERT_TRUE(other->inherit(*main).ok());
  EXPECT_EQ(other->text("plugins", "trust"), "hash");
  EXPECT_EQ(std::get<std::vector<std::string>>(other->find("plugins", "signers")->value),
            std::vector<std::string>{"x"});
}

}  // namespace
}  // namespace varve
