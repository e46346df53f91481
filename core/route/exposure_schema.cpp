#include "core/route/exposure_schema.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace varve::exposure {
namespace {

constexpr char kExposureColumns[] =
    "experiment TEXT NOT NULL,"
    " version INTEGER NOT NULL, unit_hash INTEGER NOT NULL, arm TEXT NOT NULL,"
    " class_name TEXT NOT NULL, request_id TEXT NOT NULL, stack_digest TEXT NOT NULL,"
    " forced INTEGER NOT NULL, burn_in INTEGER NOT NULL, is_shadow INTEGER NOT NULL,"
    " block INTEGER NOT NULL, wall_s REAL NOT NULL, ttft_ms REAL, gap_p50_ms REAL,"
    " gap_p99_ms REAL, total_ms REAL, prompt_tokens INTEGER NOT NULL,"
    " cached_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, hot_bytes INTEGER NOT NULL,"
    " warm_bytes INTEGER NOT NULL, cold_bytes INTEGER NOT NULL, finish TEXT NOT NULL,"
    " error TEXT NOT NULL";

constexpr char kOtherTables[] =
    "CREATE INDEX exposure_experiment ON exposure(experiment, version);"
    "CREATE TABLE quality(id INTEGER PRIMARY KEY, experiment TEXT NOT NULL,"
    " version INTEGER NOT NULL, arm TEXT NOT NULL, request_id TEXT NOT NULL,"
    " wall_s REAL NOT NULL, tokens INTEGER NOT NULL, depth_tokens INTEGER NOT NULL,"
    " delta_nll REAL, mean_kld REAL, top1_agreement REAL, unit_hash INTEGER NOT NULL);"
    "CREATE INDEX quality_experiment ON quality(experiment, version);"
    "CREATE TABLE event(id INTEGER PRIMARY KEY, experiment TEXT NOT NULL, what TEXT NOT NULL,"
    " detail TEXT NOT NULL, wall_s REAL NOT NULL);";

absl::StatusCode code_of(int error) {
  switch (error & 0xff) {
    case SQLITE_FULL:
      return absl::StatusCode::kResourceExhausted;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::StatusCode::kDataLoss;
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH:
      return absl::StatusCode::kPermissionDenied;
    case SQLITE_CANTOPEN:
      return absl::StatusCode::kNotFound;
    default:
      return absl::StatusCode::kUnavailable;
  }
}

const char* advice_for(int error) {
  switch (error & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return "; expected an exposure log: move the file aside, a new one will be made";
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
      return "; expected a file, in a folder, that this process may read and write";
    case SQLITE_FULL:
      return "; free space on its disk";
    default:
      return "";
  }
}

}  // namespace

FolderLock::FolderLock(const std::string& path, Mode mode) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  folder_ = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_ < 0) return;
  const int operation = mode == Mode::kShared ? LOCK_SH : LOCK_EX | LOCK_NB;
  int result = 0;
  do result = flock(folder_, operation);
  while (result != 0 && errno == EINTR);
  is_held_ = result == 0 || errno != EWOULDBLOCK;
}

FolderLock::~FolderLock() {
  if (folder_ >= 0) ::close(folder_);
}

absl::Status database_error(const std::string& path, sqlite3* db) {
  const int error = db == nullptr ? SQLITE_NOMEM : sqlite3_errcode(db);
  const char* text = db == nullptr ? "out of memory" : sqlite3_errmsg(db);
  return absl::Status(code_of(error), absl::StrCat(path, ": ", text, advice_for(error)));
}

absl::StatusOr<Database> open_database(const std::string& path, int flags) {
  constexpr int kBusyMsMax = 2000;
  sqlite3* raw = nullptr;
  const int error = sqlite3_open_v2(path.c_str(), &raw, flags | SQLITE_OPEN_NOMUTEX, nullptr);
  Database db(raw);
  if (error != SQLITE_OK) return database_error(path, raw);
  sqlite3_busy_timeout(raw, kBusyMsMax);
  return db;
}

absl::Status execute(const std::string& path, sqlite3* db, const char* sql) {
  if (sqlite3_exec(db, sql, nullptr, nullptr, nullptr) == SQLITE_OK) return absl::OkStatus();
  return database_error(path, db);
}

absl::StatusOr<Statement> prepare(const std::string& path, sqlite3* db, const char* sql) {
  sqlite3_stmt* raw = nullptr;
  if (sqlite3_prepare_v2(db, sql, -1, &raw, nullptr) != SQLITE_OK) return database_error(path, db);
  return Statement(raw);
}

absl::StatusOr<int64_t> read_number(const std::string& path, sqlite3* db, const char* sql) {
  const absl::StatusOr<Statement> statement = prepare(path, db, sql);
  if (!statement.ok()) return statement.status();
  if (sqlite3_step(statement->get()) != SQLITE_ROW) return database_error(path, db);
  return sqlite3_column_int64(statement->get(), 0);
}

absl::Status check_schema(const std::string& path, sqlite3* db, bool& is_empty) {
  const auto n_tables = read_number(path, db, "SELECT count(*) FROM sqlite_master");
  if (!n_tables.ok()) return n_tables.status();
  is_empty = *n_tables == 0;
  if (is_empty) return absl::OkStatus();
  const auto application = read_number(path, db, "PRAGMA application_id");
  if (!application.ok()) return application.status();
  if (*application != kApplicationId) {
    return absl::FailedPreconditionError(
        absl::StrCat(path,
                     ": found another program's database; expected an exposure log: name "
                     "another file in server.experiment_log_path"));
  }
  const auto version = read_number(path, db, "PRAGMA user_version");
  if (!version.ok()) return version.status();
  if (*version < 1 || *version > kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ": found schema version ", *version, "; expected 1 to ", kSchemaVersion,
        ": use the newer varve that wrote it, or move the file aside to begin a new one"));
  }
  return absl::OkStatus();
}

absl::Status create_schema(const std::string& path, sqlite3* db, const std::string& more_sql) {
  const std::string sql = absl::StrCat("BEGIN IMMEDIATE;PRAGMA application_id=", kApplicationId,
                                       ";PRAGMA user_version=", kSchemaVersion,
                                       ";CREATE TABLE exposure(id INTEGER PRIMARY KEY,",
                                       kExposureColumns, ");", kOtherTables, more_sql, "COMMIT;");
  const absl::Status status = execute(path, db, sql.c_str());
  if (!status.ok()) sqlite3_exec(db, "ROLLBACK", nullptr, nullptr, nullptr);
  return status;
}

absl::Status create_open_table(const std::string& path, sqlite3* db) {
  const std::string sql =
      absl::StrCat("BEGIN IMMEDIATE;CREATE TABLE IF NOT EXISTS open(writer INTEGER NOT NULL,",
                   kExposureColumns, ");COMMIT");
  const absl::Status status = execute(path, db, sql.c_str());
  if (!status.ok()) sqlite3_exec(db, "ROLLBACK", nullptr, nullptr, nullptr);
  return status;
}

std::string select_exposures(const char* table) {
  return absl::StrCat(
      "SELECT experiment,version,unit_hash,arm,class_name,request_id,stack_digest,"
      "forced,burn_in,is_shadow,block,wall_s,ttft_ms,gap_p50_ms,gap_p99_ms,total_ms,prompt_tokens,"
      "cached_tokens,output_tokens,hot_bytes,warm_bytes,cold_bytes,finish,error FROM ",
      table, " WHERE ?1='' OR (experiment=?1 AND version=?2) ORDER BY rowid");
}

}  // namespace varve::exposure
