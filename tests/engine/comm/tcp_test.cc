// The collectives over TCP, with ranks as threads and as processes, and what happens if a rank
// dies, hangs, never arrives, or calls something else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <functional>
#include <thread>
#include <utility>

#include "engine/comm/tcp_communicator.h"
#include "engine/comm/tcp_socket.h"
#include "tests/engine/comm/collective_suite.h"
#include "tests/engine/comm/tcp_ranks.h"

namespace sluice::engine {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

class TcpSuite : public testing::TestWithParam<std::vector<int>> {};

TEST_P(TcpSuite, DoesEveryCollectiveAsTheOracleSays) {
  const SuiteOptions suite{.places = places_of(GetParam())};
  std::vector<std::vector<std::string>> complaints(suite.places.size());
  for (const Status& status :
       in_threads(options_of(suite.places), [&](int rank, Communicator&comm) {
         complaints[static_cast<std::size_t>(rank)] = check_collectives(comm, suite);
       })) {
    EXPECT_EQ(message_of(status), "");
  }
  for (const auto& of_rank : complaints) EXPECT_THAT(of_rank, testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Hosts, TcpSuite,
                         testing::Values(std::vector{1}, std::vector{2}, std::vector{2, 2},
                                         std::vector{2, 1, 2}));

TEST_P(TcpSuite, DoesTheSameInPartsOfTheWorld) {
  const SuiteOptions suite{.places = places_of(GetParam())};
  std::vector<std::vector<std::string>> complaints(suite.places.size());
  in_threads(options_of(suite.places), [&](int rank, Communicator& comm) {
    auto& own = complaints[static_cast<std::size_t>(rank)];
    own = check_parts(comm, suite);
    if (own.empty()) own = check_collectives(comm, suite);
  });
  for (const auto& of_rank : complaints) EXPECT_THAT(of_rank, testing::IsEmpty());
}

TEST(Tcp, NamesTheRankOfTheWorldThatSendsAMessageOfAnotherSize) {
  std::vector<Status> ends(4);
  in_threads(options_of(places_of(std::array{2, 2})), [&](int rank, Communicator& comm) {
    std::array<std::byte, 8> bytes{};
    if (rank < 2) return;  // they neither send nor make a part
    auto part = comm.part(std::array{2, 3});
    ASSERT_TRUE(part.ok()) << part.error().message();
    ends[static_cast<std::size_t>(rank)] =
        rank == 2 ? (*part)->send_receive({.sent = bytes, .to = 1})
                  : (*part)->send_receive({.received = std::span(bytes).first(7), .from = 0});
  });
  EXPECT_THAT(message_of(ends[3]), AllOf(HasSubstr("rank 2 is in send_receive"),
                                         HasSubstr("8 bytes"), HasSubstr("7 bytes")));
}

TEST(Tcp, MovesMoreThanItsScratchHolds) {
  const SuiteOptions suite{.places = places_of(std::array{3}), .large_piece_bytes = 400'004};
  std::vector<std::vector<std::string>> complaints(3);
  in_threads(options_of(suite.places), [&](int rank, Communicator& comm) {
    complaints[static_cast<std::size_t>(rank)] = check_collectives(comm, suite);
  });
  for (const auto& of_rank : complaints) EXPECT_THAT(of_rank, testing::IsEmpty());
}

// A node's ranks need not be consecutive.
TEST(Tcp, GroupsRanksThatAreDealtOverHostsInTurn) {
  const SuiteOptions suite{.places = {{"a", 0}, {"b", 0}, {"a", 1}, {"b", 1}}};
  std::vector<std::vector<std::string>> complaints(4);
  in_threads(options_of(suite.places), [&](int rank, Communicator& comm) {
    complaints[static_cast<std::size_t>(rank)] = check_collectives(comm, suite);
  });
  for (const auto& of_rank : complaints) EXPECT_THAT(of_rank, testing::IsEmpty());
}

TEST(Tcp, TellsOthersWhyARankGivesUp) {
  std::vector<Status> ends(3);
  const auto begin = steady_clock::now();
  in_threads(options_of(places_of(std::array{2, 1})), [&](int rank, Communicator& comm) {
    // The others may still be in it when rank 2 gives up.
    static_cast<void>(comm.barrier());
    if (rank == 2) {
      comm.abort("the GPU ran out of memory");
      comm.abort("a second reason");
    }
    Status& end = ends[static_cast<std::size_t>(rank)];
    if (rank == 1) {
      // It waits for rank 0, which is busy with something else.
      end = comm.barrier(ProcessGroup::kNode);
    } else {
      while (comm.health().ok()) std::this_thread::sleep_for(milliseconds(1));
      end = comm.health();
    }
    EXPECT_FALSE(comm.health().ok());
    EXPECT_EQ(message_of(comm.barrier()), message_of(ends[static_cast<std::size_t>(rank)]));
    EXPECT_EQ(message_of(comm.finish(nullptr)), message_of(comm.health()));
  });
  EXPECT_LT(steady_clock::now() - begin, seconds(5));
  for (const Status& end : ends) {
    ASSERT_FALSE(end.ok());
    EXPECT_EQ(end.error().code(), ErrorCode::kCancelled);
  }
  EXPECT_EQ(message_of(ends[0]), "rank 2 (b) ended the run: the GPU ran out of memory");
  EXPECT_EQ(message_of(ends[1]), message_of(ends[0]));
  EXPECT_EQ(message_of(ends[2]), "the GPU ran out of memory");
}

TEST(Tcp, NamesARankThatDoesNotCallWhatOthersDo) {
  auto options = options_of(places_of(std::array{3}));
  for (TcpOptions& of_rank : options) of_rank.collective_timeout = milliseconds(300);
  std::vector<Status> ends(3);
  in_threads(options, [&](int rank, Communicator& comm) {
    ASSERT_TRUE(comm.barrier().ok());
    if (rank == 1) {  // busy with something else forever
      while (comm.health().ok()) std::this_thread::sleep_for(milliseconds(5));
      ends[1] = comm.health();
      return;
    }
    std::array<int, 3> all{};
    ends[static_cast<std::size_t>(rank)] = comm.all_gather_values(rank, all);
  });
  for (const Status& end : ends) {
    EXPECT_THAT(message_of(end),
                AllOf(HasSubstr("all_gather: rank "), HasSubstr("300 ms for rank 1")));
  }
}

// One of five ranks never arrives, and one arrives late: it waits like the others, and is not
// named.
TEST(Tcp, NamesTheRankThatNeverReachesABarrier) {
  constexpr int kMissing = 1;
  constexpr int kLate = 2;
  auto options = options_of(places_of(std::array{5}));
  for (TcpOptions& of_rank : options) of_rank.collective_timeout = milliseconds(600);
  std::vector<Status> ends(5);
  in_threads(options, [&](int rank, Communicator& comm) {
    ASSERT_TRUE(comm.barrier().ok());
    Status& end = ends[static_cast<std::size_t>(rank)];
    if (rank == kMissing) {
      while (comm.health().ok()) std::this_thread::sleep_for(milliseconds(5));
      end = comm.health();
      return;
    }
    if (rank == kLate) std::this_thread::sleep_for(milliseconds(200));
    end = comm.barrier();
  });
  for (const Status& end : ends) {
    EXPECT_THAT(message_of(end), HasSubstr("barrier: rank "));
    EXPECT_THAT(message_of(end), testing::EndsWith("waited 600 ms for rank 1"));
  }
}

TEST(Tcp, NamesARankThatLeftWithoutSayingWhy) {
  std::vector<Status> ends(3);
  in_threads(options_of(places_of(std::array{3})), [&](int rank, Communicator& comm) {
    if (rank == 1) return;
    std::array<int, 3> all{};
    ends[static_cast<std::size_t>(rank)] = comm.all_gather_values(rank, all);
  });
  for (const int rank : {0, 2}) {
    EXPECT_THAT(message_of(ends[static_cast<std::size_t>(rank)]),
                ContainsRegex("rank 1 \\(a\\).*all_gather"));
  }
}

TEST(Tcp, RefusesCollectivesOfDifferentKindsAndSizes) {
  for (const bool other_kind : {false, true}) {
    std::vector<Status> ends(2);
    in_threads(options_of(places_of(std::array{2})), [&](int rank, Communicator& comm) {
      std::array<std::byte, 12> mine{};
      std::array<std::byte, 24> all{};
      const std::size_t size = rank == 1 && !other_kind ? 8 : 12;
      ends[static_cast<std::size_t>(rank)] =
          rank == 1 && other_kind
              ? comm.broadcast(std::span(mine), 0)
              : comm.all_gather(std::span(mine).first(size), std::span(all).first(2 * size));
    });
    // One rank detects it first, and the other is notified.
    for (const Status& end : ends) {
      EXPECT_THAT(message_of(end), HasSubstr(other_kind ? "broadcast" : "all_gather of 16 bytes"));
      EXPECT_THAT(message_of(end), HasSubstr("all_gather of 24 bytes"));
    }
  }
}

TEST(Tcp, RefusesAStreamAndSizesBeforeAnythingIsSent) {
  in_threads(options_of(places_of(std::array{2})), [&](int rank, Communicator& comm) {
    std::array<std::byte, 8> all{};
    int stream = 0;
    EXPECT_EQ(comm.all_to_all(all, all, {.stream = &stream}).error().code(),
              ErrorCode::kUnsupported);
    if (rank == 0) {
      EXPECT_EQ(comm.all_gather(std::span(all).first(3), all).error().code(),
                ErrorCode::kInvalidArgument);
    }
    EXPECT_TRUE(comm.barrier().ok()) << "it can still be used";
  });
}

// Ranks as processes. Each ends with the result of `body`, which reaches the parent as text.
class Processes {
 public:
  using Body = std::function<std::string(Communicator& comm, const std::function<void()>& ready)>;

  Processes(const std::vector<TcpOptions>& options, const Body& body) {
    for (const TcpOptions& of_rank : options) {
      std::array<int, 2> pipe{};
      EXPECT_EQ(::pipe(pipe.data()), 0);
      const pid_t child = ::fork();
      if (child == 0) {
        auto comm = make_tcp_communicator(of_rank);
        const auto say = [&](const std::string& text) {
          static_cast<void>(::write(pipe[1], text.data(), text.size()) > 0);
        };
        if (comm.ok()) say(body(**comm, [&] { say("ready\n"); }));
        if (!comm.ok()) say(comm.error().message());
        if (comm.ok()) comm->reset();
        ::_exit(0);
      }
      ::close(pipe[1]);
      children_.push_back(child);
      pipes_.emplace_back(pipe[0]);
    }
    if (options[0].listening_socket >= 0) ::close(options[0].listening_socket);
  }
  ~Processes() {
    for (const pid_t child : children_) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  void signal(int rank, int number) { ::kill(children_[static_cast<std::size_t>(rank)], number); }
  void wait_until_ready() {
    for (const FileDescriptor& pipe : pipes_) {
      std::array<char, 6> word{};
      EXPECT_EQ(::read(pipe.get(), word.data(), word.size()), 6);
    }
  }
  // A rank's output at its end.
  std::string last_words(int rank) {
    std::string words;
    std::array<char, 4096> chunk{};
    while (true) {
      const ssize_t got =
          ::read(pipes_[static_cast<std::size_t>(rank)].get(), chunk.data(), chunk.size());
      if (got <= 0) return words;
      words.append(chunk.data(), static_cast<std::size_t>(got));
    }
  }

 private:
  std::vector<pid_t> children_;
  std::vector<FileDescriptor> pipes_;
};

// --- rendezvous ----------------------------------------------------------------------------------

TEST(Rendezvous, NamesRanksThatNeverCome) {
  auto options = options_of(places_of(std::array{4}));
  for (TcpOptions& of_rank : options) of_rank.rendezvous_timeout = milliseconds(400);
  options.resize(2);
  for (const Status& status : in_threads(options, [](int, Communicator&) { FAIL(); })) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), ErrorCode::kTimedOut);
    EXPECT_THAT(message_of(status), ContainsRegex("ranks 2 and 3 of 4.*rank 0"));
    EXPECT_THAT(message_of(status), HasSubstr("within 400 ms"));
  }
}

TEST(Rendezvous, SaysThatRankZeroDidNotAnswer) {
  auto options = options_of(places_of(std::array{2}));
  ::close(options[0].listening_socket);
  options[1].rendezvous_timeout = milliseconds(300);
  const auto comm = make_tcp_communicator(options[1]);
  ASSERT_FALSE(comm.ok());
  EXPECT_EQ(comm.error().code(), ErrorCode::kTimedOut);
  EXPECT_THAT(comm.error().message(), AllOf(ContainsRegex("rank 0.*300 ms"),
                                            HasSubstr("127.0.0.1:"), HasSubstr("refused")));
}

TEST(Rendezvous, RefusesRanksThatDoNotFitTogether) {
  const auto expect_all = [](const std::vector<TcpOptions>& options, const char* why) {
    for (const Status& status : in_threads(options, [](int, Communicator&) { FAIL(); })) {
      EXPECT_THAT(message_of(status), HasSubstr(why));
    }
  };
  auto options = options_of(places_of(std::array{2}));
  options[1].context.world = 3;
  expect_all(options, "rank 1 says that there are 3 ranks, but rank 0 says that there are 2");
  options = options_of(places_of(std::array{3}));
  options[2].context.local_rank = 1;
  expect_all(options, "ranks 1 and 2 are both local rank 1 of host a");
  options = options_of(places_of(std::array{2}));
  options[1].context.local_world = 1;
  options[1].context.local_rank = 0;
  options[1].host = "b";
  expect_all(options, "rank 0 (a) says that its host has 2 ranks, and 1 connected from there");
  options = options_of(places_of(std::array{1}));
  options[0].context.rank = 1;
  expect_all(options, "there is no rank 1 of 1");
}

TEST(Rendezvous, NamesARankThatTwoProcessesClaim) {
  auto options = options_of(places_of(std::array{3}));
  options[2].context.rank = 1;
  options[2].context.local_rank = 1;
  for (const Status& status : in_threads(options, [](int, Communicator&) { FAIL(); })) {
    EXPECT_THAT(message_of(status), HasSubstr("to be rank 1"));
  }
}

TEST(Rendezvous, SaysThatThePortIsTaken) {
  auto options = options_of(places_of(std::array{2}));
  const FileDescriptor taken(std::exchange(options[0].listening_socket, -1));
  const auto comm = make_tcp_communicator(options[0]);
  ASSERT_FALSE(comm.ok());
  EXPECT_EQ(comm.error().code(), ErrorCode::kBusy);
  EXPECT_THAT(comm.error().message(),
              AllOf(HasSubstr("port " + std::to_string(options[0].master_port)),
                    HasSubstr("choose another MASTER_PORT")));
}

TEST(Rendezvous, NamesARankThatLeavesBeforeAllHaveCome) {
  auto options = options_of(places_of(std::array{3}));
  Processes first({options[1]}, [](Communicator&, const auto&) { return "it came"; });
  std::thread killer([&] {
    std::this_thread::sleep_for(milliseconds(500));
    first.signal(0, SIGKILL);
  });
  options.resize(1);
  const auto statuses = in_threads(options, [](int, Communicator&) { FAIL(); });
  killer.join();
  EXPECT_THAT(message_of(statuses[0]), HasSubstr("rank 1 (a) has disconnected"));
}

TEST(Rendezvous, DropsStrangersAndTurnsAwayOtherRuns) {
  auto options = options_of(places_of(std::array{2}));
  const HostAndPort master{"127.0.0.1", options[0].master_port};
  const auto soon = time_now() + seconds(20);
  auto silent = connect_to(master, soon);
  auto talker = connect_to(master, soon);
  ASSERT_TRUE(silent.ok() && talker.ok());
  const std::string request = "GET / HTTP/1.1\r\n\r\n" + std::string(20'000, 'x');
  ASSERT_TRUE(send_all(*talker, std::as_bytes(std::span(request)), soon).ok());
  const auto meet = [](const TcpOptions& rank) {
    return message_of(in_threads({rank}, [](int, Communicator& comm) {
                        EXPECT_EQ(message_of(comm.barrier()), "");
                      }).front());
  };
  std::thread first([&] { EXPECT_EQ(meet(options[0]), ""); });
  // Rank 0 still waits for rank 1.
  TcpOptions other = options[1];
  other.job = "another";
  EXPECT_THAT(meet(other), HasSubstr("belongs to another run"));
  EXPECT_EQ(meet(options[1]), "");
  first.join();
}

TEST(TcpProcesses, DoEveryCollectiveAsTheOracleSays) {
  const SuiteOptions suite{.places = places_of(std::array{2, 2})};
  Processes processes(options_of(suite.places), [&](Communicator& comm, const auto& /*ready*/) {
    std::string all;
    for (const std::string& complaint : check_collectives(comm, suite)) all += complaint + "\n";
    return all.empty() ? "right" : all;
  });
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(processes.last_words(rank), "right");
}

// Gathers forever, until a call fails.
std::string gather_for_ever(Communicator& comm, const std::function<void()>& ready) {
  std::vector<std::byte> mine(3U << 20);
  std::vector<std::byte> all(4 * mine.size());
  Status status = comm.barrier();
  ready();
  while (status.ok()) status = comm.all_gather(mine, all);
  return status.error().message();
}

TEST(TcpProcesses, NameARankThatIsKilledInTheMiddleOfACollective) {
  for (const int victim : {0, 2}) {
    Processes processes(options_of(places_of(std::array{2, 2})), gather_for_ever);
    processes.wait_until_ready();
    std::this_thread::sleep_for(milliseconds(100));
    processes.signal(victim, SIGKILL);
    const auto begin = steady_clock::now();
    const std::string named = victim == 0 ? "rank 0 (a) is " : "rank 2 (b) is ";
    for (int rank = 0; rank < 4; ++rank) {
      const std::string words = processes.last_words(rank);
      if (rank == victim) continue;
      EXPECT_THAT(words, HasSubstr(named)) << "rank " << rank;
    }
    EXPECT_LT(steady_clock::now() - begin, seconds(5));
  }
}

TEST(TcpProcesses, NameARankOfWhichNothingIsHeard) {
  auto options = options_of(places_of(std::array{3}));
  for (TcpOptions& of_rank : options) of_rank.silence_timeout = milliseconds(1500);
  Processes processes(options, [](Communicator& comm, const std::function<void()>& ready) {
    std::vector<std::byte> all(3);
    Status status = comm.barrier();
    ready();
    while (status.ok()) {
      std::this_thread::sleep_for(milliseconds(1));
      status =
          comm.all_gather(std::span(all).subspan(static_cast<std::size_t>(comm.rank()), 1), all);
    }
    return status.error().message();
  });
  processes.wait_until_ready();
  processes.signal(1, SIGSTOP);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(processes.last_words(rank), "rank 1 (a) is gone: it has not responded for 1500 ms");
  }
}

}  // namespace
}  // namespace sluice::engine
