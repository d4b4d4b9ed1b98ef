#include "engine/comm/rendezvous.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <random>
#include <utility>

#include "aio/log.h"
#include "engine/comm/control_frames.h"

namespace sluice::engine {
namespace {

constexpr std::uint32_t kMaxHelloBytes = 4096;
constexpr std::size_t kMaxStrangers = 1024;
// Rank 0 may have begun to wait later than the others, and tells them who is missing.
constexpr std::chrono::seconds kGrace{10};
// After so long rank 0 says whom it waits for.
constexpr std::chrono::seconds kSaidAfter{5};

struct Hello {
  int rank = 0;
  int world = 0;
  int local_rank = 0;
  int local_world = 0;
  int data_port = 0;
  std::string job;
  std::string host;
};

std::string pack(const Hello& hello) {
  return Packer()
      .number(static_cast<std::uint64_t>(hello.rank))
      .number(static_cast<std::uint64_t>(hello.world))
      .number(static_cast<std::uint64_t>(hello.local_rank))
      .number(static_cast<std::uint64_t>(hello.local_world))
      .number(static_cast<std::uint64_t>(hello.data_port))
      .text(hello.job)
      .text(hello.host)
      .take();
}

std::optional<Hello> unpack_hello(std::string_view payload) {
  Unpacker from(payload);
  Hello hello;
  hello.rank = from.small_number();
  hello.world = from.small_number();
  hello.local_rank = from.small_number();
  hello.local_world = from.small_number();
  hello.data_port = from.small_number();
  hello.job = from.text();
  hello.host = from.text();
  return from.good() ? std::optional(hello) : std::nullopt;
}

std::string this_host() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) name = {"?"};
  std::array<char, 64> boot{};
  // Containers of one machine have names of their own, machines of one name boots of their own.
  if (FILE* const file = std::fopen("/proc/sys/kernel/random/boot_id", "re")) {
    const std::size_t size = std::fread(boot.data(), 1, 36, file);
    boot[size] = '\0';
    static_cast<void>(std::fclose(file));
  }
  return std::string(name.data()) + "/" + boot.data();
}

Hello own_hello(const TcpOptions& options, std::uint16_t data_port) {
  return {.rank = options.context.rank,
          .world = options.context.world,
          .local_rank = options.context.local_rank,
          .local_world = options.context.local_world,
          .data_port = data_port,
          .job = options.job,
          .host = options.host.empty() ? this_host() : options.host};
}

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

// Rank 0's side.
class Gathering {
 public:
  Gathering(const TcpOptions& options, FileDescriptor listener, std::uint16_t data_port)
      : options_(options),
        world_(static_cast<std::size_t>(options.context.world)),
        listener_(std::move(listener)),
        hellos_(world_),
        addresses_(world_) {
    hellos_[0] = own_hello(options, data_port);
  }

  Result<Meeting> run(Deadline deadline) {
    Status status = gather(deadline);
    if (status.ok()) status = hand_out_table(deadline);
    if (status.ok()) return std::move(meeting_);
    for (ControlConnection& member : members()) refuse(member, status.error());
    return std::move(status).error();
  }

 private:
  std::vector<ControlConnection>& members() { return meeting_.connections; }

  Status gather(Deadline deadline) {
    const Deadline patient_until = time_now() + kSaidAfter;
    bool is_said = false;
    if (world_ > 1 && !listener_.is_open()) {
      SLUICE_ASSIGN_OR_RETURN(listener_, listen_at(listening_host(options_), options_.master_port));
    }
    while (members().size() + 1 < world_) {
      std::vector<pollfd> entries = {{listener_.get(), POLLIN, 0}};
      for (const auto* list : {&members(), &strangers_}) {
        for (const auto& one : *list) entries.push_back({one.socket.get(), POLLIN, 0});
      }
      const Deadline until = is_said ? deadline : std::min(deadline, patient_until);
      if (::poll(entries.data(), entries.size(), poll_ms(until)) <= 0 && time_now() >= until) {
        if (until == deadline) return some_are_missing();
        is_said = true;
        log::info("waiting for " + missing() + " at " + options_.master_address + ", port " +
                  std::to_string(port_of(listener_)));
      }
      while (auto socket = try_accept(listener_)) {
        if (strangers_.size() >= kMaxStrangers) strangers_.erase(strangers_.begin());
        strangers_.push_back({.socket = std::move(*socket), .reader = FrameReader(kMaxHelloBytes)});
      }
      SLUICE_RETURN_IF_ERROR(check_members());
      SLUICE_RETURN_IF_ERROR(hear_strangers());
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

  Error some_are_missing() const {
    return Error(ErrorCode::kTimedOut, missing() + " did not come to rank 0 (" +
                                           options_.master_address + ", port " +
                                           std::to_string(port_of(listener_)) + ") within " +
                                           in_seconds(options_.rendezvous_timeout));
  }

  // That all who came are still there. They have no reason to speak before the table is out.
  Status check_members() {
    for (ControlConnection& member : members()) {
      if (member.reader.read_some(member.socket)) continue;
      const Hello& hello = *hellos_[static_cast<std::size_t>(member.rank)];
      return Error(ErrorCode::kIo, "rank " + std::to_string(member.rank) + " (" +
                                       host_name(hello.host) +
                                       ") is gone: it left before all had come");
    }
    return {};
  }

  Status hear_strangers() {
    for (std::size_t i = 0; i < strangers_.size();) {
      const bool open = strangers_[i].reader.read_some(strangers_[i].socket);
      const std::optional<Frame> frame = strangers_[i].reader.next();
      if (!frame && open) {
        ++i;
        continue;
      }
      ControlConnection stranger = std::move(strangers_[i]);
      strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(i));
      const std::optional<Hello> hello =
          frame && frame->type == kHello ? unpack_hello(frame->payload) : std::nullopt;
      if (hello) SLUICE_RETURN_IF_ERROR(admit(std::move(stranger), *hello));
    }
    return {};
  }

  // An error is the end of the rendezvous; one of another run is only turned away.
  Status admit(ControlConnection stranger, const Hello& hello) {
    if (hello.job != options_.job) {
      refuse(stranger, Error(ErrorCode::kInvalidArgument,
                             "at " + options_.master_address +
                                 " there is rank 0 of another run; choose another MASTER_PORT"));
      return {};
    }
    const auto rank = static_cast<std::size_t>(hello.rank);
    std::string why;
    if (hello.world != options_.context.world || rank >= world_) {
      why = "rank " + std::to_string(hello.rank) + " says that there are " +
            std::to_string(hello.world) + " ranks, and rank 0 that there are " +
            std::to_string(world_);
    } else if (hellos_[rank]) {
      why = "two processes say that they are rank " + std::to_string(rank);
    }
    if (!why.empty()) {
      Error error(ErrorCode::kInvalidArgument, std::move(why));
      refuse(stranger, error);
      return error;
    }
    addresses_[rank] = peer_address(stranger.socket);
    hellos_[rank] = hello;
    stranger.rank = hello.rank;
    stranger.reader = FrameReader();
    members().push_back(std::move(stranger));
    return {};
  }

  static void refuse(const ControlConnection& connection, const Error& error) {
    static_cast<void>(
        send_frame(connection.socket, failure_frame(-1, error), time_now() + kMostForTelling));
  }

  Status hand_out_table(Deadline deadline) {
    RankTable& table = meeting_.table;
    std::random_device random;
    table.token = (std::uint64_t{random()} << 32U) | random();
    Packer packer;
    packer.number(table.token);
    for (std::size_t rank = 0; rank < world_; ++rank) {
      const Hello& hello = *hellos_[rank];
      // Who came by loopback is on this host, and others reach it as they reach this one.
      const std::string address = is_loopback(addresses_[rank]) ? "" : addresses_[rank];
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

  // That each host has the ranks which its ranks say it has.
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
  std::vector<ControlConnection> strangers_;  // who has not said yet which rank it is
  Meeting meeting_;
};

Result<Meeting> ask_master(const TcpOptions& options, std::uint16_t data_port, Deadline deadline) {
  const HostAndPort master{options.master_address, options.master_port};
  auto connected = connect_to(master, deadline);
  if (!connected.ok()) {
    return Error(connected.error().code(), "rank 0 did not answer within " +
                                               in_seconds(options.rendezvous_timeout) + ": " +
                                               connected.error().message());
  }
  ControlConnection member{.rank = 0, .socket = std::move(*connected)};
  const Hello hello = own_hello(options, data_port);
  SLUICE_RETURN_IF_ERROR(send_frame(member.socket, {kHello, pack(hello)}, deadline));
  // Rank 0 may have begun to wait later, and then says who is missing.
  const Deadline last = deadline + kGrace;
  std::optional<Frame> frame;
  bool open = true;
  while (!frame) {
    pollfd entry{.fd = member.socket.get(), .events = POLLIN, .revents = 0};
    const bool readable = ::poll(&entry, 1, poll_ms(last)) > 0;
    if (readable) open = member.reader.read_some(member.socket);
    frame = member.reader.next();
    if (!frame && !open) {
      return Error(ErrorCode::kIo, "rank 0 at " + master.text() +
                                       " closed the connection: it is gone, or something else "
                                       "listens there");
    }
    if (!frame && time_now() >= last) {
      return Error(ErrorCode::kTimedOut,
                   "rank 0 at " + master.text() + " let this rank connect and said nothing");
    }
  }
  if (frame->type == kFailure) return unpack_failure(frame->payload).second;
  Meeting meeting;
  Unpacker from(frame->payload);
  meeting.table.token = from.number();
  for (int rank = 0; rank < options.context.world && from.good(); ++rank) {
    const int local_rank = from.small_number();
    std::string host = from.text();
    const std::string address = from.text();
    const int port = from.small_number();
    meeting.table.places.push_back({std::move(host), local_rank});
    meeting.table.targets.push_back(
        {address.empty() ? options.master_address : address, static_cast<std::uint16_t>(port)});
  }
  if (frame->type != kTable || !from.good()) {
    return Error(ErrorCode::kCorrupt,
                 "what rank 0 sent is no table of ranks: is it another version?");
  }
  meeting.connections.push_back(std::move(member));
  return meeting;
}

}  // namespace

std::string listening_host(const TcpOptions& options) {
  return options.context.world == options.context.local_world ? options.master_address
                                                              : std::string();
}

Result<Meeting> meet(const TcpOptions& options, FileDescriptor listener, std::uint16_t data_port) {
  SLUICE_RETURN_IF_ERROR(check_context(options.context));
  const Deadline deadline = time_now() + options.rendezvous_timeout;
  auto meeting = options.context.rank == 0
                     ? Gathering(options, std::move(listener), data_port).run(deadline)
                     : ask_master(options, data_port, deadline);
  if (!meeting.ok()) return std::move(meeting).error().with_context("rendezvous");
  return meeting;
}

}  // namespace sluice::engine
