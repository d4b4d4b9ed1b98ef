// CheckpointWorkload: a model's state, saved and loaded range by range like in a training run.
//
// Memory:  a few ranges of state in addition to the memory of writer and reader.
// Errors:  errors of the writer and the reader; kCancelled after an interrupt. kCorrupt: the loaded
//          state differs from the saved state.
// The destructor removes the checkpoint and its folder.
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
  double begin_seconds = 0;  // part of `seconds`: until the first range
  double end_seconds = 0;    // part of `seconds`: from the last range on
  std::uint64_t bytes = 0;

  double gb_per_s() const { return static_cast<double>(bytes) / seconds / 1e9; }
};

class CheckpointWorkload {
 public:
  // kBusy: another process uses the same path.
  static Result<std::unique_ptr<CheckpointWorkload>> create(const CheckpointBenchOptions& options);
  ~CheckpointWorkload();
  CheckpointWorkload(const CheckpointWorkload&) = delete;
  CheckpointWorkload& operator=(const CheckpointWorkload&) = delete;

  // Starts from scratch: removes the previous checkpoint first, which is not measured.
  Result<CheckpointPass> save(const tools::Interrupt& interrupt, const OnProgress& on_progress);
  Result<CheckpointPass> load(const tools::Interrupt& interrupt, const OnProgress& on_progress);
  // Checks that every byte loaded is the one saved. Not measured.
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
  const std::string home_;    // used by this object alone
  const std::string folder_;  // the checkpoint's folder in home_
  std::vector<engine::TensorSpec> parameters_;
  std::vector<float> values_;  // every range is a window of it
  std::unique_ptr<aio::IoBackend> backend_;
  std::unique_ptr<aio::IoQueue> queue_;
  std::unique_ptr<aio::FileLock> lock_;
};

}  // namespace sluice::bench
