#include "aio/fault_file_system.h"

#include <cerrno>
#include <utility>

namespace sluice::aio {
namespace {

// The error that the call is to return, or ok.
Status meet(FaultDecider& decider, FaultTarget target, const std::string& path) {
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
  SLUICE_RETURN_IF_ERROR(meet(decider_, FaultTarget::kLookUp, path()));
  return inner_->size_bytes();
}

Status FaultFile::allocate(std::uint64_t size_bytes) {
  SLUICE_RETURN_IF_ERROR(meet(decider_, FaultTarget::kAllocate, path()));
  return inner_->allocate(size_bytes);
}

Status FaultFile::truncate(std::uint64_t size_bytes) {
  SLUICE_RETURN_IF_ERROR(meet(decider_, FaultTarget::kTruncate, path()));
  return inner_->truncate(size_bytes);
}

Result<std::unique_ptr<File>> FaultFileSystem::open(const std::string& path,
                                                    const OpenOptions& options) {
  SLUICE_RETURN_IF_ERROR(meet(decider_, FaultTarget::kOpen, path));
  SLUICE_ASSIGN_OR_RETURN(auto file, inner_.open(path, options));
  return std::unique_ptr<File>(std::make_unique<FaultFile>(std::move(file), decider_));
}

Status FaultFileSystem::remove(const std::string& path) {
  SLUICE_RETURN_IF_ERROR(meet(decider_, FaultTarget::kRemove, path));
  return inner_.remove(path);
}

Status FaultFileSystem::rename(const std::string& from, const std::string& to) {
  SLUICE_RETURN_IF_ERROR(meet(decider_, FaultTarget::kRename, from));
  return inner_.rename(from, to);
}

Status FaultFileSystem::make_directories(const std::string& path) {
  SLUICE_RETURN_IF_ERROR(meet(decider_, FaultTarget::kMakeDirectories, path));
  return inner_.make_directories(path);
}

Status FaultFileSystem::sync_directory(const std::string& path) {
  SLUICE_RETURN_IF_ERROR(meet(decider_, FaultTarget::kSyncDirectory, path));
  return inner_.sync_directory(path);
}

Result<bool> FaultFileSystem::exists(const std::string& path) {
  SLUICE_RETURN_IF_ERROR(meet(decider_, FaultTarget::kLookUp, path));
  return inner_.exists(path);
}

Result<PathKind> FaultFileSystem::kind_of(const std::string& path) {
  SLUICE_RETURN_IF_ERROR(meet(decider_, FaultTarget::kLookUp, path));
  return inner_.kind_of(path);
}

Result<std::vector<std::string>> FaultFileSystem::list(const std::string& path) {
  SLUICE_RETURN_IF_ERROR(meet(decider_, FaultTarget::kLookUp, path));
  return inner_.list(path);
}

Result<std::unique_ptr<FileLock>> FaultFileSystem::lock(const std::string& path) {
  SLUICE_RETURN_IF_ERROR(meet(decider_, FaultTarget::kOpen, path));
  return inner_.lock(path);
}

Result<std::uint64_t> FaultFileSystem::free_bytes(const std::string& path) {
  SLUICE_RETURN_IF_ERROR(meet(decider_, FaultTarget::kLookUp, path));
  return inner_.free_bytes(path);
}

}  // namespace sluice::aio
