// Sockets for the control channel and the data links: ownership, connecting and listening with time
// limits, and framed messages that are read as they arrive.
//
// Threads: one at a time per object.
// Errors:  kTimedOut, or kIo with errno in words and the address. No call raises SIGPIPE.
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

// Whether these digits, or "localhost", are an address that cannot be reached from outside.
bool is_loopback(std::string_view host);
// Whether this host has an address of this name: a socket can be bound to it.
bool is_own_address(const std::string& host);

enum class Reach : std::uint8_t {
  kThisHost,  // loopback is enough, if the name or address means nothing else
  kAllHosts,
};
// Listens on this machine at the address of `host`. localhost, ::1 and 127.0.1.1 (Debian's
// /etc/hosts entry for the machine's name) mean loopback; another name means its address here. In
// three cases it listens at all of this machine's addresses. `host` is empty; its name has several
// addresses or none here, such as a Kubernetes service; or it means loopback, and others must reach
// it. Port 0: a free one.
Result<FileDescriptor> listen_at(const std::string& host, std::uint16_t port, Reach reach);
// Listens only at this address of this host. kInvalidArgument: the host does not have it.
Result<FileDescriptor> listen_only_at(const std::string& address, std::uint16_t port);
std::uint16_t port_of(const FileDescriptor& listener);
// The numeric addresses of the other end and of this end.
std::string peer_address(const FileDescriptor& socket);
std::string local_address(const FileDescriptor& socket);
// A waiting connection, or nullopt with errno in `error`.
std::optional<FileDescriptor> try_accept(const FileDescriptor& listener, int* error = nullptr);

// Raises this process's descriptor limit if fewer than `more` are free. kOutOfMemory: not
// permitted.
Status make_room_for_descriptors(std::uint64_t more);

// Retries until the deadline, because the other side may not listen yet.
Result<FileDescriptor> connect_to(const HostAndPort& target, Deadline deadline);

// Sends all bytes, or returns an error.
Status send_all(const FileDescriptor& socket, std::span<const std::byte> bytes, Deadline deadline);
Status receive_all(const FileDescriptor& socket, std::span<std::byte> bytes, Deadline deadline);

// Milliseconds until the deadline for poll(), at least 0 and at most a minute.
int poll_ms(Deadline deadline);

// A message of the control channel.
struct Frame {
  std::uint32_t type = 0;
  std::string payload;
};
constexpr std::uint32_t kFrameMagic = 0x534c4332;
constexpr std::uint32_t kMaxFrameBytes = 16U << 20;

Status send_frame(const FileDescriptor& socket, const Frame& frame, Deadline deadline);

// Collects frames from a socket without waiting. It never reads beyond the current frame, and reads
// nothing of a frame that is too long.
class FrameReader {
 public:
  explicit FrameReader(std::uint32_t max_frame_bytes = kMaxFrameBytes)
      : max_frame_bytes_(max_frame_bytes) {}

  // Reads the available bytes of one frame. False: the other side has closed, or sent something
  // that is not a frame.
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
