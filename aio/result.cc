#include "aio/result.h"

#include <cerrno>
#include <cstring>

namespace sluice {
namespace {

ErrorCode code_for(int error_number) {
  switch (error_number) {
    case EINVAL:
    case ENOTDIR:
    case EISDIR:
    case ENAMETOOLONG:
      return ErrorCode::kInvalidArgument;
    case ENOENT:
      return ErrorCode::kNotFound;
    case EEXIST:
      return ErrorCode::kAlreadyExists;
    case EACCES:
    case EPERM:
      return ErrorCode::kPermission;
    case EROFS:
      return ErrorCode::kReadOnly;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return ErrorCode::kNoSpace;
    case ENOMEM:
      return ErrorCode::kOutOfMemory;
    case ENOLCK:
    case ENOSYS:
    case EOPNOTSUPP:
      return ErrorCode::kUnsupported;
    case EBUSY:
    case ETXTBSY:
    case EWOULDBLOCK:
      return ErrorCode::kBusy;
    case ECANCELED:
      return ErrorCode::kCancelled;
    case ETIMEDOUT:
      return ErrorCode::kTimedOut;
    default:
      return ErrorCode::kIo;
  }
}

std::string_view default_advice(int error_number) {
  switch (error_number) {
    case ENOSPC:
      return "free some space there, or choose another path";
    case EDQUOT:
      return "this user's quota is used up there";
    case EFBIG:
      return "the file would exceed the size limit: raise ulimit -f, or choose another file system";
    case EROFS:
      return "choose a path on a file system that is mounted for writing";
    case EACCES:
    case EPERM:
      return "check the permissions of the path and its folders";
    case EIO:
      return "the drive failed the operation; check dmesg and the drive's health";
    case ENOTRECOVERABLE:  // for operations that a ring can no longer submit
      return "io_uring stopped working, as an earlier message says; the posix backend works "
             "without it";
    default:
      return {};
  }
}

std::string errno_name(int error_number) {
  const char* name = strerrorname_np(error_number);
  return name != nullptr ? name : "errno " + std::to_string(error_number);
}

}  // namespace

Error Error::from_errno(int error_number, const IoContext& where, std::string_view advice) {
  std::string text(where.operation);
  if (where.length_bytes >= 0) {
    text += " of " + std::to_string(where.length_bytes) + " bytes";
  }
  if (where.offset_bytes >= 0) text += " at offset " + std::to_string(where.offset_bytes);
  if (!where.path.empty()) {
    text += where.offset_bytes >= 0 || where.length_bytes >= 0 ? " in " : " ";
    text += where.path;
  }
  // strerrordesc_np is the thread-safe strerror: it returns constant text.
  const char* description = strerrordesc_np(error_number);
  text += " failed: ";
  text += description != nullptr ? description : "unknown error";
  text += " (" + errno_name(error_number) + ")";
  if (advice.empty()) advice = default_advice(error_number);
  if (!advice.empty()) {
    text += ": ";
    text += advice;
  }
  Error error(code_for(error_number), std::move(text));
  error.error_number_ = error_number;
  return error;
}

Error Error::with_context(std::string_view doing) && {
  message_.insert(0, std::string(doing) + ": ");
  return std::move(*this);
}

Error Error::with_suffix(std::string_view more) && {
  message_ += more;
  return std::move(*this);
}

}  // namespace sluice
