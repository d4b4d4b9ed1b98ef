// Which ranks may join a run: proofs of the run's secret, step by step.
#include "engine/comm/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <chrono>
#include <optional>
#include <utility>

#include "engine/comm/control_frames.h"
#include "tests/engine/comm/tcp_ranks.h"
#include "tests/engine/comm/test_sockets.h"

namespace sluice::engine {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

// A door and a rank that knocks there, step by step.
class HandshakeTest : public testing::Test {
 protected:
  static Door::Options options(const RunKey& key, const char* purpose = "rendezvous") {
    return {.key = key, .purpose = purpose, .refusal = "another run"};
  }

  // Runs both and returns the knocker's state.
  Knock::State shake_hands(Door& door, Knock& knock) {
    socket_ = connected(port_of(listener_));
    Knock::State state = knock.begin(socket_);
    const Deadline until = soon();
    while (state == Knock::State::kWaiting && time_now() < until) {
      auto guests = door.look();
      EXPECT_TRUE(guests.ok());
      for (Door::Guest& guest : *guests) {
        EXPECT_TRUE(guest.welcome().ok());
        guest_ = std::move(guest);
      }
      state = knock.look(socket_);
    }
    return state;
  }

  // Advances until the knocker has an answer.
  Knock::State answered(Knock& knock) const {
    Knock::State state = Knock::State::kWaiting;
    for (const Deadline until = soon(); state == Knock::State::kWaiting && time_now() < until;)
      state = knock.look(socket_);
    return state;
  }
  // How many connections have not proved anything, once there are `wanted` of them.
  static std::size_t strangers_at(Door& door, std::size_t wanted) {
    std::vector<pollfd> entries;
    for (const Deadline until = soon(); time_now() < until;) {
      EXPECT_TRUE(door.look().ok());
      entries.clear();
      door.add_entries(entries);
      if (entries.size() == wanted + 1) break;  // and the listener
    }
    return entries.size() - 1;
  }

  FileDescriptor listener_ = listening();
  FileDescriptor socket_;
  std::optional<Door::Guest> guest_;
};

TEST_F(HandshakeTest, LetsInWhoProvesTheSecretWithWhatItSaysOfItself) {
  const RunKey key("secret", "job");
  Door door(listener_, options(key));
  Knock knock(key, "rendezvous", "rank 7");
  EXPECT_EQ(shake_hands(door, knock), Knock::State::kWelcome);
  ASSERT_TRUE(guest_);
  EXPECT_EQ(guest_->payload, "rank 7");
  // Data after the handshake does not belong to it.
  std::string sent = "raw";
  ASSERT_TRUE(send_all(guest_->socket, std::as_bytes(std::span(sent)), soon()).ok());
  std::string came(3, ' ');
  ASSERT_TRUE(receive_all(socket_, std::as_writable_bytes(std::span(came)), soon()).ok());
  EXPECT_EQ(came, sent);
}

TEST_F(HandshakeTest, TurnsAwayAnotherSecretAnotherJobAndAnotherPurpose) {
  const RunKey key("secret", "job");
  for (const auto& [other, purpose] :
       {std::pair(RunKey("other", "job"), "rendezvous"),
        std::pair(RunKey("secret", "jo"), "rendezvous"), std::pair(RunKey("", "job"), "rendezvous"),
        std::pair(RunKey("secretj", "ob"), "rendezvous"),
        std::pair(key.derived("token"), "rendezvous"), std::pair(key, "data of 1")}) {
    Door door(listener_, options(key));
    Knock knock(other, purpose, "rank 1");
    EXPECT_EQ(shake_hands(door, knock), Knock::State::kRefused);
    EXPECT_EQ(knock.refusal().message(), "another run");
    EXPECT_FALSE(guest_);
    EXPECT_EQ(door.turned_away(), "127.0.0.1");
  }
}

TEST_F(HandshakeTest, DoesNotBelieveAnAcceptorWithoutTheSecret) {
  const RunKey key("secret", "job");
  Knock knock(key, "rendezvous", "rank 1");
  socket_ = connected(port_of(listener_));
  EXPECT_EQ(knock.begin(socket_), Knock::State::kWaiting);
  const FileDescriptor acceptor = accepted(listener_);
  ASSERT_TRUE(send_frame(acceptor, {kChallenge, random_bytes(kNonceBytes)}, soon()).ok());
  ASSERT_TRUE(send_frame(acceptor, {kWelcome, random_bytes(kProofBytes)}, soon()).ok());
  EXPECT_EQ(answered(knock), Knock::State::kForeign);
}

TEST_F(HandshakeTest, SendsNeitherSecretNorJobAndAProofServesOnce) {
  const RunKey key("a secret of the run", "the job's name");
  Knock knock(key, "rendezvous", "rank 1");
  socket_ = connected(port_of(listener_));
  EXPECT_EQ(knock.begin(socket_), Knock::State::kWaiting);
  const FileDescriptor acceptor = accepted(listener_);
  const Frame first = frame_from(acceptor);
  ASSERT_TRUE(send_frame(acceptor, {kChallenge, random_bytes(kNonceBytes)}, soon()).ok());
  pollfd challenged{.fd = socket_.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&challenged, 1, poll_ms(soon())), 1);
  EXPECT_EQ(knock.look(socket_), Knock::State::kWaiting);
  const Frame second = frame_from(acceptor);
  for (const Frame& each : {first, second}) {
    EXPECT_THAT(each.payload, Not(HasSubstr("secret of")));
    EXPECT_THAT(each.payload, Not(HasSubstr("job's")));
  }
  // Replays the same messages to a door with another number.
  Door door(listener_, options(key));
  const FileDescriptor thief = connected(port_of(listener_));
  ASSERT_TRUE(send_frame(thief, first, soon()).ok());
  ASSERT_TRUE(send_frame(thief, second, soon()).ok());
  for (const Deadline until = soon(); door.turned_away().empty() && time_now() < until;) {
    const auto guests = door.look();
    ASSERT_TRUE(guests.ok());
    EXPECT_TRUE(guests->empty());
  }
  EXPECT_EQ(door.turned_away(), "127.0.0.1");
}

TEST_F(HandshakeTest, ClosesWhoHasHadItsTimeAndTheOldestOfTooMany) {
  Door::Options of_door = options(RunKey("secret", "job"));
  of_door.most_strangers = 4;
  of_door.patience = seconds(1);
  Door door(listener_, of_door);
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 9; ++i) silent.push_back(connected(port_of(listener_)));
  EXPECT_EQ(strangers_at(door, 4), 4U);
  std::this_thread::sleep_until(door.next_end());
  EXPECT_EQ(strangers_at(door, 0), 0U);
  EXPECT_EQ(door.next_end(), Deadline::max());
}

TEST_F(HandshakeTest, HearsWhoCameAMomentAgoBeforeItMakesRoomForOthers) {
  const RunKey key("secret", "job");
  Door::Options of_door = options(key);
  of_door.most_strangers = 4;
  Door door(listener_, of_door);
  std::vector<FileDescriptor> strangers;
  const auto come = [&] {
    strangers.push_back(connected(port_of(listener_)));
    const Frame knock{kKnock, random_bytes(kNonceBytes) + "\r\n\r\n"};
    ASSERT_TRUE(send_frame(strangers.back(), knock, soon()).ok());
  };
  for (int i = 0; i < 4; ++i) come();
  for (const FileDescriptor& stranger : strangers) {
    pollfd challenged{.fd = stranger.get(), .events = POLLIN, .revents = 0};
    for (const Deadline until = soon(); ::poll(&challenged, 1, 1) == 0 && time_now() < until;)
      ASSERT_TRUE(door.look().ok());
  }
  socket_ = connected(port_of(listener_));
  Knock knock(key, "rendezvous", "rank 1");
  ASSERT_EQ(knock.begin(socket_), Knock::State::kWaiting);
  for (int i = 0; i < 3; ++i) come();
  Knock::State state = Knock::State::kWaiting;
  for (const Deadline until = soon(); state == Knock::State::kWaiting && time_now() < until;) {
    const auto guests = door.look();
    ASSERT_TRUE(guests.ok());
    for (const Door::Guest& guest : *guests) EXPECT_TRUE(guest.welcome().ok());
    state = knock.look(socket_);
  }
  EXPECT_EQ(state, Knock::State::kWelcome);
}

TEST_F(HandshakeTest, ReadsNothingOfAFrameThatIsTooLong) {
  socket_ = connected(port_of(listener_));
  const FileDescriptor acceptor = accepted(listener_);
  const std::array<std::uint32_t, 3> head = {kFrameMagic, kKnock, kMaxHandshakeBytes + 1};
  std::string bytes(reinterpret_cast<const char*>(head.data()), sizeof head);
  bytes += std::string(1000, 'x');
  ASSERT_TRUE(send_all(socket_, std::as_bytes(std::span(bytes)), soon()).ok());
  FrameReader reader(kMaxHandshakeBytes);
  const Deadline until = soon();
  while (reader.read_some(acceptor) && time_now() < until) {
  }
  EXPECT_TRUE(reader.is_broken());
  int unread = 0;
  while (unread < 1000 && time_now() < until)
    ASSERT_EQ(::ioctl(acceptor.get(), FIONREAD, &unread), 0);
  EXPECT_EQ(unread, 1000);
}

}  // namespace
}  // namespace sluice::engine
