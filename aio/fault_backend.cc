#include "aio/fault_backend.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "aio/check.h"
#include "aio/split_mix.h"
#include "aio/units.h"

namespace sluice::aio {
namespace {

// The error that the call is to return, or ok.
Status decide(FaultDecider& decider, FaultTarget target, const std::string& path) {
  const auto verdict = decider.decide({.target = target, .path = path});
  if (!verdict) return {};
  return Error::from_errno(errno_of(verdict->fault),
                           {.operation = to_string(target), .path = path});
}

}  // namespace

int errno_of(FaultKind kind) {
  switch (kind) {
    case FaultKind::kEio:
    case FaultKind::kTornWrite:
      return EIO;
    case FaultKind::kEnospc:
      return ENOSPC;
    case FaultKind::kEintr:
      return EINTR;
    case FaultKind::kEagain:
      return EAGAIN;
    case FaultKind::kShort:
    case FaultKind::kZero:
    case FaultKind::kDelay:
    case FaultKind::kReorder:
      break;
  }
  return 0;
}

FaultFile::FaultFile(std::unique_ptr<File> inner, FaultDecider& decider)
    : File(inner->path(), inner->offset_alignment_bytes(), inner->memory_alignment_bytes()),
      inner_(std::move(inner)),
      decider_(decider) {}

File* FaultFile::unwrap(File* file) {
  auto* wrapper = dynamic_cast<FaultFile*>(file);
  return wrapper != nullptr ? wrapper->inner_.get() : file;
}

Result<std::uint64_t> FaultFile::size_bytes() const {
  SLUICE_RETURN_IF_ERROR(decide(decider_, FaultTarget::kLookUp, path()));
  return inner_->size_bytes();
}

Status FaultFile::allocate(std::uint64_t size_bytes) {
  SLUICE_RETURN_IF_ERROR(decide(decider_, FaultTarget::kAllocate, path()));
  return inner_->allocate(size_bytes);
}

Status FaultFile::truncate(std::uint64_t size_bytes) {
  SLUICE_RETURN_IF_ERROR(decide(decider_, FaultTarget::kTruncate, path()));
  return inner_->truncate(size_bytes);
}

Result<std::unique_ptr<File>> FaultFileSystem::open(const std::string& path,
                                                    const OpenOptions& options) {
  SLUICE_RETURN_IF_ERROR(decide(decider_, FaultTarget::kOpen, path));
  SLUICE_ASSIGN_OR_RETURN(auto file, inner_.open(path, options));
  return std::unique_ptr<File>(std::make_unique<FaultFile>(std::move(file), decider_));
}

Status FaultFileSystem::remove(const std::string& path) {
  SLUICE_RETURN_IF_ERROR(decide(decider_, FaultTarget::kRemove, path));
  return inner_.remove(path);
}

Status FaultFileSystem::rename(const std::string& from, const std::string& to) {
  SLUICE_RETURN_IF_ERROR(decide(decider_, FaultTarget::kRename, from));
  return inner_.rename(from, to);
}

Status FaultFileSystem::make_directories(const std::string& path) {
  SLUICE_RETURN_IF_ERROR(decide(decider_, FaultTarget::kMakeDirectories, path));
  return inner_.make_directories(path);
}

Status FaultFileSystem::sync_directory(const std::string& path) {
  SLUICE_RETURN_IF_ERROR(decide(decider_, FaultTarget::kSyncDirectory, path));
  return inner_.sync_directory(path);
}

Result<bool> FaultFileSystem::exists(const std::string& path) {
  SLUICE_RETURN_IF_ERROR(decide(decider_, FaultTarget::kLookUp, path));
  return inner_.exists(path);
}

Result<PathKind> FaultFileSystem::kind_of(const std::string& path) {
  SLUICE_RETURN_IF_ERROR(decide(decider_, FaultTarget::kLookUp, path));
  return inner_.kind_of(path);
}

Result<std::vector<std::string>> FaultFileSystem::list(const std::string& path) {
  SLUICE_RETURN_IF_ERROR(decide(decider_, FaultTarget::kLookUp, path));
  return inner_.list(path);
}

Result<std::unique_ptr<FileLock>> FaultFileSystem::lock(const std::string& path) {
  SLUICE_RETURN_IF_ERROR(decide(decider_, FaultTarget::kOpen, path));
  return inner_.lock(path);
}

Result<std::uint64_t> FaultFileSystem::free_bytes(const std::string& path) {
  SLUICE_RETURN_IF_ERROR(decide(decider_, FaultTarget::kLookUp, path));
  return inner_.free_bytes(path);
}

namespace {

constexpr std::size_t kSubmitBatch = 64;

std::string_view path_of(const IoOp& op) {
  return op.file != nullptr ? std::string_view(op.file->path()) : std::string_view();
}

FaultTarget target_of(IoKind kind) {
  if (kind == IoKind::kRead) return FaultTarget::kRead;
  return kind == IoKind::kWrite ? FaultTarget::kWrite : FaultTarget::kSync;
}

}  // namespace

FaultBackend::FaultBackend(IoBackend& inner, FaultPlan plan)
    : inner_(inner), decider_(std::move(plan)), files_(inner.files(), decider_) {}

FaultBackend::~FaultBackend() {
  std::unique_lock lock(mutex_);
  while (in_flight_ > 0) {
    lock.unlock();
    const PumpResult pumped = pump();
    lock.lock();
    if (pumped == PumpResult::kThreaded && in_flight_ > 0) ended_.wait(lock);
    SLUICE_CHECK(pumped != PumpResult::kIdle || in_flight_ == 0,
                 "a backend in virtual time lost operations");
  }
}

// ---- submission -------------------------------------------------------------------------------

FaultBackend::Record& FaultBackend::take_record() {
  const std::lock_guard lock(mutex_);
  ++at_inner_;
  ++in_flight_;
  if (free_records_ == nullptr) return records_.emplace_back();
  Record& record = *free_records_;
  free_records_ = record.next_free;
  return record;
}

void FaultBackend::submit(std::span<IoOp* const> ops) noexcept {
  std::array<IoOp*, kSubmitBatch> batch;
  while (!ops.empty()) {
    const std::size_t count = std::min(ops.size(), batch.size());
    for (std::size_t i = 0; i < count; ++i) {
      Record& record = take_record();
      prepare(record, *ops[i]);
      batch[i] = &record;
    }
    inner_.submit({batch.data(), count});
    ops = ops.subspan(count);
  }
}

void FaultBackend::prepare(Record& record, IoOp& op) {
  static_cast<IoOp&>(record) = op;
  record.file = FaultFile::unwrap(op.file);
  record.on_done = &FaultBackend::on_inner_done;
  record.next = nullptr;
  record.owner = this;
  record.outer = &op;
  record.then = Record::Then::kPass;
  if (op.kind == IoKind::kNop) return;
  const auto verdict = decider_.decide(
      {.target = target_of(op.kind), .path = path_of(op), .length_bytes = op.length_bytes});
  if (!verdict) return;
  record.random = verdict->random;
  switch (verdict->fault) {
    case FaultKind::kShort:
      cut_short(record, verdict->short_bytes);
      break;
    case FaultKind::kTornWrite:
      tear(record);
      break;
    case FaultKind::kDelay:
      record.then = Record::Then::kDelay;
      record.told_later_ns = verdict->delay_ns;
      break;
    case FaultKind::kReorder:
      record.then = Record::Then::kHold;
      record.window = verdict->reorder_window;
      break;
    case FaultKind::kEio:
    case FaultKind::kEnospc:
    case FaultKind::kEintr:
    case FaultKind::kEagain:
    case FaultKind::kZero:
      record.kind = IoKind::kNop;
      record.file = nullptr;
      record.then = Record::Then::kReplace;
      record.result = -errno_of(verdict->fault);
      break;
  }
}

void FaultBackend::cut_short(Record& record, std::uint32_t told_bytes) {
  // Whole sectors, which a direct file requires.
  record.length_bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(
      record.length_bytes, align_up(told_bytes, record.file->offset_alignment_bytes())));
  record.then = Record::Then::kLimit;
  record.result = told_bytes;
}

void FaultBackend::tear(Record& record) {
  const std::uint32_t sector = record.file->offset_alignment_bytes();
  const std::uint32_t sectors = record.length_bytes / sector;
  SplitMix random(record.random);
  const auto a = static_cast<std::uint32_t>(random.below(std::uint64_t{sectors} + 1));
  const auto b = static_cast<std::uint32_t>(random.below(std::uint64_t{sectors} + 1));
  const std::uint32_t begin = std::min(a, b) * sector;
  const std::uint32_t end = std::max(a, b) * sector;
  record.then = Record::Then::kReplaceUnlessError;
  record.result = -EIO;
  if (begin == end) {
    record.kind = IoKind::kNop;
    record.file = nullptr;
    return;
  }
  record.offset_bytes += begin;
  record.data += begin;
  record.length_bytes = end - begin;
}

// ---- completion -------------------------------------------------------------------------------

void FaultBackend::on_inner_done(IoOp& op, std::int64_t result) noexcept {
  auto& record = static_cast<Record&>(op);
  record.owner->finish(record, result);
}

void FaultBackend::finish(Record& record, std::int64_t result) noexcept {
  const Record::Then then = record.then;
  switch (then) {
    case Record::Then::kPass:
    case Record::Then::kDelay:
    case Record::Then::kHold:
      record.result = result;
      break;
    case Record::Then::kReplace:
      break;
    case Record::Then::kLimit:
      record.result = std::min(record.result, result);
      break;
    case Record::Then::kReplaceUnlessError:
      if (result < 0) record.result = result;
      break;
  }
  if (then == Record::Then::kDelay) {
    record.then = Record::Then::kReplace;
    record.kind = IoKind::kNop;
    record.file = nullptr;
    record.delay_ns = record.told_later_ns;
    IoOp* wait = &record;
    inner_.submit({&wait, 1});
    return;
  }
  const bool hold = then == Record::Then::kHold;
  std::vector<Record*> released;
  {
    const std::lock_guard lock(mutex_);
    --at_inner_;
    if (hold) held_.push_back(&record);
    // Once it is in the list, another thread may report it.
    if (at_inner_ == 0 || (hold && held_.size() >= record.window)) released = take_held_locked();
  }
  if (!hold) report(record);
  for (Record* other : released) report(*other);
}

std::vector<FaultBackend::Record*> FaultBackend::take_held_locked() {
  std::vector<Record*> released = std::exchange(held_, {});
  if (released.empty()) return released;
  SplitMix random(released.front()->random);
  const std::vector<Record*> as_completed = released;
  for (std::size_t i = released.size() - 1; i > 0; --i) {
    std::swap(released[i], released[random.below(i + 1)]);
  }
  if (released == as_completed) std::reverse(released.begin(), released.end());
  return released;
}

void FaultBackend::report(Record& record) noexcept {
  IoOp& outer = *record.outer;
  const std::int64_t result = record.result;
  {
    const std::lock_guard lock(mutex_);
    record.next_free = std::exchange(free_records_, &record);
  }
  outer.on_done(outer, result);
  const std::lock_guard lock(mutex_);
  --in_flight_;
  ended_.notify_all();
}

PumpResult FaultBackend::pump() { return inner_.pump(); }

}  // namespace sluice::aio
