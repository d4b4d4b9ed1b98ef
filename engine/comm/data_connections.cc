#include "engine/comm/data_connections.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "engine/comm/handshake.h"
#include "engine/comm/host_links.h"
#include "engine/comm/launcher_text.h"
#include "engine/comm/rank_context.h"

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
    if (state == Knock::State::kForeign) return "what listens there is not a rank of this run";
    if (state == Knock::State::kRefused)
      return "what listens there answers: " + attempt.knock->refusal().message();
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
      what = name_of(rank_) + " was not let in by " + name_of(below.front()) + " for data, at " +
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

}  // namespace sluice::engine
