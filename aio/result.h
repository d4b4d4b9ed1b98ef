// Error, Status and Result<T>: how all code below the engine reports failure.
//
// An Error is data with a policy (a full disk, a short file, a bad checksum), so it carries a code
// to decide on and a sentence to show. Use the factories: they name operation, path, offset, length
// and errno, and the remedy if the user has one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "aio/check.h"

namespace sluice {

enum class ErrorCode : std::uint8_t {
  kInvalidArgument,  // a mistake of the caller, usually the user
  kNotFound,
  kAlreadyExists,
  kPermission,
  kReadOnly,
  kNoSpace,       // the disk, or a quota on it, is full
  kOutOfMemory,   // memory could not be allocated
  kUnsupported,   // kernel, container or file system refuses a feature
  kIo,            // an operation of the drive or the kernel failed
  kEndOfFile,     // the file is shorter than the request
  kCorrupt,       // data read differs from data written
  kNewerVersion,  // written by a newer version of the program
  kBusy,          // held by another process or thread
  kCancelled,
  kTimedOut,
  kInternal,
};

// Where an IO failed. Empty path: no file involved; negative number: not applicable.
struct IoContext {
  std::string_view operation = {};  // "write", "open", "sync", ...
  std::string_view path = {};
  std::int64_t offset_bytes = -1;
  std::int64_t length_bytes = -1;
};

// The analyzer does not see that a variant that holds an Error has constructed it.
class [[nodiscard]] Error {  // NOLINT(clang-analyzer-core.uninitialized.Assign)
 public:
  Error(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}

  // The code for `error_number` (an errno value), and a sentence such as
  // "write of 4096 bytes at offset 8192 in /nvme/state.bin failed: No space left on device
  // (ENOSPC): free some space there, or choose another path". `advice` replaces the last part.
  static Error from_errno(int error_number, const IoContext& where, std::string_view advice = {});

  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }
  int error_number() const { return error_number_; }  // 0 if the kernel reported no error

  // Prepends what the caller was doing: "reading record h.3/mlp: <message>".
  Error with_context(std::string_view doing) &&;
  // Appends `more` to the message unchanged.
  Error with_suffix(std::string_view more) &&;

 private:
  ErrorCode code_;
  int error_number_ = 0;
  std::string message_;
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return std::holds_alternative<std::monostate>(error_); }
  explicit operator bool() const { return ok(); }
  const Error& error() const& {
    SLUICE_CHECK(!ok(), "error() of a Status that is ok");
    return std::get<Error>(error_);
  }
  Error error() && {
    SLUICE_CHECK(!ok(), "error() of a Status that is ok");
    return std::get<Error>(std::move(error_));
  }

 private:
  std::variant<std::monostate, Error> error_;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : value_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return std::holds_alternative<T>(value_); }
  explicit operator bool() const { return ok(); }

  T& value() & { return checked(*this); }
  const T& value() const& { return checked(*this); }
  T&& value() && { return std::move(checked(*this)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const& {
    SLUICE_CHECK(!ok(), "error() of a Result that is ok");
    return std::get<Error>(value_);
  }
  Error error() && {
    SLUICE_CHECK(!ok(), "error() of a Result that is ok");
    return std::get<Error>(std::move(value_));
  }
  Status status() const { return ok() ? Status() : Status(error()); }

 private:
  template <typename Self>
  static auto& checked(Self& self) {
    SLUICE_CHECK(self.ok(), "value() of a Result that holds an error");
    return std::get<T>(self.value_);
  }
  std::variant<T, Error> value_;
};

}  // namespace sluice

// Return early with the error of a Status expression.
#define SLUICE_RETURN_IF_ERROR(expression)                        \
  do {                                                            \
    if (auto sluice_status_ = (expression); !sluice_status_.ok()) \
      return std::move(sluice_status_).error();                   \
  } while (false)

// SLUICE_ASSIGN_OR_RETURN(auto file, open(...)): the value, or return early with the error.
#define SLUICE_ASSIGN_OR_RETURN(declaration, expression) \
  SLUICE_ASSIGN_OR_RETURN_IMPL(SLUICE_CONCAT(sluice_result_, __LINE__), declaration, expression)
#define SLUICE_ASSIGN_OR_RETURN_IMPL(result, declaration, expression) \
  auto result = (expression);                                         \
  if (!result.ok()) return std::move(result).error();                 \
  declaration = std::move(result).value()
#define SLUICE_CONCAT(a, b) SLUICE_CONCAT_IMPL(a, b)
#define SLUICE_CONCAT_IMPL(a, b) a##b
