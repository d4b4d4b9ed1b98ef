#include "engine/comm/handshake.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/comm/control_frames.h"

namespace sluice::engine {
namespace {

// Ends the first message so that a line-based server replies to it instead of waiting for more.
constexpr std::string_view kEndOfLines = "\r\n\r\n";
// How many connections are accepted before the waiting ones are read.
constexpr int kAcceptedAtOnce = 256;

// Messages that fit into the buffer of a fresh connection are sent without waiting.
bool send_now(const FileDescriptor& socket, FrameType type, std::string payload) {
  return send_frame(socket, {type, std::move(payload)}, time_now()).ok();
}

}  // namespace

// --- the connector -------------------------------------------------------------------------------

Knock::Knock(const RunKey& key, std::string purpose, std::string payload)
    : key_(key),
      purpose_(std::move(purpose)),
      payload_(std::move(payload)),
      nonce_(random_bytes(kNonceBytes)) {}

Exchange Knock::exchange() const { return {purpose_, nonce_, acceptor_nonce_, payload_}; }

Knock::State Knock::begin(const FileDescriptor& socket) {
  return send_now(socket, kKnock, nonce_ + std::string(kEndOfLines)) ? State::kWaiting
                                                                     : State::kClosed;
}

Knock::State Knock::look(const FileDescriptor& socket) {
  while (true) {
    const bool open = reader_.read_some(socket);
    const std::optional<Frame> frame = reader_.next();
    if (frame) {
      const State state = answer(socket, *frame);
      if (state != State::kWaiting) return state;
      continue;
    }
    if (reader_.is_broken()) return State::kForeign;
    return open ? State::kWaiting : State::kClosed;
  }
}

Knock::State Knock::answer(const FileDescriptor& socket, const Frame& frame) {
  if (frame.type == kFailure) {
    refusal_ = frame.payload;
    return State::kRefused;
  }
  if (frame.type == kChallenge && acceptor_nonce_.empty() && frame.payload.size() == kNonceBytes) {
    acceptor_nonce_ = frame.payload;
    return send_now(socket, kJoin,
                    Packer().text(payload_).text(key_.proof_of_connector(exchange())).take())
               ? State::kWaiting
               : State::kClosed;
  }
  const bool is_welcome = frame.type == kWelcome && !acceptor_nonce_.empty() &&
                          is_same_proof(frame.payload, key_.proof_of_acceptor(exchange()));
  return is_welcome ? State::kWelcome : State::kForeign;
}

Error Knock::refusal() const { return unpack_failure(refusal_).second; }

// --- the acceptor --------------------------------------------------------------------------------

Status Door::Guest::welcome() const { return send_frame(socket, {kWelcome, proof}, time_now()); }

Door::Door(const FileDescriptor& listener, Options options)
    : listener_(listener), options_(std::move(options)) {}

void Door::add_entries(std::vector<pollfd>& entries) const {
  entries.push_back({listener_.get(), POLLIN, 0});
  for (const Stranger& stranger : strangers_) entries.push_back({stranger.socket.get(), POLLIN, 0});
}

Deadline Door::next_end() const {
  return strangers_.empty() ? Deadline::max() : strangers_.front().until;
}

Result<std::vector<Door::Guest>> Door::look() {
  std::vector<Guest> guests;
  SLUICE_RETURN_IF_ERROR(accept_all(guests));
  const Deadline now = time_now();
  std::vector<Stranger> stay;
  for (Stranger& stranger : strangers_) {
    if (receive(stranger, guests) && now < stranger.until) stay.push_back(std::move(stranger));
  }
  strangers_ = std::move(stay);
  return guests;
}

Status Door::accept_all(std::vector<Guest>& guests) {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    int error = 0;
    auto socket = try_accept(listener_, &error);
    if (socket) {
      if (strangers_.size() >= options_.most_strangers) make_room(guests);
      strangers_.push_back({std::move(*socket), time_now() + options_.patience});
    } else if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
      // An unaccepted connection would make poll() return immediately, for ever.
      if (strangers_.empty() && guests.empty()) {
        return Error(ErrorCode::kOutOfMemory,
                     std::string("the connection of a rank cannot be accepted: ") +
                         std::strerror(error) + " (ulimit -n)");
      }
      if (strangers_.empty()) return {};
      make_room(guests);
    } else {
      return {};
    }
  }
  return {};
}

// Closes a connection that has sent nothing first, because a rank sends at once. The message of a
// recent connection may still be on its way; if most others have sent one, the oldest connection is
// closed instead.
void Door::make_room(std::vector<Guest>& guests) {
  const Deadline moment_ago = time_now() + options_.patience - options_.patience / 10;
  for (auto it = strangers_.begin(); it != strangers_.end(); ++it) {
    if (!it->connector_nonce.empty()) continue;
    const bool stays = receive(*it, guests);
    if (stays && !it->connector_nonce.empty()) continue;
    const auto silent = std::count_if(
        it, strangers_.end(), [](const Stranger& each) { return each.connector_nonce.empty(); });
    const bool most_speak = 2 * static_cast<std::size_t>(silent) <= strangers_.size();
    if (stays && most_speak && it->until > moment_ago) break;
    strangers_.erase(it);
    return;
  }
  strangers_.erase(strangers_.begin());
}

bool Door::receive(Stranger& stranger, std::vector<Guest>& guests) {
  const bool open = stranger.reader.read_some(stranger.socket);
  while (const std::optional<Frame> frame = stranger.reader.next()) {
    if (frame->type == kKnock && stranger.connector_nonce.empty() &&
        frame->payload.size() == kNonceBytes + kEndOfLines.size()) {
      stranger.connector_nonce = frame->payload.substr(0, kNonceBytes);
      stranger.acceptor_nonce = random_bytes(kNonceBytes);
      return send_now(stranger.socket, kChallenge, stranger.acceptor_nonce);
    }
    if (frame->type == kJoin && !stranger.connector_nonce.empty()) {
      if (auto guest = join(stranger, frame->payload)) guests.push_back(std::move(*guest));
    }
    return false;
  }
  return open;
}

std::optional<Door::Guest> Door::join(Stranger& stranger, std::string_view payload) {
  Unpacker from(payload);
  std::string said = from.text();
  const std::string proof = from.text();
  if (!from.good()) return std::nullopt;
  const Exchange exchange{options_.purpose, stranger.connector_nonce, stranger.acceptor_nonce,
                          said};
  if (!is_same_proof(proof, options_.key.proof_of_connector(exchange))) {
    const Frame refusal = failure_frame(-1, Error(ErrorCode::kInvalidArgument, options_.refusal));
    static_cast<void>(send_frame(stranger.socket, refusal, time_now()));
    turned_away_ = peer_address(stranger.socket);
    return std::nullopt;
  }
  std::string own_proof = options_.key.proof_of_acceptor(exchange);
  return Guest{std::move(stranger.socket), std::move(said), std::move(own_proof)};
}

}  // namespace sluice::engine
