#include "aio/small_file.h"

#include <memory>
#include <span>

#include "aio/direct_file.h"

namespace sluice::aio {
namespace {

constexpr int kMaxNumberedNames = 10'000;

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

OpenOptions writing(OpenOptions::Create create) {
  return {.access = OpenOptions::Access::kReadWrite, .create = create};
}

// A new file at `path` of this size, with undefined content.
Result<std::unique_ptr<DirectFile>> make_sized(IoQueue& queue, const std::string& path,
                                               std::uint64_t size_bytes) {
  if (size_bytes > 0) {
    return DirectFile::open(queue, path,
                            {.open = writing(OpenOptions::Create::kMustNotExist),
                             .size_bytes = size_bytes,
                             .preallocate = false});
  }
  // Requests need bytes, so an empty file is created here.
  SLUICE_RETURN_IF_ERROR(
      queue.backend().files().open(path, writing(OpenOptions::Create::kMustNotExist)).status());
  return DirectFile::open(queue, path, {.open = writing(OpenOptions::Create::kMustExist)});
}

// Removes any file of this name first: a link, or another name of the same file, would let another
// user choose what is overwritten.
Result<std::unique_ptr<DirectFile>> make_anew(IoQueue& queue, const std::string& path,
                                              std::uint64_t size_bytes) {
  auto made = make_sized(queue, path, size_bytes);
  if (made.ok() || made.error().code() != ErrorCode::kAlreadyExists) return made;
  SLUICE_RETURN_IF_ERROR(queue.backend().files().remove(path));
  return make_sized(queue, path, size_bytes);
}

Status write_whole(IoQueue& queue, const std::string& path, std::string_view content) {
  SLUICE_ASSIGN_OR_RETURN(const auto file, make_anew(queue, path, content.size()));
  if (!content.empty()) {
    SLUICE_RETURN_IF_ERROR(queue.write(*file, 0, std::as_bytes(std::span(content))));
  }
  return file->finish();
}

}  // namespace

Result<std::string> read_small_file(IoQueue& queue, const std::string& path,
                                    std::uint64_t max_bytes) {
  SLUICE_ASSIGN_OR_RETURN(const auto file, DirectFile::open(queue, path, {}));
  if (file->size_bytes() > max_bytes) {
    return Error(ErrorCode::kInvalidArgument,
                 path + " has " + std::to_string(file->size_bytes()) + " bytes, more than the " +
                     std::to_string(max_bytes) + " that such a file may have");
  }
  std::string content(file->size_bytes(), '\0');
  if (!content.empty()) {
    SLUICE_RETURN_IF_ERROR(queue.read(*file, 0, std::as_writable_bytes(std::span(content))));
  }
  return content;
}

Status write_small_file(IoQueue& queue, const std::string& path, std::string_view content) {
  FileSystem& files = queue.backend().files();
  const std::string fresh = path + ".new";
  Status status = write_whole(queue, fresh, content);
  if (status.ok()) status = files.rename(fresh, path);
  if (!status.ok()) {
    static_cast<void>(files.remove(fresh));
    return status;
  }
  return files.sync_directory(folder_of(path));
}

Status remove_durably(FileSystem& files, const std::string& path) {
  Status removed = files.remove(path);
  if (!removed.ok() && removed.error().code() != ErrorCode::kNotFound) return removed;
  return files.sync_directory(folder_of(path));
}

Result<std::string> unused_name(FileSystem& files, const std::string& path) {
  std::string name = path;
  for (int number = 2;; ++number) {
    SLUICE_ASSIGN_OR_RETURN(const bool taken, files.exists(name));
    if (!taken) return name;
    if (number > kMaxNumberedNames)
      return Error(ErrorCode::kAlreadyExists,
                   path + " and " + std::to_string(kMaxNumberedNames) +
                       " numbered names are all taken: move some of them away");
    name = path + "-" + std::to_string(number);
  }
}

}  // namespace sluice::aio
