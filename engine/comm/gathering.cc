#include "engine/comm/gathering.h"

#include <poll.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "aio/log.h"
#include "engine/comm/control_frames.h"
#include "engine/comm/handshake.h"
#include "engine/comm/rank_hello.h"

namespace sluice::engine {
namespace {

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

  Result<Meeting> run(Deadline deadline) {
    Status status = begin();
    if (status.ok()) status = gather(deadline);
    if (status.ok()) status = hand_out_table(deadline);
    if (status.ok()) return std::move(meeting_);
    for (const ControlConnection& member : members()) refuse(member.socket, status.error());
    return std::move(status).error();
  }

 private:
  std::vector<ControlConnection>& members() { return meeting_.connections; }

  Status begin() {
    SLUICE_ASSIGN_OR_RETURN(meeting_.data_listener,
                            listen_for(options_, options_.master_address, 0));
    hellos_[0] = own_hello(options_, meeting_.data_listener);
    if (world_ == 1 || listener_.is_open()) return {};
    SLUICE_ASSIGN_OR_RETURN(listener_,
                            listen_for(options_, options_.master_address, options_.master_port));
    if (!is_on_one_host(options_) && options_.secret.empty()) {
      log::info(
          "this run has no secret: who can reach " + options_.master_address +
          " and knows the job's name can join it. On a network that others use, set SLUICE_SECRET "
          "or SLUICE_SECRET_FILE to the same random text on all hosts");
    }
    return {};
  }

  Status gather(Deadline deadline) {
    const Deadline patient_until = time_now() + kSaidAfter;
    bool is_said = false;
    Door door(listener_, {.key = key_of(options_),
                          .purpose = kMeetingPurpose,
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
    return Error(ErrorCode::kTimedOut,
                 missing() + " did not come to rank 0 (" + options_.master_address + ", port " +
                     std::to_string(port_of(listener_)) + ") within " +
                     in_seconds(options_.rendezvous_timeout) +
                     (options_.how_to_start.empty() ? "" : ": ") + options_.how_to_start +
                     (turned_away.empty() ? ""
                                          : ". A process at " + turned_away +
                                                " came with another SLUICE_SECRET or "
                                                "SLUICE_JOB"));
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
                                       ") is gone: it left before all had come");
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
            std::to_string(hello->world) + " ranks, and rank 0 that there are " +
            std::to_string(world_);
    } else if (hellos_[rank]) {
      why = "two processes say that they are rank " + std::to_string(rank);
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
    RankTable& table = meeting_.table;
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
    const std::vector<RankPlace>& places = meeting_.table.places;
    SLUICE_RETURN_IF_ERROR(make_groups(places, 0).status());
    for (const std::optional<Hello>& hello : hellos_) {
      const auto on_host = std::count_if(places.begin(), places.end(), [&](const RankPlace& place) {
        return place.host == hello->host;
      });
      if (on_host == hello->local_world) continue;
      return Error(ErrorCode::kInvalidArgument,
                   name_of_rank(places, hello->rank) + " says that its host has " +
                       std::to_string(hello->local_world) + " ranks, and " +
                       std::to_string(on_host) + " came from there");
    }
    return {};
  }

  const TcpOptions& options_;
  const std::size_t world_;
  FileDescriptor listener_;
  std::vector<std::optional<Hello>> hellos_;  // by rank
  std::vector<std::string> addresses_;        // by rank, as seen from here
  Meeting meeting_;
};

}  // namespace

Result<Meeting> gather_ranks(const TcpOptions& options, FileDescriptor listener,
                             Deadline deadline) {
  return Gathering(options, std::move(listener)).run(deadline);
}

}  // namespace sluice::engine
