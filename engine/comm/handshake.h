// How one rank admits another: both prove the run's secret (run_key.h), on every connection.
//
//   connector -> acceptor   kKnock: a random number
//   acceptor  -> connector  kChallenge: another random number
//   connector -> acceptor   kJoin: a description of itself, with a proof over both numbers and it
//   acceptor  -> connector  kWelcome: a proof of the same; or kFailure: the reason
//
// Knock: the connector's side. Door: the acceptor's side, for all connections of a listening
// socket.
//
// Memory:  a Door keeps at most kMostStrangers connections without a proof, each with at most
//          kMaxHandshakeBytes, for at most `patience`; if there are more, the oldest are closed.
// Threads: one at a time per object. Nothing here waits.
// Errors:  Door::look(): kOutOfMemory if no descriptor is left for a rank.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aio/result.h"
#include "engine/comm/run_key.h"
#include "engine/comm/tcp_socket.h"

namespace sluice::engine {

constexpr std::uint32_t kMaxHandshakeBytes = 4096;
constexpr std::size_t kMostStrangers = 128;

class Knock {
 public:
  // `socket` is connected, and stays the caller's.
  Knock(const RunKey& key, std::string purpose, std::string payload);

  enum class State : std::uint8_t {
    kWaiting,
    kWelcome,
    kRefused,  // refusal() says why
    kClosed,   // by the other side, perhaps for lack of room
    kForeign,  // the other side is not a rank of this version
  };
  // begin() sends the first message; look() reads the available bytes and replies. After kWelcome
  // the next byte of the socket is the first one after the handshake.
  State begin(const FileDescriptor& socket);
  State look(const FileDescriptor& socket);
  Error refusal() const;
  bool was_challenged() const { return !acceptor_nonce_.empty(); }

 private:
  State answer(const FileDescriptor& socket, const Frame& frame);
  Exchange exchange() const;

  const RunKey key_;
  const std::string purpose_;
  const std::string payload_;
  const std::string nonce_;
  std::string acceptor_nonce_;
  std::string refusal_;
  FrameReader reader_{kMaxHandshakeBytes};
};

class Door {
 public:
  struct Options {
    RunKey key;
    std::string purpose;
    std::string refusal;  // text sent to a connector that proves another secret
    std::chrono::milliseconds patience = std::chrono::seconds(10);
    std::size_t most_strangers = kMostStrangers;
  };
  // A connector that has proved the secret, and waits for welcome() or a kFailure.
  struct Guest {
    FileDescriptor socket;
    std::string payload;
    std::string proof;  // sent by welcome()

    Status welcome() const;
  };

  // The listener must outlive the Door.
  Door(const FileDescriptor& listener, Options options);

  // Adds the listener and all connections without a proof, for poll().
  void add_entries(std::vector<pollfd>& entries) const;
  // The earliest time at which a connection's patience ends.
  Deadline next_end() const;
  // The address of the last connector that proved another secret; empty: none has.
  const std::string& turned_away() const { return turned_away_; }
  // Accepts waiting connections, reads from open ones, and closes the expired ones.
  Result<std::vector<Guest>> look();

 private:
  struct Stranger {
    FileDescriptor socket;
    Deadline until;
    FrameReader reader{kMaxHandshakeBytes};
    std::string connector_nonce = {};
    std::string acceptor_nonce = {};
  };

  Status accept_all(std::vector<Guest>& guests);
  // Closes one connection; those that have proved the secret by now become guests.
  void make_room(std::vector<Guest>& guests);
  // Whether the connection stays.
  bool receive(Stranger& stranger, std::vector<Guest>& guests);
  std::optional<Guest> join(Stranger& stranger, std::string_view payload);

  const FileDescriptor& listener_;
  const Options options_;
  std::vector<Stranger> strangers_;  // in order of arrival
  std::string turned_away_;
};

}  // namespace sluice::engine
