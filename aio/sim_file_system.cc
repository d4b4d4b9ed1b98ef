#include "aio/sim_file_system.h"

#include <cerrno>
#include <limits>
#include <utility>

namespace sluice::aio {
namespace {

constexpr auto kMaxFileBytes = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());

}  // namespace

// ---- files ------------------------------------------------------------------------------------

SimFile::SimFile(SimFileSystem& files, std::string path, std::shared_ptr<SimFileData> content,
                 const Options& options)
    : File(std::move(path), options.alignment_bytes, options.alignment_bytes),
      files_(files),
      content_(std::move(content)),
      writable_(options.writable),
      power_epoch_(files.power_epoch_) {
  ++content_->handles;
}

SimFile::~SimFile() {
  if (power_epoch_ != files_.power_epoch_) return;  // a power loss has closed it
  --content_->handles;
  files_.release_if_dead(*content_);
}

Result<std::uint64_t> SimFile::size_bytes() const {
  if (const int error = check_transfer(false, 0, nullptr, 0); error != 0) {
    return files_.failed(-error, "stat", path());
  }
  return content_->present().size_bytes;
}

Status SimFile::allocate(std::uint64_t size_bytes) {
  return resize("allocation", size_bytes, true);
}

Status SimFile::truncate(std::uint64_t size_bytes) { return resize("resize", size_bytes, false); }

Status SimFile::resize(std::string_view operation, std::uint64_t size_bytes, bool keeps_longer) {
  const auto fail = [&](int error_number) {
    return Error::from_errno(error_number, {.operation = operation,
                                            .path = path(),
                                            .length_bytes = static_cast<std::int64_t>(size_bytes)});
  };
  if (!files_.powered_ || power_epoch_ != files_.power_epoch_) {
    return files_.failed(EIO, operation, path());
  }
  int error_number = 0;
  if (!writable_) {
    error_number = EBADF;
  } else if (size_bytes > kMaxFileBytes) {
    error_number = EFBIG;
  } else if (keeps_longer) {
    if (files_.take_space(*content_, 0, size_bytes)) {
      content_->allocate(files_.next_sequence(), size_bytes);
    } else {
      error_number = ENOSPC;
    }
  } else {
    const std::uint64_t space_before = content_->present().space.total_bytes();
    content_->set_size(files_.next_sequence(), size_bytes);
    files_.used_bytes_ -= space_before - content_->present().space.total_bytes();
  }
  if (files_.options_.on_change()) return files_.failed(EIO, operation, path());
  if (error_number != 0) return fail(error_number);
  return {};
}

int SimFile::check_transfer(bool writes, std::uint64_t offset_bytes, const std::byte* data,
                            std::uint64_t length_bytes) const {
  if (!files_.powered_ || power_epoch_ != files_.power_epoch_) return -EIO;
  if (writes && !writable_) return -EBADF;
  if (offset_bytes > kMaxFileBytes - length_bytes) return -EINVAL;
  const bool aligned = offset_bytes % offset_alignment_bytes() == 0 &&
                       length_bytes % offset_alignment_bytes() == 0 &&
                       reinterpret_cast<std::uintptr_t>(data) % memory_alignment_bytes() == 0;
  return aligned ? 0 : -EINVAL;
}

SimFileLock::SimFileLock(SimFileSystem& files, const std::string& path,
                         std::shared_ptr<SimFileData> content)
    : files_(files),
      file_(files, path, std::move(content), {.writable = true}),
      power_epoch_(files.power_epoch_) {
  files_.locked_.insert(&file_.content());
}

SimFileLock::~SimFileLock() {
  if (power_epoch_ != files_.power_epoch_) return;  // a power loss has released it
  files_.locked_.erase(&file_.content());
}

Result<bool> SimFileLock::is_at(const std::string& path) const {
  if (!files_.powered_) return files_.failed(EIO, "look-up of", path);
  const SimNames::Found found = files_.names_.find(path);
  return found.node != nullptr && found.node->file.get() == &file_.content();
}

// ---- space ------------------------------------------------------------------------------------

SimFileSystem::SimFileSystem(Options options) : options_(std::move(options)) {}

bool SimFileSystem::take_space(SimFileData& content, std::uint64_t begin_bytes,
                               std::uint64_t end_bytes) {
  const std::uint64_t missing = content.present().space.missing_bytes(begin_bytes, end_bytes);
  if (missing > unused_bytes()) return false;
  used_bytes_ += missing;
  return true;
}

void SimFileSystem::release_if_dead(const SimFileData& content) {
  if (!content.linked && content.handles == 0) used_bytes_ -= content.present().space.total_bytes();
}

// ---- calls ------------------------------------------------------------------------------------

Error SimFileSystem::failed(int error_number, std::string_view operation,
                            const std::string& path) const {
  return Error::from_errno(error_number, {.operation = operation, .path = path},
                           error_number == EIO ? "the simulated drive has no power" : "");
}

// Ends a call that changed something, or tried to.
Status SimFileSystem::change_done(int error_number, std::string_view operation,
                                  const std::string& path) {
  if (options_.on_change()) return failed(EIO, operation, path);
  if (error_number != 0) return failed(error_number, operation, path);
  return {};
}

Result<std::shared_ptr<SimFileData>> SimFileSystem::find_or_create(const std::string& path,
                                                                   OpenOptions::Create create) {
  const bool creates = create != OpenOptions::Create::kMustExist;
  const std::string_view operation = creates ? "creation of a file:" : "open";
  const SimNames::Found found = names_.find(path);
  if (create == OpenOptions::Create::kAnonymous) {
    if (found.error_number != 0) return failed(found.error_number, operation, path);
    if (found.node->file != nullptr) return failed(ENOTDIR, operation, path);
    SLUICE_RETURN_IF_ERROR(change_done(0, operation, path));
    return std::make_shared<SimFileData>(options_.data);
  }
  if (found.node != nullptr) {
    if (create == OpenOptions::Create::kMustNotExist) return failed(EEXIST, operation, path);
    if (found.node->file == nullptr) return failed(EISDIR, operation, path);
    return found.node->file;
  }
  if (!creates || found.error_number != ENOENT) {
    return failed(found.error_number, operation, path);
  }
  auto content = std::make_shared<SimFileData>(options_.data);
  const int error_number = names_.create_file(next_sequence(), path, content);
  SLUICE_RETURN_IF_ERROR(change_done(error_number, operation, path));
  return content;
}

Result<std::unique_ptr<File>> SimFileSystem::open(const std::string& path,
                                                  const OpenOptions& options) {
  if (!powered_) return failed(EIO, "open", path);
  SLUICE_ASSIGN_OR_RETURN(auto content, find_or_create(path, options.create));
  const bool anonymous = options.create == OpenOptions::Create::kAnonymous;
  return std::unique_ptr<File>(std::make_unique<SimFile>(
      *this, anonymous ? path + "/(unnamed)" : path, std::move(content),
      SimFile::Options{
          .alignment_bytes = options.direct ? options_.sector_bytes : 1,
          .writable = anonymous || options.access == OpenOptions::Access::kReadWrite}));
}

Status SimFileSystem::remove(const std::string& path) {
  if (!powered_) return failed(EIO, "removal of", path);
  std::shared_ptr<SimFileData> gone;
  const int error_number = names_.remove(next_sequence(), path, gone);
  if (gone != nullptr) release_if_dead(*gone);
  return change_done(error_number, "removal of", path);
}

Status SimFileSystem::rename(const std::string& from, const std::string& to) {
  const std::string operation = "rename to " + to + " of";
  if (!powered_) return failed(EIO, operation, from);
  std::shared_ptr<SimFileData> gone;
  const int error_number = names_.rename(next_sequence(), {.from = from, .to = to}, gone);
  if (gone != nullptr) release_if_dead(*gone);
  return change_done(error_number, operation, from);
}

Status SimFileSystem::make_directories(const std::string& path) {
  if (!powered_) return failed(EIO, "creation of folder", path);
  const int error_number = names_.make_folders(next_sequence_, path);
  return change_done(error_number, "creation of folder", path);
}

Status SimFileSystem::sync_directory(const std::string& path) {
  if (!powered_) return failed(EIO, "sync of folder", path);
  // The power fails before the sync has any effect: its caller has no guarantee yet.
  SLUICE_RETURN_IF_ERROR(change_done(0, "sync of folder", path));
  const int error_number = names_.sync_folder(path);
  if (error_number != 0) return failed(error_number, "sync of folder", path);
  return {};
}

Result<bool> SimFileSystem::exists(const std::string& path) {
  if (!powered_) return failed(EIO, "look-up of", path);
  return names_.find(path).node != nullptr;
}

Result<PathKind> SimFileSystem::kind_of(const std::string& path) {
  if (!powered_) return failed(EIO, "look-up of", path);
  const SimNames::Found found = names_.find(path);
  if (found.node == nullptr) return PathKind::kNothing;
  return found.node->file != nullptr ? PathKind::kFile : PathKind::kFolder;
}

Result<std::vector<std::string>> SimFileSystem::list(const std::string& path) {
  if (!powered_) return failed(EIO, "listing of", path);
  const SimNames::Found found = names_.find(path);
  if (found.error_number != 0) return failed(found.error_number, "listing of", path);
  if (found.node->file != nullptr) return failed(ENOTDIR, "listing of", path);
  std::vector<std::string> names;
  for (const auto& [name, node] : found.node->present) names.push_back(name);
  return names;
}

Result<std::unique_ptr<FileLock>> SimFileSystem::lock(const std::string& path) {
  if (!powered_) return failed(EIO, "lock of", path);
  SLUICE_ASSIGN_OR_RETURN(auto content, find_or_create(path, OpenOptions::Create::kIfMissing));
  if (locked_.contains(content.get())) return failed(EWOULDBLOCK, "lock of", path);
  return std::unique_ptr<FileLock>(std::make_unique<SimFileLock>(*this, path, std::move(content)));
}

Result<std::uint64_t> SimFileSystem::free_bytes(const std::string& path) {
  if (!powered_) return failed(EIO, "look-up of free space at", path);
  if (const SimNames::Found found = names_.find(path); found.error_number != 0) {
    return failed(found.error_number, "look-up of free space at", path);
  }
  return unused_bytes();
}

// ---- power ------------------------------------------------------------------------------------

void SimFileSystem::list_pending_metadata(std::vector<std::uint64_t>& into) const {
  names_.list_pending_metadata(into);
  for (const auto& file : names_.all_files()) file->list_pending_metadata(into);
}

std::uint64_t SimFileSystem::unsynced_bytes() const {
  std::uint64_t total = 0;
  for (const auto& file : names_.all_files()) total += file->unsynced_bytes();
  return total;
}

void SimFileSystem::lose_power(const PowerLossModel& model) {
  powered_ = false;
  ++power_epoch_;
  locked_.clear();
  const auto files = names_.all_files();
  names_.lose_power(model);
  used_bytes_ = 0;
  for (const auto& file : files) {
    file->handles = 0;
    if (!file->linked) continue;
    file->lose_power(model);
    used_bytes_ += file->present().space.total_bytes();
  }
}

}  // namespace sluice::aio
