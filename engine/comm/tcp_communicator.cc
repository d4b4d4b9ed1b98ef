#include "engine/comm/tcp_communicator.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "engine/comm/control_channel.h"
#include "engine/comm/handshake.h"
#include "engine/comm/host_communicator.h"
#include "engine/comm/host_links.h"
#include "engine/comm/launcher_text.h"
#include "engine/comm/rank_context.h"
#include "engine/comm/run_key.h"
#include "engine/comm/tcp_socket.h"

namespace sluice::engine {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kConnectAttempt{1};
constexpr milliseconds kAgainAfter{50};

class DataConnections {
 public:
  DataConnections(ControlChannel& control, int rank, const RunKey& key, Deadline deadline)
      : control_(control),
        rank_(rank),
        key_(key.derived(control.table().token)),
        deadline_(deadline),
        listener_(control.take_data_listener()),
        door_(listener_, {.key = key_, .purpose = purpose_of(rank), .refusal = "another run"}),
        sockets_(control.table().places.size()),
        not_let_in_(static_cast<std::size_t>(rank)) {}

  Result<std::vector<FileDescriptor>> run() {
    for (int peer = 0; peer < rank_; ++peer) {
      SLUICE_ASSIGN_OR_RETURN(Attempt attempt, connect(peer));
      attempts_.push_back(std::move(attempt));
    }
    while (!missing().empty()) {
      wait();
      SLUICE_RETURN_IF_ERROR(control_.failure());
      SLUICE_ASSIGN_OR_RETURN(auto guests, door_.look());
      for (Door::Guest& guest : guests) admit(std::move(guest));
      for (Attempt& attempt : attempts_) SLUICE_RETURN_IF_ERROR(hear(attempt));
      std::erase_if(attempts_, [](const Attempt& it) { return it.is_done; });
      if (time_now() >= deadline_ && !missing().empty()) return too_late();
    }
    return std::move(sockets_);
  }

 private:
  // A connection attempt to a lower rank.
  struct Attempt {
    int peer;
    FileDescriptor socket;
    std::unique_ptr<Knock> knock;
    Deadline again_at;  // time of the retry after a failure
    bool is_done = false;
  };

  static std::string purpose_of(int acceptor) { return "data of " + std::to_string(acceptor); }
  std::string name_of(int peer) const { return name_of_rank(control_.table().places, peer); }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (std::size_t peer = 0; peer < sockets_.size(); ++peer) {
      if (!sockets_[peer].is_open() && static_cast<int>(peer) != rank_)
        ranks.push_back(static_cast<int>(peer));
    }
    return ranks;
  }

  Result<Attempt> connect(int peer) {
    const HostAndPort& target = control_.table().targets[static_cast<std::size_t>(peer)];
    while (true) {
      auto socket = connect_to(target, std::min(deadline_, time_now() + kConnectAttempt));
      SLUICE_RETURN_IF_ERROR(control_.failure());
      if (socket.ok()) {
        auto knock = std::make_unique<Knock>(key_, purpose_of(peer), std::to_string(rank_));
        const bool is_begun = knock->begin(*socket) == Knock::State::kWaiting;
        return Attempt{.peer = peer,
                       .socket = std::move(*socket),
                       .knock = std::move(knock),
                       .again_at = is_begun ? Deadline::max() : time_now()};
      }
      if (time_now() >= deadline_) {
        return failed(name_of(peer) + " cannot be reached for data from " + name_of(rank_) + ": " +
                      socket.error().message());
      }
    }
  }

  Status hear(Attempt& attempt) {
    using State = Knock::State;
    const State state =
        attempt.socket.is_open() ? attempt.knock->look(attempt.socket) : State::kClosed;
    if (state == State::kWelcome) {
      sockets_[static_cast<std::size_t>(attempt.peer)] = std::move(attempt.socket);
      attempt.is_done = true;
      return {};
    }
    // The other side had no room, or is not a rank. The socket is closed because poll() would
    // return immediately for it.
    if (state != State::kWaiting && attempt.socket.is_open()) {
      not_let_in_[static_cast<std::size_t>(attempt.peer)] = why(attempt, state);
      attempt.socket.close();
      attempt.again_at = time_now() + kAgainAfter;
    }
    if (attempt.socket.is_open() || time_now() < attempt.again_at) return {};
    SLUICE_ASSIGN_OR_RETURN(attempt, connect(attempt.peer));
    return {};
  }

  static std::string why(const Attempt& attempt, Knock::State state) {
    if (state == Knock::State::kForeign) return "the process there is not a rank of this run";
    if (state == Knock::State::kRefused)
      return "the process there answers: " + attempt.knock->refusal().message();
    return "the connection was closed";
  }

  void admit(Door::Guest guest) {
    const int peer = whole_number(guest.payload, kMaxRanks).value_or(0);
    const auto index = static_cast<std::size_t>(peer);
    if (peer <= rank_ || index >= sockets_.size() || !guest.welcome().ok()) return;
    // A rank whose welcome was lost connects again.
    sockets_[index] = std::move(guest.socket);
  }

  void wait() {
    entries_.assign(1, {control_.failure_event(), POLLIN, 0});
    door_.add_entries(entries_);
    Deadline until = std::min(deadline_, door_.next_end());
    for (const Attempt& attempt : attempts_) {
      entries_.push_back({attempt.socket.get(), POLLIN, 0});
      until = std::min(until, attempt.again_at);
    }
    static_cast<void>(::poll(entries_.data(), entries_.size(), poll_ms(until)));
  }

  Error too_late() {
    std::vector<int> above = missing();
    const auto first_above =
        std::find_if(above.begin(), above.end(), [this](int peer) { return peer > rank_; });
    const std::vector<int> below(above.begin(), first_above);
    above.erase(above.begin(), first_above);
    std::string what;
    if (!below.empty()) {
      const auto peer = static_cast<std::size_t>(below.front());
      const std::string& reason = not_let_in_[peer];
      what = name_of(rank_) + " was not accepted by " + name_of(below.front()) + " for data, at " +
             control_.table().targets[peer].text() + ": " +
             (reason.empty() ? "it did not answer" : reason);
      if (below.size() > 1) what += ", and so by " + std::to_string(below.size() - 1) + " more";
    }
    if (!above.empty())
      what += (what.empty() ? "" : "; and ") + list_ranks(above) + " did not connect to " +
              name_of(rank_) + " for data: is a firewall between them?";
    return failed(what);
  }

  // Reports a failure, unless there was one already, and returns the one that counts.
  Error failed(const std::string& what) {
    control_.fail(ErrorCode::kTimedOut, what);
    return control_.failure().error();
  }

  ControlChannel& control_;
  const int rank_;
  const RunKey key_;
  const Deadline deadline_;
  const FileDescriptor listener_;
  Door door_;
  std::vector<FileDescriptor> sockets_;  // by rank
  std::vector<std::string> not_let_in_;  // per lower rank: the reason of the last rejection
  std::vector<Attempt> attempts_;
  std::vector<pollfd> entries_;
};

}  // namespace

Result<std::vector<FileDescriptor>> connect_for_data(ControlChannel& control, int rank,
                                                     const RunKey& key, Deadline deadline) {
  return DataConnections(control, rank, key, deadline).run();
}

namespace {

using std::chrono::seconds;

// How long a rank that lost a connection waits for the reason from the control channel.
constexpr seconds kVerdictWithin{1};

class TcpLinks final : public HostLinks {
 public:
  TcpLinks(const TcpOptions& options, std::unique_ptr<ControlChannel> control)
      : rank_(options.context.rank),
        timeout_(options.collective_timeout),
        control_(std::move(control)),
        sockets_(control_->table().places.size()) {
    outs_.reserve(sockets_.size());
    ins_.reserve(sockets_.size());
    entries_.reserve(2 * sockets_.size() + 1);
    waiting_.reserve(2 * sockets_.size());
  }

  Status connect_all(const RunKey& key, Deadline deadline) {
    SLUICE_ASSIGN_OR_RETURN(sockets_, connect_for_data(*control_, rank_, key, deadline));
    return {};
  }

  int rank() const override { return rank_; }
  const std::vector<RankPlace>& places() const override { return control_->table().places; }
  void abort(std::string_view reason) noexcept override {
    control_->fail(ErrorCode::kCancelled, reason);
  }
  Status failure() const override { return control_->failure(); }

  Status exchange(const MessageLabel& label, std::span<const Outgoing> sends,
                  std::span<const Incoming> receives) override {
    SLUICE_RETURN_IF_ERROR(control_->failure());
    outs_.clear();
    ins_.clear();
    for (const Outgoing& message : sends) {
      outs_.push_back({.peer = message.to,
                       .label = to_wire(label, message.bytes.size()),
                       .bytes = message.bytes});
    }
    for (const Incoming& message : receives) {
      ins_.push_back({.peer = message.from,
                      .expected = to_wire(label, message.bytes.size()),
                      .bytes = message.bytes});
    }
    const Deadline deadline = time_now() + timeout_;
    while (true) {
      bool moved = false;
      bool done = true;
      for (Out& out : outs_) {
        if (out.is_done()) continue;
        SLUICE_ASSIGN_OR_RETURN(const bool some, send_some(out, label));
        moved |= some;
        done &= out.is_done();
      }
      for (In& in : ins_) {
        if (in.is_done()) continue;
        SLUICE_ASSIGN_OR_RETURN(const bool some, receive_some(in, label));
        moved |= some;
        done &= in.is_done();
      }
      if (done) return {};
      if (moved) continue;
      wait(deadline);
      SLUICE_RETURN_IF_ERROR(control_->failure());
      if (time_now() >= deadline) return timed_out(label);
    }
  }

 private:
  struct Out {
    int peer;
    WireLabel label;
    std::span<const std::byte> bytes;
    std::size_t done_bytes = 0;  // of the label and the bytes together

    bool is_done() const { return done_bytes == sizeof label + bytes.size(); }
  };
  struct In {
    int peer;
    WireLabel expected;
    std::span<std::byte> bytes;
    WireLabel came = {};
    std::size_t done_bytes = 0;

    bool is_done() const { return done_bytes == sizeof came + bytes.size(); }
  };

  std::string own_name() const { return name_of_rank(places(), rank_); }

  // The remaining parts of a message: of the label, and of its bytes.
  template <typename Byte>
  static std::size_t parts_left(std::array<iovec, 2>& parts, void* label, std::span<Byte> bytes,
                                std::size_t done_bytes) {
    std::size_t count = 0;
    if (done_bytes < sizeof(WireLabel)) {
      parts[count++] = {static_cast<char*>(label) + done_bytes, sizeof(WireLabel) - done_bytes};
      done_bytes = sizeof(WireLabel);
    }
    const auto rest = bytes.subspan(done_bytes - sizeof(WireLabel));
    if (!rest.empty()) {
      parts[count++] = {const_cast<std::byte*>(rest.data()), rest.size()};  // NOLINT
    }
    return count;
  }

  // Whether any bytes were moved.
  Result<bool> send_some(Out& out, const MessageLabel& label) {
    std::array<iovec, 2> parts{};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts_left(parts, &out.label, out.bytes, out.done_bytes);
    const FileDescriptor& socket = sockets_[static_cast<std::size_t>(out.peer)];
    const ssize_t sent = ::sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (sent < 0) return broken(out.peer, label, std::strerror(errno));
    out.done_bytes += static_cast<std::size_t>(sent);
    return true;
  }

  Result<bool> receive_some(In& in, const MessageLabel& label) {
    std::array<iovec, 2> parts{};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts_left(parts, &in.came, in.bytes, in.done_bytes);
    const FileDescriptor& socket = sockets_[static_cast<std::size_t>(in.peer)];
    const ssize_t got = ::recvmsg(socket.get(), &message, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got <= 0)
      return broken(in.peer, label, got == 0 ? "it closed the connection" : std::strerror(errno));
    const bool had_label = in.done_bytes >= sizeof in.came;
    in.done_bytes += static_cast<std::size_t>(got);
    if (!had_label && in.done_bytes >= sizeof in.came) {
      const Status fits = check_label(in.peer, in.came, in.expected);
      if (!fits.ok()) return failed(fits.error().code(), fits.error().message()).error();
    }
    return true;
  }

  // Waits until bytes can be moved, there is a failure, or the deadline has passed.
  void wait(Deadline deadline) {
    entries_.assign(1, {control_->failure_event(), POLLIN, 0});
    for (const Out& out : outs_) add_entry(out, POLLOUT);
    for (const In& in : ins_) add_entry(in, POLLIN);
    static_cast<void>(::poll(entries_.data(), entries_.size(), poll_ms(deadline)));
  }
  template <typename Message>
  void add_entry(const Message& message, short events) {
    if (message.is_done()) return;
    entries_.push_back({sockets_[static_cast<std::size_t>(message.peer)].get(), events, 0});
  }

  // Records the failure, unless there was one already, and returns the one that counts.
  Status failed(ErrorCode code, const std::string& what) {
    control_->fail(code, what);
    return control_->failure();
  }

  Error broken(int peer, const MessageLabel& label, const std::string& how) {
    const Status verdict = control_->wait_for_failure(kVerdictWithin);
    if (!verdict.ok()) return verdict.error();
    return failed(ErrorCode::kIo, name_of_rank(places(), peer) + " is no longer reachable for " +
                                      name_of(label.kind) + ": " + how)
        .error();
  }

  Status timed_out(const MessageLabel& label) {
    waiting_.clear();
    for (const Out& out : outs_) {
      if (!out.is_done()) waiting_.push_back(out.peer);
    }
    for (const In& in : ins_) {
      if (!in.is_done()) waiting_.push_back(in.peer);
    }
    std::sort(waiting_.begin(), waiting_.end());
    waiting_.erase(std::unique(waiting_.begin(), waiting_.end()), waiting_.end());
    return failed(ErrorCode::kTimedOut, std::string(name_of(label.kind)) + ": " + own_name() +
                                            " waited " + std::to_string(timeout_.count()) +
                                            " ms for " + list_ranks(waiting_));
  }

  const int rank_;
  const milliseconds timeout_;
  // Outlives the sockets: ranks that see them close look for the reason here.
  const std::unique_ptr<ControlChannel> control_;
  std::vector<FileDescriptor> sockets_;  // by rank
  std::vector<Out> outs_;
  std::vector<In> ins_;
  std::vector<pollfd> entries_;
  std::vector<int> waiting_;
};

}  // namespace

Result<std::unique_ptr<Communicator>> make_tcp_communicator(const TcpOptions& options) {
  FileDescriptor listening(options.listening_socket);
  if (listening.is_open() && ::fcntl(listening.get(), F_SETFL, O_NONBLOCK) != 0) {
    return Error(ErrorCode::kInvalidArgument, "the socket to listen at, descriptor " +
                                                  std::to_string(listening.get()) +
                                                  ", cannot be used: " + std::strerror(errno));
  }
  SLUICE_ASSIGN_OR_RETURN(auto control, ControlChannel::join(options, std::move(listening)));
  auto links = std::make_unique<TcpLinks>(options, std::move(control));
  SLUICE_RETURN_IF_ERROR(links->connect_all(RunKey(options.secret, options.job),
                                            time_now() + options.rendezvous_timeout));
  return make_host_communicator(std::move(links));
}

}  // namespace sluice::engine
