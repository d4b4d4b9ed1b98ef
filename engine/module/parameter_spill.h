// ParameterSpill: limits the memory of a module's parameters while the module is built. The
// parameters used last stay in memory, within a budget, and the others go to NVMe (spill_files.h).
//
//   spill->adopt(parameter);              // its storage's memory is the spill's from now on
//   ParameterSpill::touch(tensors, use);  // before an operator: the tensors' values are in memory
//                                         // until the next call
//   spill->flush();                       // everything is written to the drives
//
// A storage whose memory is away throws at every access, through any tensor. So code that misses
// touch() fails with a message, and never reads other data. The storage owns its values: they are
// freed with the last tensor that uses it, and the files with the last value.
//
// Memory:  `cache_bytes`, or the size of one touch()'s tensors if that is more; and SpillFiles'.
// Threads: any, one at a time; but a thread must not use values that another thread's touch() may
//          send away meanwhile. No thread waits for Python's GIL while it holds the mutex.
// Forks:   a forked process leaves everything to its parent.
// Errors:  kNoSpace, a drive's error, or kCorrupt, with the parameter's shape. Values that could
//          not be written stay in memory.
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
  // Null: the configuration names no folder on NVMe. Without `cache_bytes`: half of the remainder
  // of budget.cpu_gib after the program's memory, or a quarter of the machine's free memory.
  static Result<std::shared_ptr<ParameterSpill>> create(const config::Config& config,
                                                        std::optional<std::uint64_t> cache_bytes,
                                                        int local_ranks);
  ~ParameterSpill();
  ParameterSpill(const ParameterSpill&) = delete;
  ParameterSpill& operator=(const ParameterSpill&) = delete;

  // False for tensors that are ignored: not on the CPU, without owned memory, or already in a
  // spill.
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

  // Works on tensors of any spill; other tensors are ignored.
  enum class Use : std::uint8_t {
    kRead,
    kChange,   // the values may be changed
    kAddress,  // the address is given away: the values stay in memory
  };
  // Returns the spills of the tensors.
  using Spills = std::vector<std::shared_ptr<ParameterSpill>>;
  static Result<Spills> touch(const std::vector<at::Tensor>& tensors, Use use);
  static Spills spills_of(const std::vector<at::Tensor>& tensors);
  static bool has(const at::Tensor& tensor) { return find(tensor) != nullptr; }
  // The values of a contiguous tensor: the tensor itself, or a copy from the drive if its memory is
  // away.
  static Result<at::Tensor> values_of(const at::Tensor& tensor);

 private:
  // The values of one storage; it is the context of the storage's data pointer.
  struct Value {
    std::shared_ptr<ParameterSpill> spill;
    c10::StorageImpl* storage = nullptr;
    std::vector<std::int64_t> shape;  // of the parameter, for messages
    std::uint64_t bytes = 0;
    at::DataPtr memory;  // null: away
    std::unique_ptr<SpillFiles::Value> place;
    bool is_changed = true;                // since the last write
    bool is_zero = false;                  // all zero bytes, so nothing is stored on the drive
    bool is_mapped = false;                // its memory may be a mapped file
    bool is_held = false;                  // its address was given away
    int users = 0;                         // number of touch() calls in progress
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
  const pid_t maker_;  // the process that owns the threads of files_

  mutable std::mutex mutex_;  // guards all below, and the values
  std::unique_ptr<SpillFiles> files_;
  std::list<Value*> resident_;  // the most recently used one is last
  std::uint64_t resident_bytes_ = 0;
  std::uint64_t held_bytes_ = 0;
  std::uint64_t freed_bytes_ = 0;  // since the last trim_heap()
  Stats stats_;
};

}  // namespace sluice::engine
