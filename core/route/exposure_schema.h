// What writer and reader of the exposure log share: SQLite handles, and the tables.
#pragma once

#include <sqlite3.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace varve::exposure {

// In user_version. A reader knows every version up to its own. Within one, files may lack the table
// of open requests.
inline constexpr int kSchemaVersion = 1;
inline constexpr int kApplicationId = 0x56415256;  // "VARV"

struct CloseDatabase {
  void operator()(sqlite3* db) const { sqlite3_close_v2(db); }
};
struct FinaliseStatement {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;
using Statement = std::unique_ptr<sqlite3_stmt, FinaliseStatement>;

// Lock of a log's folder: shared while somebody opens or reads the log, exclusive (never waited
// for) while it is rotated. SQLite does not stand that a file is renamed while another one opens
// it: the journal that is found under its name may be the next file's, and is used to empty it.
class FolderLock {
 public:
  enum class Mode { kShared, kExclusive };
  FolderLock(const std::string& path, Mode mode);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  // False when others have it. Where folders cannot be locked at all, it counts as held.
  bool is_held() const { return is_held_; }

 private:
  int folder_ = -1;
  bool is_held_ = true;
};

// "<path>: <what SQLite says>"; kResourceExhausted for a full disk, kDataLoss for a damaged file,
// kPermissionDenied for one that cannot be written.
absl::Status database_error(const std::string& path, sqlite3* db);

// `flags`: SQLITE_OPEN_*.
absl::StatusOr<Database> open_database(const std::string& path, int flags);
absl::Status execute(const std::string& path, sqlite3* db, const char* sql);
absl::StatusOr<Statement> prepare(const std::string& path, sqlite3* db, const char* sql);
absl::StatusOr<int64_t> read_number(const std::string& path, sqlite3* db, const char* sql);

// The file is an exposure log of a version known here. `is_empty`: it has no tables at all.
absl::Status check_schema(const std::string& path, sqlite3* db, bool& is_empty);
// With `more_sql` in the same transaction.
absl::Status create_schema(const std::string& path, sqlite3* db, const std::string& more_sql);
// Where it is not there. Fails where the file or its folder cannot be written.
absl::Status create_open_table(const std::string& path, sqlite3* db);

inline constexpr char kInsertExposure[] =
    "INSERT INTO exposure(experiment,version,unit_hash,arm,class_name,request_id,stack_digest,"
    "forced,burn_in,is_shadow,block,wall_s,ttft_ms,gap_p50_ms,gap_p99_ms,total_ms,prompt_tokens,"
    "cached_tokens,output_tokens,hot_bytes,warm_bytes,cold_bytes,finish,error) "
    "VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)";
// The table of requests under way, which a writer makes where a file lacks it: their rows, replaced
// by each writer with every transaction, so that all readers find a request either there or among
// the exposures.
inline constexpr char kDeleteOpen[] = "DELETE FROM open WHERE writer=?";
inline constexpr char kInsertOpen[] =
    "INSERT INTO open VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)";
inline constexpr char kHasOpen[] = "SELECT count(*) FROM sqlite_master WHERE name='open'";
// Of `table`, exposure or open, in the order of writing.
std::string select_exposures(const char* table);
inline constexpr char kInsertQuality[] =
    "INSERT INTO quality(experiment,version,arm,request_id,wall_s,tokens,depth_tokens,delta_nll,"
    "mean_kld,top1_agreement,unit_hash) VALUES(?,?,?,?,?,?,?,?,?,?,?)";
inline constexpr char kSelectQuality[] =
    "SELECT experiment,version,arm,request_id,wall_s,tokens,depth_tokens,delta_nll,"
    "mean_kld,top1_agreement,unit_hash FROM quality "
    "WHERE ?1='' OR (experiment=?1 AND version=?2) ORDER BY id";
inline constexpr char kInsertEvent[] =
    "INSERT INTO event(experiment,what,detail,wall_s) VALUES(?,?,?,?)";
inline constexpr char kSelectEvent[] =
    "SELECT experiment,what,detail,wall_s FROM event WHERE ?1='' OR experiment=?1 ORDER BY id";

}  // namespace varve::exposure
