// Sockets for the control channel and the data links: ownership, connecting and listening with time
// limits, and framed messages that are read as they come.
//
// Threads: one at a time for an object.
// Errors:  kTimedOut, or kIo with errno in words and the address. Nothing here raises SIGPIPE.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "aio/result.h"

namespace sluice::engine {

using Deadline = std::chrono::steady_clock::time_point;
inline Deadline time_now() { return std::chrono::steady_clock::now(); }

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void close() { *this = FileDescriptor(); }

 private:
  int fd_ = -1;
};

struct HostAndPort {
  std::string host;  // a name or an address
  std::uint16_t port = 0;

  std::string text() const;  // "gpu01:29500", "[::1]:29500"
};

// Whether these digits, or "localhost", are an address that nobody outside can reach.
bool is_loopback(std::string_view host);

// Listens where `host` leads on this machine: at its loopback where the name or address means
// nothing else, such as localhost, ::1 and what Debian's /etc/hosts calls the machine, 127.0.1.1;
// else, and where it is empty, at all of this machine's addresses. Port 0: one that is free.
Result<FileDescriptor> listen_at(const std::string& host, std::uint16_t port);
std::uint16_t port_of(const FileDescriptor& listener);
// The address at the other end, in digits.
std::string peer_address(const FileDescriptor& socket);
// A connection that waits, or nothing.
std::optional<FileDescriptor> try_accept(const FileDescriptor& listener);

// Tries again until the deadline: the other side may not be listening yet.
Result<FileDescriptor> connect_to(const HostAndPort& target, Deadline deadline);

// All of it, or an error.
Status send_all(const FileDescriptor& socket, std::span<const std::byte> bytes, Deadline deadline);
Status receive_all(const FileDescriptor& socket, std::span<std::byte> bytes, Deadline deadline);

// Milliseconds until then for poll(), at least 0, at most a minute.
int poll_ms(Deadline deadline);

// A message of the control channel.
struct Frame {
  std::uint32_t type = 0;
  std::string payload;
};
constexpr std::uint32_t kFrameMagic = 0x534c4331;
constexpr std::uint32_t kMaxFrameBytes = 16U << 20;

Status send_frame(const FileDescriptor& socket, const Frame& frame, Deadline deadline);

// Collects frames from a socket without waiting.
class FrameReader {
 public:
  explicit FrameReader(std::uint32_t max_frame_bytes = kMaxFrameBytes)
      : max_frame_bytes_(max_frame_bytes) {}

  // Reads what is there. False: the other side has closed, or sent what is no frame.
  bool read_some(const FileDescriptor& socket);
  // The next whole frame.
  std::optional<Frame> next();

 private:
  std::uint32_t max_frame_bytes_;
  std::string buffer_;
  bool broken_ = false;
};

}  // namespace sluice::engine
