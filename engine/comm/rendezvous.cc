#include "engine/comm/rendezvous.h"

#include <poll.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "aio/log.h"
#include "engine/comm/control_frames.h"
#include "engine/comm/handshake.h"
#include "engine/comm/launcher_text.h"

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

  Result<RendezvousResult> run() {
    SLUICE_RETURN_IF_ERROR(enter());
    Frame frame;
    SLUICE_RETURN_IF_ERROR(wait_for_table(frame));
    if (frame.type == kFailure) return unpack_failure(frame.payload).second;
    SLUICE_RETURN_IF_ERROR(read_table(frame));
    result_.connections.push_back(
        {.rank = 0, .socket = std::move(socket_), .reader = FrameReader(kMaxMemberFrameBytes)});
    return std::move(result_);
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
        return Error(ErrorCode::kIo,
                     "rank 0 at " + master_.text() +
                         " closed the connection: it has ended, or another program uses the port");
      }
      std::this_thread::sleep_for(kKnockAgainAfter);
    }
  }

  // Listens at the address by which this rank reaches rank 0, and others then use that address. A
  // rank on rank 0's host uses the master's address.
  Status listen_for_data() {
    if (result_.data_listener.is_open()) return {};
    const std::string own = local_address(socket_);
    SLUICE_ASSIGN_OR_RETURN(
        result_.data_listener,
        listen_for(options_, is_loopback(own) ? options_.master_address : own, 0));
    return {};
  }

  // Returns kWelcome or kClosed.
  Result<Knock::State> knock() {
    Knock knock(key_of(options_), kRendezvousPurpose,
                pack(own_hello(options_, result_.data_listener)));
    Knock::State state = knock.begin(socket_);
    // A parent's socket may listen before rank 0 has started.
    const Deadline silent_until = time_now() + options_.answer_timeout;
    while (state == Knock::State::kWaiting) {
      pollfd entry{.fd = socket_.get(), .events = POLLIN, .revents = 0};
      static_cast<void>(::poll(&entry, 1, poll_ms(silent_until)));
      state = knock.look(socket_);
      if (state == Knock::State::kWaiting && time_now() >= silent_until) {
        return Error(ErrorCode::kTimedOut,
                     "the process at " + master_.text() + " has not answered for " +
                         in_seconds(options_.answer_timeout) +
                         ": is it rank 0 of this run? Another program may have the port: choose "
                         "another MASTER_PORT");
      }
    }
    if (state == Knock::State::kRefused) return knock.refusal();
    if (state == Knock::State::kForeign) {
      return Error(ErrorCode::kInvalidArgument,
                   "the process at " + master_.text() +
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
        return Error(
            ErrorCode::kTimedOut,
            "rank 0 at " + master_.text() + " accepted this rank, but did not answer afterwards");
      }
    }
  }

  Status read_table(const Frame& frame) {
    RankTable& table = result_.table;
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
                 "rank 0 sent no valid table of ranks: is it another version of Sluice?");
  }

  const TcpOptions& options_;
  const HostAndPort master_;
  const Deadline deadline_;
  FileDescriptor socket_;
  RendezvousResult result_;
};

// After this time rank 0 reports the ranks that it waits for.
constexpr std::chrono::seconds kSaidAfter{5};

class Gathering {
 public:
  Gathering(const TcpOptions& options, FileDescriptor listener)
      : options_(options),
        world_(static_cast<std::size_t>(options.context.world)),
        listener_(std::move(listener)),
        hellos_(world_),
        addresses_(world_) {}

  Result<RendezvousResult> run(Deadline deadline) {
    Status status = begin();
    if (status.ok()) status = gather(deadline);
    if (status.ok()) status = hand_out_table(deadline);
    if (status.ok()) return std::move(result_);
    for (const ControlConnection& member : members()) refuse(member.socket, status.error());
    return std::move(status).error();
  }

 private:
  std::vector<ControlConnection>& members() { return result_.connections; }

  Status begin() {
    SLUICE_ASSIGN_OR_RETURN(result_.data_listener,
                            listen_for(options_, options_.master_address, 0));
    hellos_[0] = own_hello(options_, result_.data_listener);
    if (world_ == 1 || listener_.is_open()) return {};
    SLUICE_ASSIGN_OR_RETURN(listener_,
                            listen_for(options_, options_.master_address, options_.master_port));
    if (!is_on_one_host(options_) && options_.secret.empty()) {
      log::info("this run has no secret: anyone who can reach " + options_.master_address +
                " and knows the job's name can join it. On a shared network, set SLUICE_SECRET or "
                "SLUICE_SECRET_FILE to the same random text on all hosts");
    }
    return {};
  }

  Status gather(Deadline deadline) {
    const Deadline patient_until = time_now() + kSaidAfter;
    bool is_said = false;
    Door door(listener_, {.key = key_of(options_),
                          .purpose = kRendezvousPurpose,
                          .refusal = "rank 0 at " + options_.master_address +
                                     " belongs to another run, or has another SLUICE_SECRET; "
                                     "choose another MASTER_PORT, or give all ranks the same "
                                     "secret"});
    std::vector<pollfd> entries;
    while (members().size() + 1 < world_) {
      entries.clear();
      door.add_entries(entries);
      for (const auto& member : members()) entries.push_back({member.socket.get(), POLLIN, 0});
      const Deadline until = is_said ? deadline : std::min(deadline, patient_until);
      const int wait_ms = poll_ms(std::min(until, door.next_end()));
      if (::poll(entries.data(), entries.size(), wait_ms) <= 0 && time_now() >= until) {
        if (until == deadline) return some_are_missing(door.turned_away());
        is_said = true;
        log::info("waiting for " + missing() + " at " + options_.master_address + ", port " +
                  std::to_string(port_of(listener_)));
      }
      SLUICE_RETURN_IF_ERROR(check_members());
      SLUICE_ASSIGN_OR_RETURN(auto guests, door.look());
      for (Door::Guest& guest : guests) SLUICE_RETURN_IF_ERROR(admit(std::move(guest)));
    }
    return {};
  }

  std::string missing() const {
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < world_; ++rank) {
      if (!hellos_[rank]) ranks.push_back(static_cast<int>(rank));
    }
    return list_ranks(ranks) + " of " + std::to_string(world_);
  }

  // `turned_away`: the address of a process that proved another secret.
  Error some_are_missing(const std::string& turned_away) const {
    return Error(
        ErrorCode::kTimedOut,
        missing() + " did not connect to rank 0 (" + options_.master_address + ", port " +
            std::to_string(port_of(listener_)) + ") within " +
            in_seconds(options_.rendezvous_timeout) + (options_.how_to_start.empty() ? "" : ": ") +
            options_.how_to_start +
            (turned_away.empty() ? ""
                                 : ". A process at " + turned_away +
                                       " connected with another SLUICE_SECRET or SLUICE_JOB"));
  }

  // Checks that all members are still connected. They send nothing before they get the table.
  Status check_members() {
    for (ControlConnection& member : members()) {
      const bool is_there = member.reader.read_some(member.socket);
      static_cast<void>(member.reader.next());
      if (is_there) continue;
      const Hello& hello = *hellos_[static_cast<std::size_t>(member.rank)];
      return Error(ErrorCode::kIo, "rank " + std::to_string(member.rank) + " (" +
                                       host_name(hello.host) +
                                       ") has disconnected before all ranks had connected");
    }
    return {};
  }

  // An error ends the rendezvous.
  Status admit(Door::Guest guest) {
    const std::optional<Hello> hello = unpack_hello(guest.payload);
    if (!hello) return {};  // dropped: not a hello
    const auto rank = static_cast<std::size_t>(hello->rank);
    std::string why;
    if (hello->world != options_.context.world || rank >= world_) {
      why = "rank " + std::to_string(hello->rank) + " says that there are " +
            std::to_string(hello->world) + " ranks, but rank 0 says that there are " +
            std::to_string(world_);
    } else if (hellos_[rank]) {
      why = "two processes claim to be rank " + std::to_string(rank);
    }
    if (!why.empty()) {
      Error error(ErrorCode::kInvalidArgument, std::move(why));
      refuse(guest.socket, error);
      return error;
    }
    if (!guest.welcome().ok()) return {};  // disconnected: it knocks again, or is missing
    addresses_[rank] = peer_address(guest.socket);
    hellos_[rank] = hello;
    members().push_back({.rank = hello->rank,
                         .socket = std::move(guest.socket),
                         .reader = FrameReader(kMaxMemberFrameBytes)});
    return {};
  }

  static void refuse(const FileDescriptor& socket, const Error& error) {
    static_cast<void>(send_frame(socket, failure_frame(-1, error), time_now() + kMostForTelling));
  }

  Status hand_out_table(Deadline deadline) {
    RankTable& table = result_.table;
    table.token = random_bytes(kTokenBytes);
    Packer packer;
    packer.text(table.token);
    for (std::size_t rank = 0; rank < world_; ++rank) {
      const Hello& hello = *hellos_[rank];
      // A rank that came by loopback is on this host, and other ranks reach it at the master's
      // address.
      const std::string came_from = is_loopback(addresses_[rank]) ? "" : addresses_[rank];
      const std::string address = hello.address.empty() ? came_from : hello.address;
      packer.number(static_cast<std::uint64_t>(hello.local_rank))
          .text(hello.host)
          .text(address)
          .number(static_cast<std::uint64_t>(hello.data_port));
      table.places.push_back({hello.host, hello.local_rank});
      table.targets.push_back({address.empty() ? options_.master_address : address,
                               static_cast<std::uint16_t>(hello.data_port)});
    }
    SLUICE_RETURN_IF_ERROR(check_hosts());
    const Frame frame{kTable, packer.take()};
    for (ControlConnection& member : members()) {
      Status sent = send_frame(member.socket, frame, deadline + kGrace);
      if (!sent.ok()) {
        return std::move(sent).error().with_context("answering " +
                                                    name_of_rank(table.places, member.rank));
      }
    }
    return {};
  }

  // Checks that each host has as many ranks as its ranks report.
  Status check_hosts() const {
    const std::vector<RankPlace>& places = result_.table.places;
    SLUICE_RETURN_IF_ERROR(make_groups(places, 0).status());
    for (const std::optional<Hello>& hello : hellos_) {
      const auto on_host = std::count_if(places.begin(), places.end(), [&](const RankPlace& place) {
        return place.host == hello->host;
      });
      if (on_host == hello->local_world) continue;
      return Error(ErrorCode::kInvalidArgument,
                   name_of_rank(places, hello->rank) + " says that its host has " +
                       std::to_string(hello->local_world) + " ranks, and " +
                       std::to_string(on_host) + " connected from there");
    }
    return {};
  }

  const TcpOptions& options_;
  const std::size_t world_;
  FileDescriptor listener_;
  std::vector<std::optional<Hello>> hellos_;  // by rank
  std::vector<std::string> addresses_;        // by rank, as seen from here
  RendezvousResult result_;
};

// Rank 0's side: waits for all other ranks, and sends them the table.
Result<RendezvousResult> gather_ranks(const TcpOptions& options, FileDescriptor listener,
                                      Deadline deadline) {
  return Gathering(options, std::move(listener)).run(deadline);
}

}  // namespace

Result<RendezvousResult> find_ranks(const TcpOptions& options, FileDescriptor listener) {
  SLUICE_RETURN_IF_ERROR(check_context(options.context));
  // Each other rank needs two descriptors, for control and for data; this rank needs some more.
  SLUICE_RETURN_IF_ERROR(
      make_room_for_descriptors(2 * static_cast<std::uint64_t>(options.context.world) + 16));
  const Deadline deadline = time_now() + options.rendezvous_timeout;
  auto result = options.context.rank == 0 ? gather_ranks(options, std::move(listener), deadline)
                                          : Asking(options, deadline).run();
  if (!result.ok()) return std::move(result).error().with_context("rendezvous");
  return result;
}

}  // namespace sluice::engine
