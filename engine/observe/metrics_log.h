// MetricsLog: metrics.jsonl, one JSON object per step, in one part or in several (log_parts.h).
//
// append() writes a line as a whole to the kernel before it returns. So a run that is killed has
// the lines of all its steps, and at most the last one is torn. A non-finite number is null.
//
// A line may be impossible to write: a full disk, a used-up quota, a file system that has become
// read-only. It then waits in memory with later lines, until an append() or flush() succeeds. At
// most kMostWaitingBytes wait; lines beyond that are lost, and counted.
//
// Threads: one at a time.
// Errors:  name the file, which keeps the whole lines written before. kNewerVersion: a line has a
//          newer schema than this version's.
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
  // Continues after step `last_step`, or begins a new file if there is none. A torn last line is
  // cut off. The lines of later steps, which will be run again, are moved to the end of `cut_path`,
  // also from other parts. Empty `cut_path`: metrics-cut.jsonl in the same folder. kCorrupt names a
  // line that is neither metrics nor torn; then nothing is cut. `part_bytes`: the maximum size of a
  // part, unless one line is larger; 0: a single part.
  static Result<std::unique_ptr<MetricsLog>> resume(const std::string& path, std::int64_t last_step,
                                                    const std::string& cut_path = {},
                                                    std::uint64_t part_bytes = 0);
  ~MetricsLog();  // tries once more to write waiting lines
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  // Not ok: the reason why the line waits, or is lost.
  Status append(const StepMetrics& metrics);
  // Writes the waiting lines.
  Status flush();

  // Enough for about 30,000 ordinary lines.
  static constexpr std::size_t kMostWaitingBytes = std::size_t{16} << 20;
  std::int64_t waiting_lines() const { return waiting_lines_; }
  std::int64_t lost_lines() const { return lost_lines_; }
  const std::string& path() const { return path_; }

  // The last line of the file that resume() continued; nullopt: it began a new one.
  const std::optional<StepMetrics>& last_kept() const { return last_kept_; }
  // The lines that resume() moved, and their file; 0: none.
  std::int64_t cut_lines() const { return cut_lines_; }
  const std::string& cut_path() const { return cut_path_; }

 private:
  MetricsLog(std::string path, int descriptor, std::uint64_t size_bytes)
      : path_(std::move(path)), descriptor_(descriptor), size_bytes_(size_bytes) {}
  // Creates a new file; kAlreadyExists if the name is taken.
  static Result<std::unique_ptr<MetricsLog>> create(const std::string& path);
  std::size_t take_written(std::size_t bytes);
  void begin_part();

  std::string path_;
  int descriptor_;
  std::uint64_t size_bytes_;  // of whole lines in the file
  std::uint64_t part_bytes_ = 0;
  std::uint64_t begin_part_bytes_ = 0;  // minimum size to begin a new part; larger after a failure
  std::string waiting_;                 // whole lines
  std::int64_t waiting_lines_ = 0;
  std::int64_t lost_lines_ = 0;
  std::optional<StepMetrics> last_kept_;
  std::int64_t cut_lines_ = 0;
  std::string cut_path_;
};

// The line that append() writes, with its newline.
std::string metrics_line(const StepMetrics& metrics);

// Every whole line of all parts, of this schema or an older one, without a torn last line. Unknown
// keys are skipped.
Result<std::vector<StepMetrics>> read_metrics(const std::string& path);

}  // namespace sluice::engine
