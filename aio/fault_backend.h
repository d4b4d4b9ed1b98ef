// FaultBackend: wraps another backend and makes its operations and file-system calls fail by a plan
// (fault_plan.h).
//
// An operation that is to fail never reaches the drive. The wrapped backend gets a no-op instead,
// so that the error also comes from one of its threads (or from pump()), and a retry's delay is
// kept.
//
// The exceptions do part or all of the transfer. kShort and kTornWrite transfer the whole sectors
// that they need on direct files; kDelay and kReorder transfer everything. A short transfer of a
// direct file may report a count inside a sector, but it has moved the rest of that sector too. So
// bytes beyond the count are undefined, up to the sector's end. A torn write writes any contiguous
// part of its sectors, from none to all of them.
//
// A completion held back for reordering is released, in an order drawn from the seed, when
// reorder_window of them are held, or when nothing else is in flight. So the last ones are never
// withheld. This backend never retries: the submitter decides when to give up an operation that
// keeps failing.
//
// Memory:  one record for each operation in flight, reused: submit() allocates only when more are
//          in flight than ever before.
// Threads: the same as for the wrapped backend.
// Shutdown: the destructor waits for the operations in flight. Close files first, and destroy this
//           before the wrapped backend.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "aio/fault_plan.h"
#include "aio/file_system.h"
#include "aio/io_backend.h"

namespace sluice::aio {

// FaultFileSystem: wraps another file system and makes its calls fail by a plan. Part of
// FaultBackend.
//
// A call that is to fail does nothing to the wrapped file system. Files are wrapped, so that their
// own calls can fail too; backend_slot belongs to the wrapped file.
class FaultFile final : public File {
 public:
  FaultFile(std::unique_ptr<File> inner, FaultDecider& decider);

  Result<std::uint64_t> size_bytes() const override;
  Status allocate(std::uint64_t size_bytes) override;
  Status truncate(std::uint64_t size_bytes) override;
  int descriptor() const override { return inner_->descriptor(); }

  // The wrapped file, or `file` itself if it is not a FaultFile.
  static File* unwrap(File* file);

 private:
  std::unique_ptr<File> inner_;
  FaultDecider& decider_;
};

class FaultFileSystem final : public FileSystem {
 public:
  FaultFileSystem(FileSystem& inner, FaultDecider& decider) : inner_(inner), decider_(decider) {}

  Result<std::unique_ptr<File>> open(const std::string& path, const OpenOptions& options) override;
  Status remove(const std::string& path) override;
  Status rename(const std::string& from, const std::string& to) override;
  Status make_directories(const std::string& path) override;
  Status sync_directory(const std::string& path) override;
  Result<bool> exists(const std::string& path) override;
  Result<PathKind> kind_of(const std::string& path) override;
  Result<std::vector<std::string>> list(const std::string& path) override;
  Result<std::unique_ptr<FileLock>> lock(const std::string& path) override;
  Result<std::uint64_t> free_bytes(const std::string& path) override;

 private:
  FileSystem& inner_;
  FaultDecider& decider_;
};

// The errno value of a fault that is an error, else 0.
int errno_of(FaultKind kind);

class FaultBackend final : public IoBackend {
 public:
  FaultBackend(IoBackend& inner, FaultPlan plan);
  ~FaultBackend() override;

  std::string_view name() const override { return "fault"; }
  FileSystem& files() override { return files_; }
  const Clock& clock() const override { return inner_.clock(); }
  void submit(std::span<IoOp* const> ops) noexcept override;
  PumpResult pump() override;
  void attach(File& file) override { inner_.attach(*FaultFile::unwrap(&file)); }
  void detach(File& file) override { inner_.detach(*FaultFile::unwrap(&file)); }
  bool attach_memory(std::span<std::byte> memory) override { return inner_.attach_memory(memory); }
  void detach_memory(std::span<std::byte> memory) override { inner_.detach_memory(memory); }

  // Applies another plan from now on, with every count at 0. Operations in flight keep their
  // outcome.
  void set_plan(FaultPlan plan) { decider_.set_plan(std::move(plan)); }

  // Reads, writes, syncs and calls of files() since the plan was set, and the faults injected into
  // them.
  std::uint64_t operations() const { return decider_.operations(); }
  std::uint64_t operations(FaultTarget target) const { return decider_.operations(target); }
  std::uint64_t injected() const { return decider_.injected(); }
  std::uint64_t injected(FaultKind kind) const { return decider_.injected(kind); }

 private:
  struct Record : IoOp {  // what the wrapped backend gets
    FaultBackend* owner = nullptr;
    IoOp* outer = nullptr;
    // What happens to the inner result.
    enum class Then : std::uint8_t { kPass, kReplace, kLimit, kReplaceUnlessError, kDelay, kHold };
    Then then = Then::kPass;
    std::int64_t result = 0;  // kReplace, kReplaceUnlessError: reported instead; kLimit: a maximum
    std::int64_t told_later_ns = 0;
    std::size_t window = 0;
    std::uint64_t random = 0;
    Record* next_free = nullptr;
  };

  void prepare(Record& record, IoOp& op);
  static void cut_short(Record& record, std::uint32_t told_bytes);
  static void tear(Record& record);
  static void on_inner_done(IoOp& op, std::int64_t result) noexcept;
  void finish(Record& record, std::int64_t result) noexcept;
  Record& take_record();
  // Takes the held completions, in the order in which to report them.
  std::vector<Record*> take_held_locked();
  void report(Record& record) noexcept;

  IoBackend& inner_;
  FaultDecider decider_;
  FaultFileSystem files_;

  std::mutex mutex_;               // guards all members below
  std::condition_variable ended_;  // an operation has ended
  std::deque<Record> records_;
  Record* free_records_ = nullptr;
  std::vector<Record*> held_;
  std::size_t at_inner_ = 0;   // not finished by the wrapped backend, or reported later
  std::size_t in_flight_ = 0;  // operations whose on_done has not returned
};

}  // namespace sluice::aio
