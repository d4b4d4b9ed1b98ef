// How one rank lets another in: both prove the run's secret (run_key.h), on every connection.
//
//   connector -> acceptor   kKnock: a random number
//   acceptor  -> connector  kChallenge: another
//   connector -> acceptor   kJoin: what it says of itself, with its proof of both numbers and that
//   acceptor  -> connector  kWelcome: a proof of the same; or kFailure: why not
//
// Knock: the connector's side. Door: the acceptor's, of a listening socket, for all who come.
//
// Memory:  a Door keeps at most kMostStrangers connections that have proved nothing, each with at
//          most kMaxHandshakeBytes, for at most `patience`; with more, the oldest ones are closed.
// Threads: one at a time for an object. Nothing here waits.
// Errors:  Door::look(): kOutOfMemory where no descriptor is left for a rank.
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
  // `socket` is connected, and belongs to the caller.
  Knock(const RunKey& key, std::string purpose, std::string payload);

  enum class State : std::uint8_t {
    kWaiting,
    kWelcome,
    kRefused,  // refusal() says why
    kClosed,   // by the other side, which may have had no room
    kForeign,  // the other side is no rank of this version
  };
  // Sends the first message; later, reads what is there, and answers. After kWelcome the next byte
  // of the socket is the first one after the handshake.
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
    std::string refusal;  // to one that proves another secret
    std::chrono::milliseconds patience = std::chrono::seconds(10);
    std::size_t most_strangers = kMostStrangers;
  };
  // One that has proved the secret, and waits for welcome() or a kFailure.
  struct Guest {
    FileDescriptor socket;
    std::string payload;
    std::string proof;  // what welcome() sends

    Status welcome() const;
  };

  // The listener must outlive it.
  Door(const FileDescriptor& listener, Options options);

  // For poll(): the listener and all who have not proved anything yet.
  void add_entries(std::vector<pollfd>& entries) const;
  // When one of them has had its time.
  Deadline next_end() const;
  // The address of the last one that has proved another secret; empty: none has.
  const std::string& turned_away() const { return turned_away_; }
  // Accepts who waits, hears who speaks, and closes what has had its time.
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
  // Lets one of them go; those who have proved the secret by now become guests.
  void make_room(std::vector<Guest>& guests);
  // Whether it stays.
  bool hear(Stranger& stranger, std::vector<Guest>& guests);
  std::optional<Guest> join(Stranger& stranger, std::string_view payload);

  const FileDescriptor& listener_;
  const Options options_;
  std::vector<Stranger> strangers_;  // in the order in which they came
  std::string turned_away_;
};

}  // namespace sluice::engine
