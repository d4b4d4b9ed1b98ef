#include "engine/comm/tcp_socket.h"

#include <dirent.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

namespace sluice::engine {
namespace {

using std::chrono::milliseconds;

constexpr int kBacklog = 4096;
constexpr milliseconds kRetryEvery{50};

Error socket_error(const std::string& what, int error_number) {
  return Error(ErrorCode::kIo, what + ": " + std::strerror(error_number));
}

void set_option(int fd, int level, int name, int value) {
  static_cast<void>(::setsockopt(fd, level, name, &value, sizeof value));
}

// Returns false at the deadline.
bool wait_for(int fd, short events, Deadline deadline) {
  do {
    pollfd entry{.fd = fd, .events = events, .revents = 0};
    if (::poll(&entry, 1, poll_ms(deadline)) > 0) return true;
  } while (time_now() < deadline);
  return false;
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  const sockaddr* generic() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

bool is_loopback_address(const addrinfo& address) {
  if (address.ai_family == AF_INET6) {
    const in6_addr& in6 = reinterpret_cast<const sockaddr_in6*>(address.ai_addr)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&in6);
  }
  if (address.ai_family != AF_INET) return false;
  const in_addr& in4 = reinterpret_cast<const sockaddr_in*>(address.ai_addr)->sin_addr;
  return ntohl(in4.s_addr) >> 24U == IN_LOOPBACKNET;
}

SocketAddress any_address(int family, std::uint16_t port) {
  SocketAddress address;
  if (family == AF_INET6) {
    auto* const in6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
    in6->sin6_family = AF_INET6;
    in6->sin6_addr = in6addr_any;
    in6->sin6_port = htons(port);
    address.size = sizeof *in6;
  } else {
    auto* const in4 = reinterpret_cast<sockaddr_in*>(&address.storage);
    in4->sin_family = AF_INET;
    in4->sin_addr.s_addr = htonl(INADDR_ANY);
    in4->sin_port = htons(port);
    address.size = sizeof *in4;
  }
  return address;
}

std::vector<SocketAddress> all_addresses(std::uint16_t port) {
  return {any_address(AF_INET6, port), any_address(AF_INET, port)};
}

// The addresses of `host`; none if the name cannot be resolved here.
std::vector<SocketAddress> addresses_of(const std::string& host, std::uint16_t port,
                                        std::size_t& loopbacks) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (host.empty() || ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list) != 0)
    return {};
  const Addresses owner(list);
  std::vector<SocketAddress> found;
  for (const addrinfo* it = list; it != nullptr; it = it->ai_next) {
    if (is_loopback_address(*it)) ++loopbacks;
    SocketAddress& address = found.emplace_back();
    address.size = it->ai_addrlen;
    std::memcpy(&address.storage, it->ai_addr, it->ai_addrlen);
  }
  return found;
}

// In the order in which they are tried: IPv6 first; without IPv6 only IPv4 succeeds.
std::vector<SocketAddress> listening_addresses(const std::string& host, std::uint16_t port,
                                               Reach reach) {
  std::size_t loopbacks = 0;
  std::vector<SocketAddress> found = addresses_of(host, port, loopbacks);
  if (found.empty()) return all_addresses(port);
  // A client tries all addresses of a name.
  if (loopbacks == found.size() && reach == Reach::kThisHost) return found;
  if (loopbacks == 0 && found.size() == 1) return found;
  return all_addresses(port);
}

// Returns a closed descriptor on failure; then `error` has the reason.
FileDescriptor listening(const SocketAddress& address, int& error) {
  FileDescriptor socket(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (socket.is_open()) {
    set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (address.storage.ss_family == AF_INET6)
      set_option(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (::bind(socket.get(), address.generic(), address.size) == 0 &&
        ::listen(socket.get(), kBacklog) == 0) {
      return socket;
    }
  }
  error = errno;
  return {};
}

Error listening_failed(std::uint16_t port, int error) {
  return Error(
      error == EADDRINUSE ? ErrorCode::kBusy : ErrorCode::kIo,
      "listening at port " + std::to_string(port) + " failed: " + std::strerror(error) +
          (error == EADDRINUSE ? "; another run uses it: choose another MASTER_PORT" : ""));
}

// One connection attempt to one address.
Result<FileDescriptor> connect_once(const addrinfo& address, Deadline deadline) {
  FileDescriptor socket(
      ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!socket.is_open()) return socket_error("socket", errno);
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return socket_error("connect", errno);
    if (!wait_for(socket.get(), POLLOUT,
                  std::min(deadline, time_now() + std::chrono::seconds(5)))) {
      return Error(ErrorCode::kTimedOut, "connect: no answer");
    }
    int error = 0;
    socklen_t size = sizeof error;
    static_cast<void>(::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size));
    if (error != 0) return socket_error("connect", error);
  }
  // A connection to an unused local port can connect to its own end.
  sockaddr_storage local{};
  sockaddr_storage remote{};
  socklen_t local_size = sizeof local;
  socklen_t remote_size = sizeof remote;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local), &local_size) == 0 &&
      ::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&remote), &remote_size) == 0 &&
      local_size == remote_size && std::memcmp(&local, &remote, local_size) == 0) {
    return socket_error("connect", ECONNREFUSED);
  }
  set_option(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  return socket;
}

std::string digits_of(const FileDescriptor& socket, decltype(&::getpeername) which) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  std::array<char, NI_MAXHOST> host{};
  if (which(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host.data(), host.size(), nullptr,
                    0, NI_NUMERICHOST) != 0) {
    return {};
  }
  return host.data();
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

std::string HostAndPort::text() const {
  const bool digits6 = host.find(':') != std::string::npos;
  return (digits6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

bool is_loopback(std::string_view host) {
  if (host.starts_with("::ffff:")) host.remove_prefix(7);
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

bool is_own_address(const std::string& host) {
  std::size_t loopbacks = 0;
  const std::vector<SocketAddress> addresses = addresses_of(host, /*port=*/0, loopbacks);
  return std::any_of(addresses.begin(), addresses.end(), [](const SocketAddress& address) {
    const FileDescriptor socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto* const at = reinterpret_cast<const sockaddr*>(&address.storage);
    return socket.is_open() && ::bind(socket.get(), at, address.size) == 0;
  });
}

Result<FileDescriptor> listen_at(const std::string& host, std::uint16_t port, Reach reach) {
  std::vector<SocketAddress> at = listening_addresses(host, port, reach);
  int error = 0;
  for (std::size_t i = 0; i < at.size(); ++i) {
    FileDescriptor socket = listening(at[i], error);
    if (socket.is_open()) return socket;
    if (error == EADDRINUSE) break;
    // The name belongs to another machine, or means this one only on other hosts.
    if (error == EADDRNOTAVAIL && at.size() == 1) at = all_addresses(port), i = SIZE_MAX;
  }
  return listening_failed(port, error);
}

Result<FileDescriptor> listen_only_at(const std::string& address, std::uint16_t port) {
  std::size_t loopbacks = 0;
  int error = EADDRNOTAVAIL;
  for (const SocketAddress& at : addresses_of(address, port, loopbacks)) {
    FileDescriptor socket = listening(at, error);
    if (socket.is_open()) return socket;
    if (error == EADDRINUSE) break;
  }
  if (error != EADDRNOTAVAIL) return listening_failed(port, error);
  return Error(ErrorCode::kInvalidArgument, "this host has no address " + address);
}

std::uint16_t port_of(const FileDescriptor& listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

std::string peer_address(const FileDescriptor& socket) { return digits_of(socket, ::getpeername); }

std::string local_address(const FileDescriptor& socket) { return digits_of(socket, ::getsockname); }

std::optional<FileDescriptor> try_accept(const FileDescriptor& listener, int* error) {
  FileDescriptor socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.is_open()) {
    if (error != nullptr) *error = errno;
    return std::nullopt;
  }
  set_option(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  return socket;
}

Status make_room_for_descriptors(std::uint64_t more) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return {};
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir("/proc/self/fd"), ::closedir);
  if (!open) return {};
  std::uint64_t needed = more;
  while (::readdir(open.get()) != nullptr) ++needed;  // NOLINT(concurrency-mt-unsafe): its own
  if (needed <= limit.rlim_cur) return {};
  limit.rlim_cur = std::min<rlim_t>(needed, limit.rlim_max);
  if (::setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= needed) return {};
  return Error(ErrorCode::kOutOfMemory,
               "this process needs " + std::to_string(needed) +
                   " file descriptors for connections to the other ranks, but may have only " +
                   std::to_string(limit.rlim_max) +
                   " (ulimit -Hn): raise the limit in /etc/security/limits.conf, or with "
                   "LimitNOFILE= or docker run --ulimit nofile");
}

Result<FileDescriptor> connect_to(const HostAndPort& target, Deadline deadline) {
  std::string last = "no answer";
  while (true) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int result =
        ::getaddrinfo(target.host.c_str(), std::to_string(target.port).c_str(), &hints, &found);
    const Addresses addresses(found);
    if (result != 0) {
      last = "the host name cannot be resolved: " + std::string(::gai_strerror(result));
    } else {
      for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
        auto socket = connect_once(*address, deadline);
        if (socket.ok()) return socket;
        last = socket.error().message();
      }
    }
    if (time_now() + kRetryEvery >= deadline) break;
    std::this_thread::sleep_for(kRetryEvery);
  }
  return Error(ErrorCode::kTimedOut, "no connection to " + target.text() + " (" + last + ")");
}

int poll_ms(Deadline deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - time_now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
}

Status send_all(const FileDescriptor& socket, std::span<const std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent =
        ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (sent < 0 && errno != EAGAIN && errno != EINTR) {
      return socket_error("send", errno);
    } else if (!wait_for(socket.get(), POLLOUT, deadline)) {
      return Error(ErrorCode::kTimedOut, "send: the other side does not receive");
    }
  }
  return {};
}

Status receive_all(const FileDescriptor& socket, std::span<std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t got = ::recv(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    } else if (got == 0) {
      return Error(ErrorCode::kIo, "receive: the other side closed the connection");
    } else if (errno != EAGAIN && errno != EINTR) {
      return socket_error("receive", errno);
    } else if (!wait_for(socket.get(), POLLIN, deadline)) {
      return Error(ErrorCode::kTimedOut, "receive: timed out");
    }
  }
  return {};
}

Status send_frame(const FileDescriptor& socket, const Frame& frame, Deadline deadline) {
  const std::array<std::uint32_t, 3> head = {kFrameMagic, frame.type,
                                             static_cast<std::uint32_t>(frame.payload.size())};
  std::string bytes(reinterpret_cast<const char*>(head.data()), sizeof head);
  bytes += frame.payload;
  return send_all(socket, std::as_bytes(std::span(bytes)), deadline);
}

// The size of the frame whose beginning has arrived.
std::size_t FrameReader::wanted_bytes() const {
  Head head{};
  if (buffer_.size() < sizeof head) return sizeof head;
  std::memcpy(head.data(), buffer_.data(), sizeof head);
  return sizeof head + head[2];
}

bool FrameReader::read_some(const FileDescriptor& socket) {
  std::array<char, 16384> chunk;  // NOLINT(cppcoreguidelines-pro-type-member-init)
  while (!broken_ && buffer_.size() < wanted_bytes()) {
    const std::size_t missing = wanted_bytes() - buffer_.size();
    const ssize_t got =
        ::recv(socket.get(), chunk.data(), std::min(missing, chunk.size()), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return true;
    if (got <= 0) return false;
    buffer_.append(chunk.data(), static_cast<std::size_t>(got));
    // Checked as early as possible, because a foreign process may send for ever.
    constexpr std::uint32_t kMagic = kFrameMagic;
    const std::size_t known = std::min(buffer_.size(), sizeof kMagic);
    broken_ = std::memcmp(buffer_.data(), &kMagic, known) != 0 ||
              wanted_bytes() > sizeof(Head) + max_frame_bytes_;
  }
  return !broken_;
}

std::optional<Frame> FrameReader::next() {
  if (broken_ || buffer_.size() < sizeof(Head) || buffer_.size() < wanted_bytes())
    return std::nullopt;
  Head head{};
  std::memcpy(head.data(), buffer_.data(), sizeof head);
  Frame frame{.type = head[1], .payload = buffer_.substr(sizeof head)};
  buffer_.clear();
  return frame;
}

}  // namespace sluice::engine
