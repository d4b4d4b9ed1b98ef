#include "engine/comm/control_channel.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <random>
#include <utility>

namespace sluice::engine {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

enum FrameType : std::uint32_t { kHello = 1, kTable, kFailure, kBeat, kGoodbye };

constexpr std::uint32_t kMaxHelloBytes = 4096;
constexpr std::size_t kMaxStrangers = 1024;
constexpr std::size_t kMaxReasonBytes = 4096;
// A rank that has been told its end may need so long to say so to those who came.
constexpr seconds kGrace{10};
constexpr seconds kMostForTelling{1};
constexpr milliseconds kBeatEvery{1000};

std::string seconds_of(milliseconds time) {
  const std::string text = std::to_string(time.count() / 1000);
  const auto rest = time.count() % 1000;
  return rest == 0 ? text + " s" : std::to_string(time.count()) + " ms";
}

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

// After what does not fit, good() is false and everything else is empty.
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

Frame failure_frame(int rank, const Error& error) {
  const std::string_view reason = error.message();
  return {kFailure, Packer()
                        .number(static_cast<std::uint64_t>(std::int64_t{rank} + 1))
                        .number(static_cast<std::uint64_t>(error.code()))
                        .text(reason.substr(0, kMaxReasonBytes))
                        .take()};
}

std::pair<int, Error> unpack_failure(std::string_view payload) {
  Unpacker from(payload);
  const int rank = from.small_number() - 1;
  const std::uint64_t code = from.number();
  std::string reason = from.text();
  if (!from.good() || code > static_cast<std::uint64_t>(ErrorCode::kInternal)) {
    return {-1, Error(ErrorCode::kCorrupt, "a failure was reported that cannot be read")};
  }
  return {rank, Error(static_cast<ErrorCode>(code), std::move(reason))};
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

void signal(const FileDescriptor& event) {
  const std::uint64_t one = 1;
  static_cast<void>(::write(event.get(), &one, sizeof one) == sizeof one);
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

}  // namespace

ControlChannel::ControlChannel(const TcpOptions& options)
    : options_(options),
      failure_event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      wake_event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Result<std::unique_ptr<ControlChannel>> ControlChannel::join(const TcpOptions& options,
                                                             FileDescriptor listener,
                                                             std::uint16_t data_port) {
  SLUICE_RETURN_IF_ERROR(check_context(options.context));
  std::unique_ptr<ControlChannel> channel(new ControlChannel(options));
  if (!channel->failure_event_.is_open() || !channel->wake_event_.is_open()) {
    return Error(ErrorCode::kOutOfMemory, "no file descriptor is left for an event");
  }
  const Deadline deadline = time_now() + options.rendezvous_timeout;
  Status status = options.context.rank == 0
                      ? channel->gather_ranks(std::move(listener), data_port, deadline)
                      : channel->ask_master(data_port, deadline);
  if (!status.ok()) return std::move(status).error().with_context("rendezvous");
  for (Member& member : channel->members_) member.last_heard = time_now();
  if (!channel->members_.empty()) {
    channel->watcher_ = std::thread([raw = channel.get()] { raw->watch(); });
  }
  return channel;
}

ControlChannel::~ControlChannel() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  signal(wake_event_);
  if (watcher_.joinable()) watcher_.join();
}

// --- rendezvous ----------------------------------------------------------------------------------

Status ControlChannel::gather_ranks(FileDescriptor listener, std::uint16_t data_port,
                                    Deadline deadline) {
  const auto world = static_cast<std::size_t>(options_.context.world);
  std::vector<std::optional<Hello>> hellos(world);
  std::vector<std::string> addresses(world);
  hellos[0] = Hello{.rank = 0,
                    .world = options_.context.world,
                    .local_rank = options_.context.local_rank,
                    .local_world = options_.context.local_world,
                    .data_port = data_port,
                    .job = options_.job,
                    .host = options_.host.empty() ? this_host() : options_.host};
  if (world > 1 && !listener.is_open()) {
    SLUICE_ASSIGN_OR_RETURN(listener,
                            listen_at(is_loopback(options_.master_address), options_.master_port));
  }
  std::vector<Member> strangers;  // who has not said yet which rank it is

  const auto tell_all = [&](const Error& error) {
    for (Member& member : members_) {
      static_cast<void>(
          send_frame(member.socket, failure_frame(-1, error), time_now() + kMostForTelling));
    }
    return error;
  };
  const auto refuse = [&](Member& member, const std::string& why) {
    Error error(ErrorCode::kInvalidArgument, why);
    static_cast<void>(
        send_frame(member.socket, failure_frame(-1, error), time_now() + kMostForTelling));
    return error;
  };

  while (members_.size() + 1 < world) {
    std::vector<pollfd> entries = {{listener.get(), POLLIN, 0}};
    for (const auto* list : {&members_, &strangers}) {
      for (const Member& member : *list) entries.push_back({member.socket.get(), POLLIN, 0});
    }
    if (::poll(entries.data(), entries.size(), poll_ms(deadline)) <= 0 && time_now() >= deadline) {
      std::vector<int> missing;
      for (std::size_t rank = 0; rank < world; ++rank) {
        if (!hellos[rank]) missing.push_back(static_cast<int>(rank));
      }
      return tell_all(
          Error(ErrorCode::kTimedOut, list_ranks(missing) + " of " + std::to_string(world) +
                                          " did not come to rank 0 (" + options_.master_address +
                                          ", port " + std::to_string(port_of(listener)) +
                                          ") within " + seconds_of(options_.rendezvous_timeout)));
    }
    while (auto socket = try_accept(listener)) {
      if (strangers.size() >= kMaxStrangers) strangers.erase(strangers.begin());
      strangers.push_back({.socket = std::move(*socket), .reader = FrameReader(kMaxHelloBytes)});
    }
    for (Member& member : members_) {
      // Nobody has a reason to speak before the table is out.
      if (!member.reader.read_some(member.socket)) {
        const auto index = static_cast<std::size_t>(member.rank);
        return tell_all(Error(ErrorCode::kIo, "rank " + std::to_string(member.rank) + " (" +
                                                  host_name(hellos[index]->host) +
                                                  ") is gone: it left before all had come"));
      }
    }
    for (std::size_t i = 0; i < strangers.size();) {
      const bool open = strangers[i].reader.read_some(strangers[i].socket);
      const std::optional<Frame> frame = strangers[i].reader.next();
      if (!frame && open) {
        ++i;
        continue;
      }
      Member member = std::move(strangers[i]);
      strangers.erase(strangers.begin() + static_cast<std::ptrdiff_t>(i));
      const std::optional<Hello> hello =
          frame && frame->type == kHello ? unpack_hello(frame->payload) : std::nullopt;
      if (!hello) continue;
      if (hello->job != options_.job) {
        static_cast<void>(refuse(member, "at " + options_.master_address +
                                             " there is rank 0 of "
                                             "another run; choose another MASTER_PORT"));
        continue;
      }
      if (hello->world != options_.context.world || hello->rank >= hello->world) {
        return tell_all(refuse(member, "rank " + std::to_string(hello->rank) +
                                           " says that there are " + std::to_string(hello->world) +
                                           " ranks, and rank 0 that there are " +
                                           std::to_string(world)));
      }
      const auto rank = static_cast<std::size_t>(hello->rank);
      if (hellos[rank]) {
        return tell_all(
            refuse(member, "two processes say that they are rank " + std::to_string(rank)));
      }
      addresses[rank] = peer_address(member.socket);
      hellos[rank] = hello;
      member.rank = hello->rank;
      member.reader = FrameReader();
      members_.push_back(std::move(member));
    }
  }

  std::random_device random;
  table_.token = (std::uint64_t{random()} << 32U) | random();
  Packer packer;
  packer.number(table_.token);
  for (std::size_t rank = 0; rank < world; ++rank) {
    const Hello& hello = *hellos[rank];
    // Who came by loopback is on this host, and others reach it as they reach this one.
    const std::string address = is_loopback(addresses[rank]) ? "" : addresses[rank];
    packer.number(static_cast<std::uint64_t>(hello.local_rank))
        .text(hello.host)
        .text(address)
        .number(static_cast<std::uint64_t>(hello.data_port));
    table_.places.push_back({hello.host, hello.local_rank});
    table_.targets.push_back({address.empty() ? options_.master_address : address,
                              static_cast<std::uint16_t>(hello.data_port)});
  }
  const auto groups = make_groups(table_.places, 0);
  if (!groups.ok()) return tell_all(groups.error());
  for (const std::optional<Hello>& hello : hellos) {
    const auto on_host = std::count_if(table_.places.begin(), table_.places.end(),
                                       [&](const RankPlace& p) { return p.host == hello->host; });
    if (on_host != hello->local_world) {
      return tell_all(Error(ErrorCode::kInvalidArgument,
                            name_of_rank(hello->rank) + " says that its host has " +
                                std::to_string(hello->local_world) + " ranks, and " +
                                std::to_string(on_host) + " came from there"));
    }
  }
  const Frame frame{kTable, packer.take()};
  for (Member& member : members_) {
    Status sent = send_frame(member.socket, frame, deadline + kGrace);
    if (!sent.ok()) {
      return tell_all(
          std::move(sent).error().with_context("answering " + name_of_rank(member.rank)));
    }
  }
  return {};
}

Status ControlChannel::ask_master(std::uint16_t data_port, Deadline deadline) {
  const HostAndPort master{options_.master_address, options_.master_port};
  auto connected = connect_to(master, deadline);
  if (!connected.ok()) {
    return Error(connected.error().code(), "rank 0 did not answer within " +
                                               seconds_of(options_.rendezvous_timeout) + ": " +
                                               connected.error().message());
  }
  Member member{.rank = 0, .socket = std::move(*connected)};
  const Hello hello{.rank = options_.context.rank,
                    .world = options_.context.world,
                    .local_rank = options_.context.local_rank,
                    .local_world = options_.context.local_world,
                    .data_port = data_port,
                    .job = options_.job,
                    .host = options_.host.empty() ? this_host() : options_.host};
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
  Unpacker from(frame->payload);
  table_.token = from.number();
  for (int rank = 0; rank < options_.context.world && from.good(); ++rank) {
    const int local_rank = from.small_number();
    std::string host = from.text();
    const std::string address = from.text();
    const int port = from.small_number();
    table_.places.push_back({std::move(host), local_rank});
    table_.targets.push_back(
        {address.empty() ? options_.master_address : address, static_cast<std::uint16_t>(port)});
  }
  if (frame->type != kTable || !from.good()) {
    return Error(ErrorCode::kCorrupt,
                 "what rank 0 sent is no table of ranks: is it another version?");
  }
  members_.push_back(std::move(member));
  return {};
}

// --- watching ------------------------------------------------------------------------------------

std::string ControlChannel::name_of_rank(int rank) const {
  return engine::name_of_rank(table_.places, rank);
}

void ControlChannel::watch() {
  const milliseconds beat_every =
      std::max(milliseconds(1), std::min(kBeatEvery, options_.silence_timeout / 4));
  std::vector<pollfd> entries;
  Deadline next_beat = time_now();
  while (true) {
    bool tell = false;
    bool failed = false;
    {
      const std::scoped_lock lock(mutex_);
      failed = failure_.has_value();
      tell = failed && !failure_->told;
      if (stopping_ && !tell) break;
    }
    if (tell) tell_failure();
    entries.assign(1, {wake_event_.get(), POLLIN, 0});
    // A closed one's descriptor is -1, which poll() skips.
    for (const Member& member : members_) entries.push_back({member.socket.get(), POLLIN, 0});
    static_cast<void>(::poll(entries.data(), entries.size(), poll_ms(next_beat)));
    if (entries[0].revents != 0) {
      std::uint64_t count = 0;
      static_cast<void>(::read(wake_event_.get(), &count, sizeof count) == sizeof count);
    }
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (entries[i + 1].revents != 0) hear(members_[i]);
    }
    const bool beat = time_now() >= next_beat;
    if (beat) next_beat = time_now() + beat_every;
    for (Member& member : members_) {
      if (!member.socket.is_open()) continue;
      // One that does not read any more has missed it; so be it.
      if (beat) static_cast<void>(send_frame(member.socket, {kBeat, {}}, time_now()));
      if (!failed && time_now() - member.last_heard > options_.silence_timeout) {
        lost(member, "nothing was heard of it for " + seconds_of(options_.silence_timeout));
      }
    }
  }
  say_goodbye();
}

void ControlChannel::hear(Member& member) {
  const bool open = member.reader.read_some(member.socket);
  while (member.socket.is_open()) {
    const std::optional<Frame> frame = member.reader.next();
    if (!frame) break;
    member.last_heard = time_now();
    handle(member, *frame);
  }
  if (!open && member.socket.is_open()) {
    lost(member, "its connection closed without a word; it was killed, or crashed");
  }
}

void ControlChannel::handle(Member& member, const Frame& frame) {
  if (frame.type == kGoodbye) member.socket.close();
  if (frame.type != kFailure) return;
  auto [rank, error] = unpack_failure(frame.payload);
  record(rank, error, error);
}

void ControlChannel::lost(Member& member, const std::string& how) {
  member.socket.close();
  Error error(ErrorCode::kIo, name_of_rank(member.rank) + " is gone: " + how);
  record(member.rank, error, error);
}

void ControlChannel::record(int rank, Error seen_here, Error seen_by_others) {
  {
    const std::scoped_lock lock(mutex_);
    if (failure_) return;
    failure_.emplace(Failure{.rank = rank,
                             .seen_by_others = std::move(seen_by_others),
                             .seen_here = std::move(seen_here)});
    // Rank 0 passes on what it hears; the others tell what they know of themselves.
    const bool own = rank == options_.context.rank;
    failure_->told = members_.empty() || (options_.context.rank != 0 && !own);
  }
  signal(failure_event_);
  signal(wake_event_);
  changed_.notify_all();
}

void ControlChannel::tell_failure() {
  Frame frame;
  int rank = -1;
  {
    const std::scoped_lock lock(mutex_);
    rank = failure_->rank;
    frame = failure_frame(rank, failure_->seen_by_others);
  }
  const Deadline deadline = time_now() + kMostForTelling;
  for (Member& member : members_) {
    if (!member.socket.is_open() || member.rank == rank) continue;
    static_cast<void>(send_frame(member.socket, frame, deadline));
  }
  {
    const std::scoped_lock lock(mutex_);
    failure_->told = true;
  }
  changed_.notify_all();
}

void ControlChannel::say_goodbye() {
  const bool failed = !failure().ok();
  for (Member& member : members_) {
    if (!member.socket.is_open()) continue;
    if (!failed) static_cast<void>(send_frame(member.socket, {kGoodbye, {}}, time_now()));
    static_cast<void>(::shutdown(member.socket.get(), SHUT_WR));
  }
  // A socket that is closed with something unread in it resets the connection, and what was said
  // last may be lost with that.
  const Deadline deadline = time_now() + (failed ? milliseconds(100) : milliseconds(1000));
  for (Member& member : members_) {
    while (member.socket.is_open() && time_now() < deadline) {
      pollfd entry{.fd = member.socket.get(), .events = POLLIN, .revents = 0};
      static_cast<void>(::poll(&entry, 1, poll_ms(deadline)));
      if (entry.revents != 0 && !member.reader.read_some(member.socket)) break;
      while (member.reader.next()) {
      }
    }
    member.socket.close();
  }
}

// --- failures ------------------------------------------------------------------------------------

Status ControlChannel::failure() const {
  const std::scoped_lock lock(mutex_);
  return failure_ ? Status(failure_->seen_here) : Status();
}

Status ControlChannel::wait_for_failure(milliseconds at_most) const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, at_most, [&] { return failure_.has_value(); });
  return failure_ ? Status(failure_->seen_here) : Status();
}

void ControlChannel::fail(ErrorCode code, std::string_view reason) noexcept {
  const int rank = options_.context.rank;
  record(
      rank, Error(code, std::string(reason)),
      Error(ErrorCode::kCancelled, name_of_rank(rank) + " ended the run: " + std::string(reason)));
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kMostForTelling, [&] { return failure_->told; });
}

}  // namespace sluice::engine
