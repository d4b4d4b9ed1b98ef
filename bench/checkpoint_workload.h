// CheckpointWorkload: a model's state, saved and loaded range by range as a training run does it.
//
// Memory:  a few ranges of state besides what writer and reader take.
// Errors:  those of the writer and the reader; kCancelled after an interrupt. kCorrupt: what was
//          loaded is not what was saved.
// The checkpoint and its folder are removed by the destructor.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aio/io_queue.h"
#include "aio/make_backend.h"
#include "bench/aio_workload.h"
#include "bench/checkpoint_options.h"
#include "engine/weights/safetensors_header.h"
#include "tools/support/interrupt.h"

namespace sluice::bench {

struct CheckpointPass {
  double seconds = 0;
  double begin_seconds = 0;  // of them: until the first range
  double end_seconds = 0;    // of them: from the last range on
  std::uint64_t bytes = 0;

  double gb_per_s() const { return static_cast<double>(bytes) / seconds / 1e9; }
};

class CheckpointWorkload {
 public:
  // kBusy: another one is at work on the same path.
  static Result<std::unique_ptr<CheckpointWorkload>> create(const CheckpointBenchOptions& options);
  ~CheckpointWorkload();
  CheckpointWorkload(const CheckpointWorkload&) = delete;
  CheckpointWorkload& operator=(const CheckpointWorkload&) = delete;

  // From scratch: what was saved before is removed first, which is not measured.
  Result<CheckpointPass> save(const tools::Interrupt& interrupt, const OnProgress& on_progress);
  Result<CheckpointPass> load(const tools::Interrupt& interrupt, const OnProgress& on_progress);
  // Every byte loaded is the one saved. Not measured.
  Status check(const tools::Interrupt& interrupt, const OnProgress& on_progress);
  Status remove();

  std::string backend_name() const { return std::string(backend_->name()); }
  std::uint64_t staging_bytes() const;

 private:
  class Watch;
  explicit CheckpointWorkload(const CheckpointBenchOptions& options);
  Status take_home();
  Result<CheckpointPass> read_all(const tools::Interrupt& interrupt, const OnProgress& on_progress,
                                  bool compare);
  std::span<const float> source(std::size_t field, std::uint64_t element,
                                std::uint64_t count) const;

  const CheckpointBenchOptions options_;
  const std::string home_;    // ours alone
  const std::string folder_;  // the checkpoint's, in it
  std::vector<engine::TensorSpec> parameters_;
  std::vector<float> values_;  // every range is a window of it
  std::unique_ptr<aio::IoBackend> backend_;
  std::unique_ptr<aio::IoQueue> queue_;
  std::unique_ptr<aio::FileLock> lock_;
};

}  // namespace sluice::bench
