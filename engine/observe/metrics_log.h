// MetricsLog: metrics.jsonl, one JSON object per step, in one part or in several (log_parts.h).
//
// A line is handed to the kernel whole before append() returns, so a run that is killed has the
// lines of all its steps, with at most the last one torn. A number that is not finite is null.
//
// A line that cannot be written (a full disk, a used-up quota, a file system that has become
// read-only) waits in memory with those that follow it, and is written by the next append() or
// flush() that can. At most kMostWaitingBytes wait: lines beyond that are lost, and counted.
//
// Threads: one at a time.
// Errors:  name the file, which keeps the whole lines written before. kNewerVersion: a line is of a
//          higher schema than this version writes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/observe/step_metrics.h"

namespace sluice::engine {

class MetricsLog {
 public:
  // Continues after step `last_step` of the file, or begins a new one where there is none. A torn
  // last line is cut off; the lines of later steps, which are about to be run again, are moved to
  // the end of `cut_path` (empty: metrics-cut.jsonl beside metrics.jsonl), those of other parts,
  // too. kCorrupt names the line that is neither metrics nor torn; then nothing is cut.
  // `part_bytes`: no part is larger, unless a line is; 0: there is one.
  static Result<std::unique_ptr<MetricsLog>> resume(const std::string& path, std::int64_t last_step,
                                                    const std::string& cut_path = {},
                                                    std::uint64_t part_bytes = 0);
  ~MetricsLog();  // tries once more to write what waits
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  // Not ok: why the line waits, or is lost.
  Status append(const StepMetrics& metrics);
  // Writes what waits.
  Status flush();

  // About 30,000 ordinary lines.
  static constexpr std::size_t kMostWaitingBytes = std::size_t{16} << 20;
  std::int64_t waiting_lines() const { return waiting_lines_; }
  std::int64_t lost_lines() const { return lost_lines_; }
  const std::string& path() const { return path_; }

  // The last line of the file that resume() continued; nothing: it began one.
  const std::optional<StepMetrics>& last_kept() const { return last_kept_; }
  // What resume() moved, and where; 0: nothing.
  std::int64_t cut_lines() const { return cut_lines_; }
  const std::string& cut_path() const { return cut_path_; }

 private:
  MetricsLog(std::string path, int descriptor, std::uint64_t size_bytes)
      : path_(std::move(path)), descriptor_(descriptor), size_bytes_(size_bytes) {}
  // A new file; what bears the name already is kAlreadyExists.
  static Result<std::unique_ptr<MetricsLog>> create(const std::string& path);
  std::size_t take_written(std::size_t bytes);
  void begin_part();

  std::string path_;
  int descriptor_;
  std::uint64_t size_bytes_;  // of the whole lines in the file
  std::uint64_t part_bytes_ = 0;
  std::uint64_t begin_part_bytes_ = 0;  // beyond this size: part_bytes_, or later after a failure
  std::string waiting_;                 // whole lines
  std::int64_t waiting_lines_ = 0;
  std::int64_t lost_lines_ = 0;
  std::optional<StepMetrics> last_kept_;
  std::int64_t cut_lines_ = 0;
  std::string cut_path_;
};

// With its end, as append() writes it.
std::string metrics_line(const StepMetrics& metrics);

// Every whole line of all parts, of this schema or an older one; a torn last one is left out. Keys
// that this version does not know are skipped.
Result<std::vector<StepMetrics>> read_metrics(const std::string& path);

}  // namespace sluice::engine
