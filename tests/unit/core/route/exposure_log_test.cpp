#include "core/route/exposure_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <deque>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"

namespace varve {
namespace {

using testing::HasSubstr;

class ExposureLogTest : public testing::Test {
 protected:
  ExposureLogTest() {
    std::string pattern = testing::TempDir() + "exposure_XXXXXX";
    folder_ = mkdtemp(pattern.data());
    path_ = folder_ + "/log.sqlite";
  }
  ~ExposureLogTest() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<ExposureLog> open(uint64_t bytes_max = 0) {
    auto log = ExposureLog::open(path_, bytes_max);
    EXPECT_TRUE(log.ok()) << log.status();
    return log.ok() ? *std::move(log) : nullptr;
  }
  static Exposure row(uint64_t number) {
    Exposure row;
    row.experiment = "memory";
    row.version = 2;
    row.unit_hash = ~number;
    row.arm = "lossy";
    row.class_name = "vip";
    row.request_id = absl::StrCat("request-", number);
    row.wall_s = 1e9 + static_cast<double>(number);
    row.ttft_ms = 12.5;
    row.gap_p50_ms = std::nan("");
    row.prompt_tokens = number;
    row.finish = "stop";
    return row;
  }
  // Runs in a process of its own and returns its wait status.
  template <class Body>
  static int in_child(Body body) {
    const pid_t child = fork();
    if (child == 0) _exit(body());
    int status = 0;
    waitpid(child, &status, 0);
    return status;
  }
  void sql(const char* statement) {
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open(path_.c_str(), &db), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(db, statement, nullptr, nullptr, nullptr), SQLITE_OK)
        << sqlite3_errmsg(db);
    sqlite3_close(db);
  }
  size_t n_rows() {
    const auto rows = read_exposures(path_, "", 0);
    EXPECT_TRUE(rows.ok()) << rows.status();
    return rows.ok() ? rows->size() : 0;
  }

  std::string folder_, path_;
};

TEST_F(ExposureLogTest, KeepsEveryFieldAndReadsWhileItWrites) {
  const auto log = open();
  Exposure written = row(7);
  written.forced = written.is_shadow = true;
  written.block = 9;
  written.hot_bytes = uint64_t{1} << 40;
  written.error = "Internal";
  log->add(written);
  log->add(QualitySample{"memory", 2, "lossy", "request-7", 5, 256, 4096, 0.25, 0.5, 0.75, 42});
  log->add(ExperimentEvent{"memory", "arm stopped", "too slow", 6});
  log->flush();
  EXPECT_EQ(log->counts().written, 3u);
  const auto rows = read_exposures(path_, "memory", 2);
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 1u);
  const Exposure& read = rows->front();
  EXPECT_EQ(read.unit_hash, ~uint64_t{7});
  EXPECT_EQ(read.request_id, "request-7");
  EXPECT_TRUE(read.forced && read.is_shadow && !read.burn_in);
  EXPECT_EQ(read.block, 9u);
  EXPECT_EQ(read.ttft_ms, 12.5);
  EXPECT_TRUE(std::isnan(read.gap_p50_ms));
  EXPECT_EQ(read.hot_bytes, uint64_t{1} << 40);
  EXPECT_EQ(read.error, "Internal");
  EXPECT_EQ(read_exposures(path_, "memory", 1)->size(), 0u);
  const auto samples = read_quality(path_, "memory", 2);
  ASSERT_EQ(samples->size(), 1u);
  EXPECT_EQ(samples->front().unit_hash, 42u);
  EXPECT_EQ(samples->front().top1_agreement, 0.75);
  ASSERT_EQ(read_events(path_, "memory")->size(), 1u);
  EXPECT_EQ(read_events(path_, "memory")->front().detail, "too slow");
  EXPECT_THAT(*read_experiments(path_), testing::ElementsAre("memory"));
}

TEST_F(ExposureLogTest, ComesBackWithWhatWasThere) {
  open()->add(row(1));
  open()->add(row(2));
  EXPECT_EQ(n_rows(), 2u);
}

TEST_F(ExposureLogTest, TakesRowsFromManyThreads) {
  const auto log = open();
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 200; ++i) log->add(row(1000 * t + i));
      log->flush();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(log->counts().written, 800u);
  EXPECT_EQ(n_rows(), 800u);
}

TEST_F(ExposureLogTest, DropsAndCountsWhatTheQueueCannotHold) {
  const auto log = open();
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  for (uint64_t i = 0; i < 20000; ++i) log->add(row(i));  // nobody can write meanwhile
  EXPECT_GT(log->counts().dropped, 0u);
  sqlite3_close(db);
  log->flush();
  const ExposureLog::Counts counts = log->counts();
  EXPECT_EQ(counts.written + counts.failed + counts.dropped, 20000u);
  EXPECT_EQ(n_rows(), counts.written);
}

TEST_F(ExposureLogTest, HasWhatIsUnderWay) {
  const auto log = open();
  const uint64_t first = log->begin(row(1)), second = log->begin(row(2));
  log->started(second);
  const auto read = [&] {
    log->flush();
    auto rows = read_exposures(path_, "memory", 2);
    EXPECT_TRUE(rows.ok()) << rows.status();
    return rows.ok() ? *std::move(rows) : std::vector<Exposure>();
  };
  std::vector<Exposure> rows = read();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_TRUE(is_open(rows[0]) && is_open(rows[1]));
  EXPECT_EQ(rows[0].finish, kWaiting);
  EXPECT_EQ(rows[1].finish, kRunning);
  EXPECT_EQ(rows[1].unit_hash, ~uint64_t{2});
  EXPECT_EQ(rows[1].wall_s, 1e9 + 2);
  EXPECT_TRUE(std::isnan(rows[1].ttft_ms));
  EXPECT_GE(rows[1].total_ms, 0);
  EXPECT_TRUE(read_exposures(path_, "memory", 1)->empty());
  log->answered(second);
  EXPECT_GE(read()[1].ttft_ms, 0);
  EXPECT_EQ(log->open_requests().size(), 2u);
  log->forget(first);
  log->end(second, row(2));
  rows = read();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_FALSE(is_open(rows[0]));
  EXPECT_EQ(rows[0].ttft_ms, 12.5);
}

TEST_F(ExposureLogTest, AReaderFindsEachRequestOnce) {
  const auto log = open();
  std::atomic<bool> done{false};
  std::thread traffic([&] {
    std::deque<std::pair<uint64_t, uint64_t>> running;  // ticket, number
    for (uint64_t i = 0; i < 1500; ++i) {
      running.emplace_back(log->begin(row(i)), i);
      if (running.size() < 20) continue;
      log->end(running.front().first, row(running.front().second));
      running.pop_front();
      if (i % 5 == 0) log->flush();
    }
    done = true;
  });
  std::set<std::string> before;
  while (!done) {
    const auto rows = read_exposures(path_, "", 0);
    EXPECT_TRUE(rows.ok()) << rows.status();
    if (!rows.ok()) break;
    std::set<std::string> seen;
    for (const Exposure& one : *rows) EXPECT_TRUE(seen.insert(one.request_id).second);
    EXPECT_TRUE(std::includes(seen.begin(), seen.end(), before.begin(), before.end()));
    before = std::move(seen);
  }
  traffic.join();
  EXPECT_FALSE(before.empty());
}

TEST_F(ExposureLogTest, WhatAKilledServerLeftStaysOpen) {
  const int status = in_child([&] {
    auto log = ExposureLog::open(path_, 0);
    if (!log.ok()) return 1;
    (*log)->begin(row(1));
    (*log)->flush();
    kill(getpid(), SIGKILL);
    return 0;
  });
  EXPECT_TRUE(WIFSIGNALED(status));
  auto log = open();
  const uint64_t ticket = log->begin(row(2));
  log->flush();
  EXPECT_EQ(n_rows(), 2u);
  log->forget(ticket);
  log.reset();
  const auto rows = read_exposures(path_, "", 0);
  ASSERT_EQ(rows->size(), 1u);
  EXPECT_EQ(rows->front().request_id, "request-1");
  EXPECT_TRUE(is_open(rows->front()));
}

TEST_F(ExposureLogTest, KnowsFilesWithoutATableOfOpenRequests) {
  open()->add(row(1));
  sql("DROP TABLE open");
  EXPECT_EQ(n_rows(), 1u);
  const auto log = open();
  log->begin(row(2));
  log->flush();
  EXPECT_EQ(n_rows(), 2u);
}

TEST_F(ExposureLogTest, RotatesAndKeepsTheEvents) {
  const auto log = open(64 << 10);
  log->add(ExperimentEvent{"memory", "started", "{}", 1});
  log->begin(row(1000000));
  uint64_t n = 0;
  while (!std::filesystem::exists(path_ + ".1")) {
    for (int i = 0; i < 200; ++i) log->add(row(n++));
    log->flush();
    ASSERT_LT(n, 100000u);
  }
  log->add(row(n++));
  log->flush();
  EXPECT_EQ(n_rows(), n + 1);  // both files, and what is open once
  EXPECT_LT(std::filesystem::file_size(path_), std::filesystem::file_size(path_ + ".1"));
  ASSERT_EQ(read_events(path_, "memory")->size(), 1u);
}

TEST_F(ExposureLogTest, ARotationHidesNothingFromAReader) {
  const auto log = open(64 << 10);
  log->add(ExperimentEvent{"memory", "started", "{}", 1});
  log->add(row(0));
  log->flush();
  std::atomic<bool> is_over{false};
  std::thread writer([&] {
    for (uint64_t n = 1; n < 60'000; ++n) {
      log->add(row(n));
      if (n % 200 == 0) log->flush();
    }
    is_over = true;
  });
  while (!is_over) {
    const auto rows = read_exposures(path_, "", 0);
    EXPECT_TRUE(rows.ok() && !rows->empty()) << rows.status();
    const auto events = read_events(path_, "memory");
    EXPECT_TRUE(events.ok()) << events.status();
    EXPECT_EQ(events.ok() ? events->size() : 0, 1u);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  writer.join();
  EXPECT_TRUE(std::filesystem::exists(path_ + ".1"));
}

TEST_F(ExposureLogTest, ACrashInTheMiddleOfARotationLosesNoEvent) {
  auto log = open();
  log->add(ExperimentEvent{"memory", "arm stopped", "{}", 1});
  log.reset();
  std::filesystem::rename(path_, path_ + ".1");
  open();
  EXPECT_EQ(read_events(path_, "memory")->size(), 1u);
  // One that nobody can read is left alone.
  std::filesystem::remove(path_);
  std::ofstream(path_ + ".1") << std::string(10000, 'x');
  open();
  EXPECT_EQ(read_events(path_, "memory")->size(), 0u);
}

TEST_F(ExposureLogTest, PutsRotationOffWhileSomebodyReads) {
  const auto log = open(64 << 10);
  log->add(row(0));
  log->flush();
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "BEGIN; SELECT count(*) FROM exposure", nullptr, nullptr, nullptr),
            SQLITE_OK);
  for (uint64_t i = 1; i < 3000; ++i) log->add(row(i));
  log->flush();
  log->add(row(3000));
  log->flush();
  EXPECT_FALSE(std::filesystem::exists(path_ + ".1"));
  sqlite3_close(db);
  EXPECT_EQ(log->counts().written, 3001u);
  EXPECT_EQ(n_rows(), 3001u);
}

TEST_F(ExposureLogTest, SaysWhatIsWrongWithTheFile) {
  open();
  sql("PRAGMA user_version=9");
  EXPECT_THAT(ExposureLog::open(path_, 0).status().message(),
              testing::AllOf(HasSubstr("found schema version 9"), HasSubstr("expected 1 to 1"),
                             HasSubstr("newer varve")));
  EXPECT_THAT(read_exposures(path_, "", 0).status().message(), HasSubstr("schema version 9"));

  std::filesystem::remove(path_);
  sql("CREATE TABLE notes(text)");
  EXPECT_THAT(ExposureLog::open(path_, 0).status().message(), HasSubstr("another program's"));

  std::ofstream(path_, std::ios::trunc) << std::string(8192, 'x');
  EXPECT_EQ(ExposureLog::open(path_, 0).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(read_exposures(path_, "", 0).status().message(), HasSubstr("move the file aside"));
  EXPECT_EQ(read_exposures(folder_ + "/none", "", 0).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ExposureLogTest, SurvivesAFileDamagedInTheMiddle) {
  {
    const auto log = open();
    for (uint64_t i = 0; i < 3000; ++i) log->add(row(i));
  }
  std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(8192);
  file << std::string(65536, '\xee');
  file.close();
  const auto rows = read_exposures(path_, "", 0);
  EXPECT_EQ(rows.status().code(), absl::StatusCode::kDataLoss);
  const auto log = ExposureLog::open(path_, 0);
  if (!log.ok()) return;
  for (uint64_t i = 0; i < 3000; ++i) (*log)->add(row(i));
  (*log)->flush();
  const ExposureLog::Counts counts = (*log)->counts();
  EXPECT_EQ(counts.written + counts.failed, 3000u);
}

TEST_F(ExposureLogTest, RefusesAFolderThatCannotBeWritten) {
  const int status = in_child([&] {
    std::filesystem::permissions(folder_, std::filesystem::perms(0555));
    if (getuid() == 0 && setuid(65534) != 0) return 1;
    const absl::Status opened = ExposureLog::open(path_, 0).status();
    return opened.message().find("may read and write") != std::string::npos ? 0 : 2;
  });
  std::filesystem::permissions(folder_, std::filesystem::perms(0755));
  EXPECT_EQ(status, 0);
}

TEST_F(ExposureLogTest, CountsWhatAFullDiskRefusesAndGoesOnWhenThereIsRoom) {
  const int status = in_child([&] {
    signal(SIGXFSZ, SIG_IGN);
    auto log = ExposureLog::open(path_, 0);
    if (!log.ok()) return 1;
    (*log)->add(row(0));
    (*log)->flush();
    if ((*log)->counts().written != 1) return 2;
    const rlimit tiny{16 << 10, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &tiny);
    (*log)->add(ExperimentEvent{"memory", "arm stopped", "{}", 1});
    for (uint64_t i = 0; i < 500; ++i) (*log)->add(row(i));
    (*log)->flush();
    if ((*log)->counts().failed != 501) return 3;
    const rlimit plenty{RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &plenty);
    for (uint64_t i = 0; i < 500; ++i) (*log)->add(row(i));
    (*log)->flush();
    return (*log)->counts().written == 501 ? 0 : 4;
  });
  EXPECT_EQ(status, 0) << WEXITSTATUS(status);
  EXPECT_EQ(n_rows(), 501u);
  EXPECT_EQ(read_events(path_, "memory")->size(), 1u);  // a stop is not lost
}

TEST_F(ExposureLogTest, AKilledWriterLosesNothingThatWasFlushed) {
  const int status = in_child([&] {
    auto log = ExposureLog::open(path_, 0);
    if (!log.ok()) return 1;
    for (uint64_t i = 0; i < 300; ++i) (*log)->add(row(i));
    (*log)->flush();
    for (uint64_t i = 0; i < 5000; ++i) (*log)->add(row(1000 + i));
    kill(getpid(), SIGKILL);
    return 0;
  });
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_GE(n_rows(), 300u);
  const auto log = open();
  log->add(row(1));
  log->flush();
  EXPECT_EQ(log->counts().written, 1u);
}

}  // namespace
}  // namespace varve
