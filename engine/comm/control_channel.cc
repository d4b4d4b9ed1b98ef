#include "engine/comm/control_channel.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "engine/comm/control_frames.h"
#include "engine/comm/launcher_text.h"

namespace sluice::engine {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMaxReasonBytes = 4096;
constexpr milliseconds kBeatEvery{1000};
// Time for the last messages to arrive, of a rank that leaves normally and of one that failed.
constexpr milliseconds kGoodbyeWithin{1000};
constexpr milliseconds kFailureWithin{100};

void signal(const FileDescriptor& event) {
  const std::uint64_t one = 1;
  static_cast<void>(::write(event.get(), &one, sizeof one) == sizeof one);
}

}  // namespace

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
  const std::string reason = from.text();
  if (!from.good() || code > static_cast<std::uint64_t>(ErrorCode::kInternal)) {
    return {-1, Error(ErrorCode::kCorrupt, "a failure was reported that cannot be read")};
  }
  return {rank, Error(static_cast<ErrorCode>(code), shown(reason, kMaxReasonBytes))};
}

std::string in_seconds(milliseconds time) {
  const std::string text = std::to_string(time.count() / 1000);
  const auto rest = time.count() % 1000;
  return rest == 0 ? text + " s" : std::to_string(time.count()) + " ms";
}

ControlChannel::ControlChannel(const TcpOptions& options, RendezvousResult rendezvous)
    : options_(options),
      table_(std::move(rendezvous.table)),
      data_listener_(std::move(rendezvous.data_listener)),
      failure_event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      wake_event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  for (ControlConnection& connection : rendezvous.connections) {
    members_.push_back({std::move(connection), time_now()});
  }
}

Result<std::unique_ptr<ControlChannel>> ControlChannel::join(const TcpOptions& options,
                                                             FileDescriptor listener) {
  SLUICE_ASSIGN_OR_RETURN(RendezvousResult rendezvous, find_ranks(options, std::move(listener)));
  std::unique_ptr<ControlChannel> channel(new ControlChannel(options, std::move(rendezvous)));
  if (!channel->failure_event_.is_open() || !channel->wake_event_.is_open()) {
    return Error(ErrorCode::kOutOfMemory, "no file descriptor is left for an event");
  }
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
    if (tell) report_failure();
    entries.assign(1, {wake_event_.get(), POLLIN, 0});
    // A closed socket's descriptor is -1, which poll() skips.
    for (const Member& member : members_) entries.push_back({member.socket.get(), POLLIN, 0});
    static_cast<void>(::poll(entries.data(), entries.size(), poll_ms(next_beat)));
    if (entries[0].revents != 0) {
      std::uint64_t count = 0;
      static_cast<void>(::read(wake_event_.get(), &count, sizeof count) == sizeof count);
    }
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (entries[i + 1].revents != 0) receive(members_[i]);
    }
    const bool beat = time_now() >= next_beat;
    if (beat) next_beat = time_now() + beat_every;
    for (Member& member : members_) {
      if (!member.socket.is_open()) continue;
      // A rank that does not read misses this beat; that is acceptable.
      if (beat) static_cast<void>(send_frame(member.socket, {kBeat, {}}, time_now()));
      if (!failed && time_now() - member.last_heard > options_.silence_timeout) {
        lost(member, "it has not responded for " + in_seconds(options_.silence_timeout));
      }
    }
  }
  send_shutdown();
}

void ControlChannel::receive(Member& member) {
  const bool open = member.reader.read_some(member.socket);
  while (member.socket.is_open()) {
    const std::optional<Frame> frame = member.reader.next();
    if (!frame) break;
    member.last_heard = time_now();
    handle(member, *frame);
  }
  if (!open && member.socket.is_open()) {
    lost(member, "its connection was closed unexpectedly; it was killed, or crashed");
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
    // Rank 0 forwards every failure; other ranks report only their own.
    const bool own = rank == options_.context.rank;
    failure_->told = members_.empty() || (options_.context.rank != 0 && !own);
  }
  signal(failure_event_);
  signal(wake_event_);
  changed_.notify_all();
}

void ControlChannel::report_failure() {
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

void ControlChannel::send_shutdown() {
  const bool failed = !failure().ok();
  for (Member& member : members_) {
    if (!member.socket.is_open()) continue;
    if (!failed) static_cast<void>(send_frame(member.socket, {kGoodbye, {}}, time_now()));
    static_cast<void>(::shutdown(member.socket.get(), SHUT_WR));
  }
  // Closing a socket with unread input resets the connection, which may lose the last message.
  const Deadline deadline = time_now() + (failed ? kFailureWithin : kGoodbyeWithin);
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
