#include <unistd.h>

#include <cmath>
#include <limits>

#include "core/route/exposure_log.h"
#include "core/route/exposure_schema.h"

namespace varve {
namespace {

using exposure::Database;
using exposure::Statement;

// Reads the columns of one row from left to right.
class Columns {
 public:
  explicit Columns(sqlite3_stmt* row) : row_(row) {}
  std::string text() {
    const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(row_, at_));
    const auto n = static_cast<size_t>(sqlite3_column_bytes(row_, at_++));
    return bytes == nullptr ? std::string() : std::string(bytes, n);
  }
  uint64_t number() { return static_cast<uint64_t>(sqlite3_column_int64(row_, at_++)); }
  double real() {
    const int at = at_++;
    return sqlite3_column_type(row_, at) == SQLITE_NULL ? std::numeric_limits<double>::quiet_NaN()
                                                        : sqlite3_column_double(row_, at);
  }

 private:
  sqlite3_stmt* row_;
  int at_ = 0;
};

void read_row(Columns from, Exposure& row) {
  row.experiment = from.text();
  row.version = static_cast<uint32_t>(from.number());
  row.unit_hash = from.number();
  for (std::string* text : {&row.arm, &row.class_name, &row.request_id, &row.stack_digest})
    *text = from.text();
  for (bool* flag : {&row.forced, &row.burn_in, &row.is_shadow}) *flag = from.number() != 0;
  row.block = from.number();
  for (double* real : {&row.wall_s, &row.ttft_ms, &row.gap_p50_ms, &row.gap_p99_ms, &row.total_ms})
    *real = from.real();
  for (uint64_t* number : {&row.prompt_tokens, &row.cached_tokens, &row.output_tokens,
                           &row.hot_bytes, &row.warm_bytes, &row.cold_bytes})
    *number = from.number();
  row.finish = from.text();
  row.error = from.text();
}

void read_row(Columns from, QualitySample& row) {
  row.experiment = from.text();
  row.version = static_cast<uint32_t>(from.number());
  row.arm = from.text();
  row.request_id = from.text();
  row.wall_s = from.real();
  row.tokens = from.number();
  row.depth_tokens = from.number();
  for (double* real : {&row.delta_nll, &row.mean_kld, &row.top1_agreement}) *real = from.real();
  row.unit_hash = from.number();
}

void read_row(Columns from, ExperimentEvent& row) {
  row.experiment = from.text();
  row.what = from.text();
  row.detail = from.text();
  row.wall_s = from.real();
}

template <class Row>
absl::Status read_query(const std::string& path, sqlite3* db, const std::string& sql,
                        const std::string& experiment, uint32_t version, std::vector<Row>& rows) {
  const absl::StatusOr<Statement> statement = exposure::prepare(path, db, sql.c_str());
  if (!statement.ok()) return statement.status();
  sqlite3_stmt* query = statement->get();
  sqlite3_bind_text(query, 1, experiment.data(), static_cast<int>(experiment.size()),
                    SQLITE_STATIC);
  if (sqlite3_bind_parameter_count(query) > 1) sqlite3_bind_int64(query, 2, version);
  int step = SQLITE_ROW;
  while ((step = sqlite3_step(query)) == SQLITE_ROW) {
    rows.emplace_back();
    read_row(Columns(query), rows.back());
  }
  return step == SQLITE_DONE ? absl::OkStatus() : exposure::database_error(path, db);
}

template <class Row>
absl::Status read_file(const std::string& path, const std::string& sql,
                       const std::string& experiment, uint32_t version, bool with_open,
                       std::vector<Row>& rows) {
  // Reading a WAL needs its shared memory file, which a reader may have to make.
  absl::StatusOr<Database> db = exposure::open_database(path, SQLITE_OPEN_READWRITE);
  if (!db.ok()) db = exposure::open_database(path, SQLITE_OPEN_READONLY);
  if (!db.ok()) return db.status();
  bool is_empty = false;
  absl::Status status = exposure::check_schema(path, db->get(), is_empty);
  if (!status.ok() || is_empty) return status;
  // All at one moment, so that a request that ends meanwhile is there once.
  status = exposure::execute(path, db->get(), "BEGIN");
  if (status.ok()) status = read_query(path, db->get(), sql, experiment, version, rows);
  if (!status.ok() || !with_open) return status;
  const auto has_open = exposure::read_number(path, db->get(), exposure::kHasOpen);
  if (!has_open.ok() || *has_open == 0) return has_open.status();
  return read_query(path, db->get(), exposure::select_exposures("open"), experiment, version, rows);
}

template <class Row>
absl::StatusOr<std::vector<Row>> read_rows(const std::string& path, const std::string& sql,
                                           const std::string& experiment, uint32_t version,
                                           bool with_rotated, bool with_open = false) {
  const exposure::FolderLock no_rotation(path, exposure::FolderLock::Mode::kShared);
  std::vector<Row> rows;
  const std::string rotated = path + ".1";
  if (with_rotated && access(rotated.c_str(), F_OK) == 0) {
    const absl::Status status = read_file(rotated, sql, experiment, version, false, rows);
    if (!status.ok()) return status;
  }
  const absl::Status status = read_file(path, sql, experiment, version, with_open, rows);
  if (!status.ok()) return status;
  return rows;
}

}  // namespace

absl::StatusOr<std::vector<Exposure>> read_exposures(const std::string& path,
                                                     const std::string& experiment,
                                                     uint32_t version) {
  return read_rows<Exposure>(path, exposure::select_exposures("exposure"), experiment, version,
                             true, true);
}

absl::StatusOr<std::vector<QualitySample>> read_quality(const std::string& path,
                                                        const std::string& experiment,
                                                        uint32_t version) {
  return read_rows<QualitySample>(path, exposure::kSelectQuality, experiment, version, true);
}

absl::StatusOr<std::vector<ExperimentEvent>> read_events(const std::string& path,
                                                         const std::string& experiment) {
  // Rotation takes the events along.
  return read_rows<ExperimentEvent>(path, exposure::kSelectEvent, experiment, 0, false);
}

absl::StatusOr<std::vector<std::string>> read_experiments(const std::string& path) {
  constexpr char kNames[] =
      "SELECT experiment,'','',0 FROM (SELECT experiment FROM exposure UNION "
      "SELECT experiment FROM event UNION SELECT experiment FROM quality) WHERE ?1='' ORDER BY 1";
  const auto rows = read_rows<ExperimentEvent>(path, kNames, "", 0, false);
  if (!rows.ok()) return rows.status();
  std::vector<std::string> names;
  for (const ExperimentEvent& row : *rows) names.push_back(row.experiment);
  return names;
}

}  // namespace varve
