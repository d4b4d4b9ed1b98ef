// ParameterSpill: parameters of a module that is being made, of which no more lie in memory than a
// budget allows: what was used last stays, and the others go to NVMe (spill_files.h).
//
//   spill->adopt(parameter);              // its storage's memory is the spill's from now on
//   ParameterSpill::touch(tensors, use);  // before an operator: what they are, or are views of, is
//                                         // in memory until the next call
//   spill->flush();                       // all of it is on the drives
//
// A storage whose memory is away throws at every access, through whichever tensor: code that gets
// past touch() ends with a sentence, and never reads anything else. The storage owns its values:
// they go with the last tensor that has it, and the files with the last value.
//
// Memory:  `cache_bytes`, or what the tensors of one touch() have where that is more; SpillFiles'.
// Threads: any, one at a time; but a thread must not use values that another one's touch() may
//          send away meanwhile. Nothing waits for Python's GIL while it has the mutex.
// Forks:   what ends in a forked process leaves all that it has to its parent.
// Errors:  kNoSpace, an operation of a drive, or kCorrupt, with the parameter's shape; values that
//          could not be written stay in memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <unistd.h>

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "aio/result.h"
#include "engine/config/config.h"
#include "engine/module/spill_files.h"

namespace sluice::engine {

class ParameterSpill : public std::enable_shared_from_this<ParameterSpill> {
 public:
  // Null: the configuration names no folder on NVMe. Without `cache_bytes`, half of
  // what budget.cpu_gib leaves beside the program, or a quarter of what the machine has free.
  static Result<std::shared_ptr<ParameterSpill>> create(const config::Config& config,
                                                        std::optional<std::uint64_t> cache_bytes,
                                                        int local_ranks);
  ~ParameterSpill();
  ParameterSpill(const ParameterSpill&) = delete;
  ParameterSpill& operator=(const ParameterSpill&) = delete;

  // False for what is left alone: not on the CPU, without memory of its own, or of a spill already.
  Result<bool> adopt(const at::Tensor& tensor);
  Status flush();

  struct Stats {
    std::uint64_t values = 0;
    std::uint64_t value_bytes = 0;
    std::uint64_t resident_bytes = 0;
    std::uint64_t most_resident_bytes = 0;
    std::uint64_t written_bytes = 0;
    std::uint64_t read_bytes = 0;
  };
  Stats stats() const;
  std::uint64_t cache_bytes() const { return cache_bytes_; }

  // Of whichever spills the tensors are; others are left alone.
  enum class Use : std::uint8_t {
    kRead,
    kChange,   // possibly
    kAddress,  // is handed out: the values stay in memory
  };
  // Returns those spills.
  using Spills = std::vector<std::shared_ptr<ParameterSpill>>;
  static Result<Spills> touch(const std::vector<at::Tensor>& tensors, Use use);
  static Spills spills_of(const std::vector<at::Tensor>& tensors);
  static bool has(const at::Tensor& tensor) { return find(tensor) != nullptr; }
  // The values of a contiguous tensor: itself, or where its memory is away, a copy from the drive.
  static Result<at::Tensor> values_of(const at::Tensor& tensor);

 private:
  // Of one storage, whose data pointer has it as its context.
  struct Value {
    std::shared_ptr<ParameterSpill> spill;
    c10::StorageImpl* storage = nullptr;
    std::vector<std::int64_t> shape;  // of the parameter, for sentences
    std::uint64_t bytes = 0;
    at::DataPtr memory;  // null: away
    std::unique_ptr<SpillFiles::Value> place;
    bool is_changed = true;                // since it was written
    bool is_zero = false;                  // all of it, and so it has no content on the drive
    bool is_mapped = false;                // its memory may be a file's
    bool is_held = false;                  // its address was handed out
    int users = 0;                         // touch() in progress
    std::list<Value*>::iterator position;  // in resident_
  };
  using Lock = std::unique_lock<std::mutex>;

  ParameterSpill(std::unique_ptr<SpillFiles> files, std::uint64_t cache_bytes)
      : cache_bytes_(cache_bytes), maker_(getpid()), files_(std::move(files)) {}
  static Value* find(const at::Tensor& tensor);
  static void end_value(void* value) noexcept;
  static std::string name_of(const Value& value);
  Status bring(Value& value, Use use);
  Status hold_locked(Value& value);
  Status make_room(Lock& lock, std::uint64_t bytes);
  Status send_away(Lock& lock, Value& value);
  void add_resident_locked(Value& value);
  void remove_resident_locked(Value& value);

  const std::uint64_t cache_bytes_;
  const pid_t maker_;  // the process that has the threads of files_

  mutable std::mutex mutex_;  // guards all below, and the values
  std::unique_ptr<SpillFiles> files_;
  std::list<Value*> resident_;  // the one used last at the end
  std::uint64_t resident_bytes_ = 0;
  std::uint64_t held_bytes_ = 0;
  std::uint64_t freed_bytes_ = 0;  // since the heap was trimmed
  Stats stats_;
};

}  // namespace sluice::engine
