#include "engine/comm/rendezvous.h"

#include <poll.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "engine/comm/control_frames.h"
#include "engine/comm/gathering.h"
#include "engine/comm/handshake.h"
#include "engine/comm/launcher_text.h"
#include "engine/comm/rank_hello.h"

namespace sluice::engine {
namespace {

// How long to retry rank 0 while it closes connections, because it may have had no room.
constexpr std::chrono::seconds kClosedFor{5};
constexpr std::chrono::milliseconds kKnockAgainAfter{100};

Status check_context(const RankContext& context) {
  if (context.world >= 1 && context.world <= kMaxRanks && context.rank >= 0 &&
      context.rank < context.world && context.local_rank >= 0 &&
      context.local_rank < context.local_world && context.local_world <= context.world) {
    return {};
  }
  return Error(ErrorCode::kInvalidArgument, "there is no rank " + std::to_string(context.rank) +
                                                " of " + std::to_string(context.world) +
                                                ", local rank " +
                                                std::to_string(context.local_rank) + " of " +
                                                std::to_string(context.local_world));
}

// The other ranks' side.
class Asking {
 public:
  Asking(const TcpOptions& options, Deadline deadline)
      : options_(options),
        master_{options.master_address, options.master_port},
        deadline_(deadline) {}

  Result<Meeting> run() {
    SLUICE_RETURN_IF_ERROR(enter());
    Frame frame;
    SLUICE_RETURN_IF_ERROR(wait_for_table(frame));
    if (frame.type == kFailure) return unpack_failure(frame.payload).second;
    SLUICE_RETURN_IF_ERROR(read_table(frame));
    meeting_.connections.push_back(
        {.rank = 0, .socket = std::move(socket_), .reader = FrameReader(kMaxMemberFrameBytes)});
    return std::move(meeting_);
  }

 private:
  // Retries until rank 0 has admitted this rank.
  Status enter() {
    std::optional<Deadline> closed_until;
    while (true) {
      auto connected = connect_to(master_, deadline_);
      if (!connected.ok()) {
        return Error(connected.error().code(), "rank 0 did not answer within " +
                                                   in_seconds(options_.rendezvous_timeout) + ": " +
                                                   connected.error().message());
      }
      socket_ = std::move(*connected);
      SLUICE_RETURN_IF_ERROR(listen_for_data());
      SLUICE_ASSIGN_OR_RETURN(const Knock::State state, knock());
      if (state == Knock::State::kWelcome) return {};
      if (!closed_until) closed_until = std::min(deadline_, time_now() + kClosedFor);
      if (time_now() >= *closed_until) {
        return Error(ErrorCode::kIo, "rank 0 at " + master_.text() +
                                         " closed the connection: it is gone, or something else "
                                         "listens there");
      }
      std::this_thread::sleep_for(kKnockAgainAfter);
    }
  }

  // Listens at the address by which this rank reaches rank 0, and others then use that address. A
  // rank on rank 0's host uses the master's address.
  Status listen_for_data() {
    if (meeting_.data_listener.is_open()) return {};
    const std::string own = local_address(socket_);
    SLUICE_ASSIGN_OR_RETURN(
        meeting_.data_listener,
        listen_for(options_, is_loopback(own) ? options_.master_address : own, 0));
    return {};
  }

  // Returns kWelcome or kClosed.
  Result<Knock::State> knock() {
    Knock knock(key_of(options_), kMeetingPurpose,
                pack(own_hello(options_, meeting_.data_listener)));
    Knock::State state = knock.begin(socket_);
    // A parent's socket may listen before rank 0 has started.
    const Deadline silent_until = time_now() + options_.answer_timeout;
    while (state == Knock::State::kWaiting) {
      pollfd entry{.fd = socket_.get(), .events = POLLIN, .revents = 0};
      static_cast<void>(::poll(&entry, 1, poll_ms(silent_until)));
      state = knock.look(socket_);
      if (state == Knock::State::kWaiting && time_now() >= silent_until) {
        return Error(ErrorCode::kTimedOut,
                     "what listens at " + master_.text() + " has said nothing for " +
                         in_seconds(options_.answer_timeout) +
                         ": is it rank 0 of this run? Another program may have the port: choose "
                         "another MASTER_PORT");
      }
    }
    if (state == Knock::State::kRefused) return knock.refusal();
    if (state == Knock::State::kForeign) {
      return Error(ErrorCode::kInvalidArgument,
                   "what listens at " + master_.text() +
                       " is not rank 0 of this run, but another program, another version of "
                       "Sluice, or a run with another secret: choose another MASTER_PORT");
    }
    return state;
  }

  Status wait_for_table(Frame& frame) {
    FrameReader reader;
    // Rank 0 may have begun to wait later, and then reports the missing ranks.
    const Deadline last = deadline_ + kGrace;
    while (true) {
      pollfd entry{.fd = socket_.get(), .events = POLLIN, .revents = 0};
      const bool is_there = ::poll(&entry, 1, poll_ms(last)) <= 0 || reader.read_some(socket_);
      if (auto whole = reader.next()) {
        frame = std::move(*whole);
        return {};
      }
      if (!is_there) {
        return Error(ErrorCode::kIo,
                     "rank 0 at " + master_.text() + " closed the connection: it is gone");
      }
      if (time_now() >= last) {
        return Error(ErrorCode::kTimedOut,
                     "rank 0 at " + master_.text() + " let this rank in and said nothing more");
      }
    }
  }

  Status read_table(const Frame& frame) {
    RankTable& table = meeting_.table;
    Unpacker from(frame.payload);
    table.token = from.text();
    for (int rank = 0; rank < options_.context.world && from.good(); ++rank) {
      const int local_rank = from.small_number();
      std::string host = shown(from.text(), kMaxHostBytes);
      const std::string address = shown(from.text(), kMaxAddressBytes);
      const int port = from.small_number();
      table.places.push_back({std::move(host), local_rank});
      table.targets.push_back(
          {address.empty() ? options_.master_address : address, static_cast<std::uint16_t>(port)});
    }
    if (frame.type == kTable && from.good() && table.token.size() == kTokenBytes) return {};
    return Error(ErrorCode::kCorrupt,
                 "what rank 0 sent is no table of ranks: is it another version?");
  }

  const TcpOptions& options_;
  const HostAndPort master_;
  const Deadline deadline_;
  FileDescriptor socket_;
  Meeting meeting_;
};

}  // namespace

Result<Meeting> meet(const TcpOptions& options, FileDescriptor listener) {
  SLUICE_RETURN_IF_ERROR(check_context(options.context));
  // Each other rank needs two descriptors, for control and for data; this rank needs some more.
  SLUICE_RETURN_IF_ERROR(
      make_room_for_descriptors(2 * static_cast<std::uint64_t>(options.context.world) + 16));
  const Deadline deadline = time_now() + options.rendezvous_timeout;
  auto meeting = options.context.rank == 0 ? gather_ranks(options, std::move(listener), deadline)
                                           : Asking(options, deadline).run();
  if (!meeting.ok()) return std::move(meeting).error().with_context("rendezvous");
  return meeting;
}

}  // namespace sluice::engine
