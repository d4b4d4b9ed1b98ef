// Sockets for the control channel and the data links: ownership, connecting and listening with time
// limits, and framed messages that are read as they come.
//
// Threads: one at a time for an object.
// Errors:  kTimedOut, or kIo with errno in words and the address. Nothing here raises SIGPIPE.
#pragma once

#include <array>
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

enum class Reach : std::uint8_t {
  kThisHost,  // loopback will do, where the name or address means nothing else
  kAllHosts,
};
// Listens where `host` leads on this machine: localhost, ::1 and what Debian's /etc/hosts calls the
// machine, 127.0.1.1, are its loopback; another name is the address that it has here. At all of
// this machine's addresses where it has several or none here, as a service's name in Kubernetes
// has, where it is empty, and where others have to reach what is loopback here. Port 0: a free one.
Result<FileDescriptor> listen_at(const std::string& host, std::uint16_t port, Reach reach);
// At that address of this host and nowhere else. kInvalidArgument: it has no such address.
Result<FileDescriptor> listen_only_at(const std::string& address, std::uint16_t port);
std::uint16_t port_of(const FileDescriptor& listener);
// The addresses at the other end and at this one, in digits.
std::string peer_address(const FileDescriptor& socket);
std::string local_address(const FileDescriptor& socket);
// A connection that waits, or nothing, with errno in `error`.
std::optional<FileDescriptor> try_accept(const FileDescriptor& listener, int* error = nullptr);

// Raises this process's limit where it has not so many more descriptors. kOutOfMemory: it may not.
Status make_room_for_descriptors(std::uint64_t more);

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
constexpr std::uint32_t kFrameMagic = 0x534c4332;
constexpr std::uint32_t kMaxFrameBytes = 16U << 20;

Status send_frame(const FileDescriptor& socket, const Frame& frame, Deadline deadline);

// Collects frames from a socket without waiting, each by itself: nothing beyond it is read, and
// nothing of one that is too long.
class FrameReader {
 public:
  explicit FrameReader(std::uint32_t max_frame_bytes = kMaxFrameBytes)
      : max_frame_bytes_(max_frame_bytes) {}

  // Reads what is there of one frame. False: the other side has closed, or sent what is no frame.
  bool read_some(const FileDescriptor& socket);
  bool is_broken() const { return broken_; }
  // The next whole frame.
  std::optional<Frame> next();

 private:
  using Head = std::array<std::uint32_t, 3>;  // magic, type, bytes of the payload

  std::size_t wanted_bytes() const;

  std::uint32_t max_frame_bytes_;
  std::string buffer_;
  bool broken_ = false;
};

}  // namespace sluice::engine
