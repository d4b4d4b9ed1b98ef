// How a rank describes itself at the rendezvous, and where it listens; for gathering.cc and
// rendezvous.cc.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "aio/result.h"
#include "engine/comm/run_key.h"
#include "engine/comm/tcp_communicator.h"
#include "engine/comm/tcp_socket.h"

namespace sluice::engine {

constexpr const char* kMeetingPurpose = "meeting";  // of a handshake
constexpr std::size_t kMaxHostBytes = 512;
constexpr std::size_t kMaxAddressBytes = 256;
constexpr std::size_t kTokenBytes = 32;
// The maximum frame of an admitted rank: beats, and the reason of a failure.
constexpr std::uint32_t kMaxMemberFrameBytes = 64U << 10;
// Rank 0 may have begun to wait later than the others, and reports the missing ranks to them.
constexpr std::chrono::seconds kGrace{10};

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
