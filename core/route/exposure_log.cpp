#include "core/route/exposure_log.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <initializer_list>
#include <limits>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/route/exposure_schema.h"

namespace varve {
namespace {

using exposure::Database;
using exposure::FolderLock;
using exposure::Statement;

using Row = std::variant<Exposure, QualitySample, ExperimentEvent>;

constexpr size_t kQueuedRowsMax = 16384;
constexpr size_t kBatchRowsMax = 1024;
constexpr size_t kKeptEventsMax = kBatchRowsMax / 4;
// Rows wait this long for company, so that a transaction carries many.
constexpr auto kBatchWait = std::chrono::milliseconds(100);
// So old is what the file says of open requests when nothing else happens.
constexpr auto kOpenWait = std::chrono::seconds(1);
// After a failure, so that a full disk costs next to nothing.
constexpr auto kRetryWait = std::chrono::seconds(1);
constexpr char kKeptEventsSql[] =
    "INSERT INTO main.event(experiment,what,detail,wall_s) SELECT experiment,what,detail,wall_s "
    "FROM (SELECT * FROM old.event ORDER BY id DESC LIMIT 10000) ORDER BY id;";

// Binds values from left to right. SQLite stores a NaN as NULL.
class Binder {
 public:
  explicit Binder(sqlite3_stmt* statement) : statement_(statement) {}
  Binder& operator<<(const std::string& text) {
    sqlite3_bind_text(statement_, ++at_, text.data(), static_cast<int>(text.size()), SQLITE_STATIC);
    return *this;
  }
  Binder& operator<<(uint64_t number) {
    sqlite3_bind_int64(statement_, ++at_, static_cast<int64_t>(number));
    return *this;
  }
  Binder& operator<<(double real) {
    sqlite3_bind_double(statement_, ++at_, real);
    return *this;
  }

 private:
  sqlite3_stmt* statement_;
  int at_ = 0;
};

void bind_row(Binder to, const Exposure& row) {
  to << row.experiment << uint64_t{row.version} << row.unit_hash << row.arm << row.class_name
     << row.request_id << row.stack_digest << uint64_t{row.forced} << uint64_t{row.burn_in}
     << uint64_t{row.is_shadow} << row.block << row.wall_s << row.ttft_ms << row.gap_p50_ms
     << row.gap_p99_ms << row.total_ms << row.prompt_tokens << row.cached_tokens
     << row.output_tokens << row.hot_bytes << row.warm_bytes << row.cold_bytes << row.finish
     << row.error;
}

void bind_row(Binder to, const QualitySample& row) {
  to << row.experiment << uint64_t{row.version} << row.arm << row.request_id << row.wall_s
     << row.tokens << row.depth_tokens << row.delta_nll << row.mean_kld << row.top1_agreement
     << row.unit_hash;
}

void bind_row(Binder to, const ExperimentEvent& row) {
  to << row.experiment << row.what << row.detail << row.wall_s;
}

// The file and its prepared statements, used by one thread at a time.
class LogFile {
 public:
  explicit LogFile(std::string path) : path_(std::move(path)) {}

  absl::Status open() {
    if (db_ != nullptr) return absl::OkStatus();
    const FolderLock no_rotation(path_, FolderLock::Mode::kShared);
    return open_now();
  }

  void close() {
    for (Statement& statement : statements_) statement.reset();
    db_.reset();
  }

  // All of the rows, and `open` in place of the open requests before; or nothing.
  absl::Status write(const std::vector<Row>& rows, const std::vector<Exposure>& open) {
    absl::Status status = exposure::execute(path_, db_.get(), "BEGIN IMMEDIATE");
    for (size_t i = 0; i < rows.size() && status.ok(); ++i) {
      sqlite3_stmt* insert = statements_[rows[i].index()].get();
      std::visit([&](const auto& row) { bind_row(Binder(insert), row); }, rows[i]);
      status = step(insert);
    }
    if (status.ok()) {
      Binder(statements_[kDeleteOpen].get()) << writer_;
      status = step(statements_[kDeleteOpen].get());
    }
    for (size_t i = 0; i < open.size() && status.ok(); ++i) {
      sqlite3_stmt* insert = statements_[kInsertOpen].get();
      bind_row(Binder(insert) << writer_, open[i]);
      status = step(insert);
    }
    if (status.ok()) status = exposure::execute(path_, db_.get(), "COMMIT");
    if (!status.ok()) sqlite3_exec(db_.get(), "ROLLBACK", nullptr, nullptr, nullptr);
    return status;
  }

  uint64_t bytes() const {
    const auto pages = exposure::read_number(path_, db_.get(), "PRAGMA page_count");
    const auto page = exposure::read_number(path_, db_.get(), "PRAGMA page_size");
    return pages.ok() && page.ok() ? static_cast<uint64_t>(*pages * *page) : 0;
  }

  // Moves the file to "<path>.1" and begins a new one. While somebody reads the file nothing
  // happens: SQLite lets go of the WAL only when nobody else has it open, and a file must not be
  // renamed before.
  absl::Status rotate() {
    const FolderLock lock(path_, FolderLock::Mode::kExclusive);
    if (!lock.is_held()) return absl::OkStatus();
    sqlite3_busy_timeout(db_.get(), 0);
    absl::Status status = exposure::execute(path_, db_.get(), "PRAGMA journal_mode=DELETE");
    if (!status.ok()) {
      close();
      return open_now();
    }
    close();
    const std::string old = old_path();
    std::remove((old + "-wal").c_str());
    std::remove((old + "-shm").c_str());
    if (std::rename(path_.c_str(), old.c_str()) != 0)
      return absl::UnavailableError(absl::StrCat(path_, ": cannot be renamed to ", old));
    return open_now();
  }

 private:
  // The first are those of Row's alternatives.
  enum { kDeleteOpen = std::variant_size_v<Row>, kInsertOpen, kStatements };

  absl::Status step(sqlite3_stmt* statement) {
    const bool is_done = sqlite3_step(statement) == SQLITE_DONE;
    const absl::Status status =
        is_done ? absl::OkStatus() : exposure::database_error(path_, db_.get());
    sqlite3_reset(statement);
    return status;
  }

  absl::Status open_now() {
    absl::StatusOr<Database> db =
        exposure::open_database(path_, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
    if (!db.ok()) return db.status();
    bool is_empty = false;
    absl::Status status = exposure::check_schema(path_, db->get(), is_empty);
    if (!status.ok()) return status;
    status =
        exposure::execute(path_, db->get(), "PRAGMA journal_mode=WAL;PRAGMA synchronous=NORMAL");
    if (status.ok() && is_empty) status = create(db->get());
    if (status.ok()) status = exposure::create_open_table(path_, db->get());
    if (!status.ok()) return status;
    constexpr const char* kSql[] = {exposure::kInsertExposure, exposure::kInsertQuality,
                                    exposure::kInsertEvent, exposure::kDeleteOpen,
                                    exposure::kInsertOpen};
    static_assert(std::size(kSql) == kStatements);
    for (size_t i = 0; i < kStatements; ++i) {
      absl::StatusOr<Statement> statement = exposure::prepare(path_, db->get(), kSql[i]);
      if (!statement.ok()) return statement.status();
      statements_[i] = *std::move(statement);
    }
    db_ = *std::move(db);
    return absl::OkStatus();
  }

  std::string old_path() const { return path_ + ".1"; }

  bool has_old() const {
    bool is_empty = true;
    const absl::StatusOr<Database> old = exposure::open_database(old_path(), SQLITE_OPEN_READWRITE);
    return old.ok() && exposure::check_schema(old_path(), old->get(), is_empty).ok() && !is_empty;
  }

  // Tables, and the events of what was rotated: all or nothing, since a file without the events
  // would let stopped arms run again.
  absl::Status create(sqlite3* db) const {
    if (!has_old()) return exposure::create_schema(path_, db, "");
    absl::StatusOr<Statement> attach = exposure::prepare(path_, db, "ATTACH ?1 AS old");
    if (!attach.ok()) return attach.status();
    const std::string old = old_path();
    Binder(attach->get()) << old;
    if (sqlite3_step(attach->get()) != SQLITE_DONE) return exposure::database_error(path_, db);
    attach->reset();
    const absl::Status status = exposure::create_schema(path_, db, kKeptEventsSql);
    const absl::Status detached = exposure::execute(path_, db, "DETACH old");
    return status.ok() ? detached : status;
  }

  const std::string path_;
  const uint64_t writer_ = std::random_device()();  // whose open requests are whose
  Database db_;
  Statement statements_[kStatements];  // destroyed before the database
};

class SqliteLog final : public ExposureLog {
 public:
  SqliteLog(LogFile file, uint64_t bytes_max) : file_(std::move(file)), bytes_max_(bytes_max) {
    writer_ = std::thread([this] { run(); });
  }
  ~SqliteLog() override {
    {
      MutexLock lock(&mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    writer_.join();
  }

  uint64_t begin(Exposure row) override {
    row.finish = kWaiting;
    row.ttft_ms = row.gap_p50_ms = row.gap_p99_ms = std::numeric_limits<double>::quiet_NaN();
    MutexLock lock(&mutex_);
    open_.emplace(++last_ticket_, Open{std::move(row), std::chrono::steady_clock::now()});
    if (open_.size() == 1) wake_.notify_all();
    return last_ticket_;
  }
  void started(uint64_t ticket) override {
    MutexLock lock(&mutex_);
    open_.at(ticket).row.finish = kRunning;
  }
  void answered(uint64_t ticket) override {
    MutexLock lock(&mutex_);
    Open& open = open_.at(ticket);
    open.row.ttft_ms = open.so_far_ms();
  }
  void end(uint64_t ticket, Exposure row) override {
    MutexLock lock(&mutex_);
    open_.erase(ticket);
    push(std::move(row));
  }
  void forget(uint64_t ticket) override {
    MutexLock lock(&mutex_);
    open_.erase(ticket);
  }
  std::vector<Exposure> open_requests() const override {
    MutexLock lock(&mutex_);
    return open_rows();
  }

  void add(Exposure row) override { add_row(std::move(row)); }
  void add(QualitySample row) override { add_row(std::move(row)); }
  void add(ExperimentEvent row) override { add_row(std::move(row)); }

  void flush() override ABSL_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<Mutex> lock(mutex_);
    const uint64_t mine = ++flushes_wanted_;
    wake_.notify_all();
    flushed_.wait(lock, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return flushes_done_ >= mine; });
  }

  Counts counts() const override {
    MutexLock lock(&mutex_);
    return counts_;
  }

 private:
  struct Open {
    Exposure row;
    std::chrono::steady_clock::time_point since;

    double so_far_ms() const {
      return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - since)
          .count();
    }
  };

  std::vector<Exposure> open_rows() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<Exposure> rows;
    for (const auto& [ticket, open] : open_) {
      rows.push_back(open.row);
      rows.back().total_ms = open.so_far_ms();
    }
    return rows;
  }

  void add_row(Row row) {
    MutexLock lock(&mutex_);
    push(std::move(row));
  }

  void push(Row row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (queue_.size() >= kQueuedRowsMax) {
      ++counts_.dropped;
      return;
    }
    queue_.push_back(std::move(row));
    if (queue_.size() == 1 || queue_.size() == kBatchRowsMax) wake_.notify_all();
  }

  struct Batch {
    std::vector<Row> rows;
    std::vector<Exposure> open;
    uint64_t flushes = 0;  // done with it
  };

  // Waits until there is reason to write, and adds to the batch. `had_open`: so had the last one.
  // False at the end.
  bool next_batch(Batch& batch, bool failed, bool had_open) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<Mutex> lock(mutex_);
    const auto is_urgent = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return stop_ || flushes_wanted_ > flushes_done_;
    };
    const auto has_rows = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return is_urgent() || !queue_.empty();
    };
    if (failed) wake_.wait_for(lock, kRetryWait, is_urgent);
    if (had_open) {
      wake_.wait_for(lock, kOpenWait, has_rows);
    } else {
      wake_.wait(lock,
                 [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return has_rows() || !open_.empty(); });
    }
    wake_.wait_for(lock, kBatchWait, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return is_urgent() || queue_.size() >= kBatchRowsMax;
    });
    const size_t n_kept = batch.rows.size();
    while (!queue_.empty() && batch.rows.size() < kBatchRowsMax) {
      batch.rows.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
    batch.open = open_rows();
    batch.flushes = queue_.empty() ? flushes_wanted_ : flushes_done_;
    return batch.rows.size() > n_kept || !stop_;
  }

  // What a failure leaves to be tried again: events, which say what was stopped.
  static void keep_events(std::vector<Row>& batch) {
    std::erase_if(batch,
                  [](const Row& row) { return !std::holds_alternative<ExperimentEvent>(row); });
    if (batch.size() > kKeptEventsMax)
      batch.erase(batch.begin(), batch.end() - static_cast<std::ptrdiff_t>(kKeptEventsMax));
  }

  void run() {
    Batch batch;
    std::vector<Row>& rows = batch.rows;
    size_t n_kept = 0;
    bool failed = false, had_open = false;
    while (next_batch(batch, failed, had_open)) {
      absl::Status status = file_.open();
      if (status.ok()) status = file_.write(rows, batch.open);
      failed = !status.ok();
      // What an I/O error leaves of a connection is not worth keeping.
      if (failed) file_.close();
      {
        MutexLock lock(&mutex_);
        (failed ? counts_.failed : counts_.written) += rows.size() - n_kept;
        flushes_done_ = batch.flushes;
      }
      flushed_.notify_all();
      failed ? keep_events(rows) : rows.clear();
      n_kept = rows.size();
      had_open = !batch.open.empty();
      if (!failed && bytes_max_ > 0 && file_.bytes() > bytes_max_ && !file_.rotate().ok())
        file_.close();
    }
    if ((!rows.empty() || had_open) && file_.open().ok()) file_.write(rows, {}).IgnoreError();
    file_.close();
  }

  LogFile file_;  // of the writer thread
  const uint64_t bytes_max_;
  mutable Mutex mutex_;
  std::condition_variable_any wake_, flushed_;
  std::deque<Row> queue_ ABSL_GUARDED_BY(mutex_);
  Counts counts_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Open> open_ ABSL_GUARDED_BY(mutex_);  // by ticket
  uint64_t last_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t flushes_wanted_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t flushes_done_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread writer_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ExposureLog>> ExposureLog::open(const std::string& path,
                                                               uint64_t bytes_max) {
  LogFile file(path);
  const absl::Status status = file.open();
  if (!status.ok()) return status;
  return std::make_unique<SqliteLog>(std::move(file), bytes_max);
}

}  // namespace varve
