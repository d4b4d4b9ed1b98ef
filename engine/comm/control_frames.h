// The frames of the control channel and their payloads, for rendezvous.cc and control_channel.cc;
// and how a rank describes itself at the rendezvous, and where it listens.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "aio/result.h"
#include "engine/comm/run_key.h"
#include "engine/comm/tcp_communicator.h"
#include "engine/comm/tcp_socket.h"

namespace sluice::engine {

enum FrameType : std::uint32_t {
  kKnock = 1,  // see handshake.h, also for the next two and kWelcome
  kChallenge,
  kJoin,
  kWelcome,
  kTable,
  kFailure,
  kBeat,
  kGoodbye,
};

// How long a rank may take to read a frame that ends the run.
constexpr std::chrono::seconds kMostForTelling{1};

class Packer {
 public:
  Packer& number(std::uint64_t value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Packer& text(std::string_view value) {
    number(value.size());
    bytes_ += value;
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Once a read fails, good() is false, and all further values are 0 or empty.
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : rest_(bytes) {}

  std::uint64_t number() {
    std::uint64_t value = 0;
    if (rest_.size() < sizeof value) {
      good_ = false;
      return 0;
    }
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_.remove_prefix(sizeof value);
    return value;
  }
  int small_number() {
    const std::uint64_t value = number();
    if (value > 1U << 20) good_ = false;
    return good_ ? static_cast<int>(value) : 0;
  }
  std::string text() {
    const std::uint64_t size = number();
    if (size > rest_.size()) good_ = false;
    if (!good_) return {};
    std::string value(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return value;
  }
  bool good() const { return good_; }

 private:
  std::string_view rest_;
  bool good_ = true;
};

// The failed rank (-1: the rendezvous) and its error.
Frame failure_frame(int rank, const Error& error);
std::pair<int, Error> unpack_failure(std::string_view payload);

// "300 ms", "5 s".
std::string in_seconds(std::chrono::milliseconds time);

constexpr const char* kRendezvousPurpose = "rendezvous";  // of a handshake
constexpr std::size_t kMaxHostBytes = 512;
constexpr std::size_t kMaxAddressBytes = 256;
constexpr std::size_t kTokenBytes = 32;
// The maximum frame of an admitted rank: beats, and the reason of a failure.
constexpr std::uint32_t kMaxMemberFrameBytes = 64U << 10;
// Rank 0 may have begun to wait later than the others, and reports the missing ranks to them.
constexpr std::chrono::seconds kGrace{10};

// How a rank describes itself at the rendezvous.
struct Hello {
  int rank = 0;
  int world = 0;
  int local_rank = 0;
  int local_world = 0;
  int data_port = 0;
  std::string address;  // where it listens for data; empty: its connection's address
  std::string host;
};

std::string pack(const Hello& hello);
std::optional<Hello> unpack_hello(std::string_view payload);
Hello own_hello(const TcpOptions& options, const FileDescriptor& data_listener);

RunKey key_of(const TcpOptions& options);
bool is_on_one_host(const TcpOptions& options);
// Listens where `host` leads (see listen_at()); if TcpOptions has an address, only at that one.
// Ranks of one host that meet at its loopback are an exception: nothing outside has to reach them.
Result<FileDescriptor> listen_for(const TcpOptions& options, const std::string& host,
                                  std::uint16_t port);

}  // namespace sluice::engine
