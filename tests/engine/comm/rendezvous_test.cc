// How ranks meet among strangers: what connections cost that may not join, that send nothing or
// something else, and ports that another program uses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "engine/comm/control_channel.h"
#include "engine/comm/control_frames.h"
#include "engine/comm/handshake.h"
#include "engine/comm/tcp_communicator.h"
#include "tests/engine/comm/tcp_ranks.h"
#include "tests/engine/comm/test_sockets.h"

namespace sluice::engine {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

// --- runs ----------------------------------------------------------------------------------------

double cpu_seconds(const rusage& use) {
  const auto of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return of(use.ru_utime) + of(use.ru_stime);
}

std::vector<TcpOptions> with_secret(std::vector<TcpOptions> options) {
  for (TcpOptions& of_rank : options) of_rank.secret = "of this run";
  return options;
}

TEST(Rendezvous, AStrangerWhoKnowsTheJobNeitherJoinsNorEndsTheRun) {
  const auto options = with_secret(options_of(places_of(std::array{3})));
  std::vector<std::thread> ranks;
  const auto start = [&](std::size_t rank) {
    ranks.emplace_back([&options, rank] {
      const auto comm = make_tcp_communicator(options[rank]);
      ASSERT_TRUE(comm.ok()) << comm.error().message();
      EXPECT_TRUE((*comm)->barrier().ok());
    });
  };
  start(0);
  start(1);
  // Connects as rank 1, and as one of another number of ranks, while rank 0 waits for rank 2.
  for (const int world : {3, 5}) {
    TcpOptions stranger = options[1];
    stranger.secret = "";
    stranger.context.world = world;
    const auto comm = make_tcp_communicator(stranger);
    ASSERT_FALSE(comm.ok());
    EXPECT_THAT(comm.error().message(), HasSubstr("another SLUICE_SECRET"));
  }
  start(2);
  for (std::thread& thread : ranks) thread.join();
}

TEST(Rendezvous, NamesTheHostOfOneThatHasAnotherSecret) {
  auto options = with_secret(options_of(places_of(std::array{2})));
  options[1].secret = "of another";
  options[0].rendezvous_timeout = seconds(3);
  options[0].how_to_start = "start them";
  const auto statuses = in_threads(options, [](int, Communicator&) { FAIL(); });
  EXPECT_THAT(message_of(statuses[0]),
              AllOf(HasSubstr("rank 1 of 2"), ContainsRegex("127.0.0.1.*SLUICE_SECRET")));
}

// Rank 0 is in a process with a limit on descriptors, and gets more connections than it can have.
void expect_ranks_meet_among_strangers(int strangers, std::uint64_t more_descriptors) {
  auto options = with_secret(options_of(places_of(std::array{2})));
  const pid_t first = ::fork();
  if (first == 0) {
    if (more_descriptors > 0) {
      const int next = ::dup(0);
      const rlimit limit{static_cast<rlim_t>(next) + more_descriptors,
                         static_cast<rlim_t>(next) + more_descriptors};
      ::close(next);
      ::setrlimit(RLIMIT_NOFILE, &limit);
    }
    int code = 1;
    if (auto comm = make_tcp_communicator(options[0]); comm.ok()) {
      rusage use{};
      ::getrusage(RUSAGE_SELF, &use);
      const bool is_idle = cpu_seconds(use) < 0.5;
      code = !(*comm)->barrier().ok() ? 2 : is_idle ? 0 : 3;
      comm->reset();  // announces that it leaves: the other rank's barrier may not be over yet
    }
    ::_exit(code);
  }
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < strangers; ++i) silent.push_back(connected(options[0].master_port));
  std::this_thread::sleep_for(seconds(1));  // during which it has nothing to do
  options[1].listening_socket = -1;
  {
    const auto comm = make_tcp_communicator(options[1]);
    EXPECT_TRUE(comm.ok()) << comm.error().message();
    if (comm.ok()) {
      EXPECT_TRUE((*comm)->barrier().ok());
    }
  }
  int status = 0;
  ::waitpid(first, &status, 0);
  ::close(options[0].listening_socket);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "1: it did not meet; 3: it was busy with strangers";
}

TEST(Rendezvous, HundredsOfConnectionsThatSayNothingKeepNobodyWaiting) {
  expect_ranks_meet_among_strangers(400, 0);
}

TEST(Rendezvous, ConnectionsThatSayNothingDoNotUseUpDescriptors) {
  expect_ranks_meet_among_strangers(60, 40);
}

TEST(Rendezvous, NeedsDescriptorsForAllRanksAndSaysSoBefore) {
  EXPECT_EXIT(
      {
        rlimit limit{};
        limit.rlim_cur = 64;
        limit.rlim_max = 4096;
        ::setrlimit(RLIMIT_NOFILE, &limit);
        const Status raised = make_room_for_descriptors(1000);
        ::getrlimit(RLIMIT_NOFILE, &limit);
        const bool is_raised = raised.ok() && limit.rlim_cur > 1000;
        const Status refused = make_room_for_descriptors(10'000);
        const bool is_said =
            !refused.ok() && refused.error().message().find("4096") != std::string::npos;
        ::_exit(is_raised && is_said ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

// Rank 2 has arrived and never connects for data; before it fails, it keeps strangers there.
TEST(Rendezvous, StrangersAtThePortForDataDoNotHideAFailure) {
  auto options = with_secret(options_of(places_of(std::array{3})));
  std::vector<std::thread> threads;
  for (const TcpOptions& of_rank : options) {
    threads.emplace_back([&of_rank] {
      auto control = ControlChannel::join(of_rank, FileDescriptor(of_rank.listening_socket));
      ASSERT_TRUE(control.ok()) << control.error().message();
      const int rank = of_rank.context.rank;
      if (rank < 2) {
        const auto sockets = connect_for_data(**control, rank, RunKey(of_rank.secret, of_rank.job),
                                              time_now() + seconds(20));
        ASSERT_FALSE(sockets.ok());
        EXPECT_THAT(sockets.error().message(), ContainsRegex("rank 2 \\(a\\) ended.*it has died"));
        return;
      }
      std::vector<FileDescriptor> silent;
      for (int i = 0; i < 40; ++i)
        silent.push_back(
            connected((*control)->table().targets[static_cast<std::size_t>(i % 2)].port));
      std::this_thread::sleep_for(milliseconds(100));
      const auto begin = time_now();
      (*control)->fail(ErrorCode::kInternal, "it has died");
      EXPECT_LT(time_now() - begin, seconds(5));
    });
  }
  const auto begin = time_now();
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(time_now() - begin, seconds(10));
}

TEST(Rendezvous, SaysThatAnotherProgramHasAPortForData) {
  auto options = with_secret(options_of(places_of(std::array{2})));
  std::atomic<bool> is_over{false};
  std::thread first([&] {
    auto control = ControlChannel::join(options[0], FileDescriptor(options[0].listening_socket));
    ASSERT_TRUE(control.ok()) << control.error().message();
    const FileDescriptor listener = (*control)->take_data_listener();
    std::vector<FileDescriptor> answered;
    while (!is_over) {
      const std::string text = "HTTP/1.1 400 Bad Request\r\n\r\n";
      if (auto socket = try_accept(listener)) {
        static_cast<void>(send_all(*socket, std::as_bytes(std::span(text)), soon()));
        answered.push_back(std::move(*socket));
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
  auto control = ControlChannel::join(options[1], FileDescriptor());
  EXPECT_TRUE(control.ok());
  if (control.ok()) {
    const auto sockets = connect_for_data(**control, 1, RunKey(options[1].secret, options[1].job),
                                          time_now() + seconds(3));
    EXPECT_THAT(
        sockets.ok() ? "" : sockets.error().message(),
        AllOf(ContainsRegex("rank 1 \\(a\\) was not accepted by rank 0 \\(a\\).*127.0.0.1:"),
              HasSubstr("not a rank"), Not(HasSubstr("firewall"))));
  }
  is_over = true;
  first.join();
}

// The error of another rank if something else uses rank 0's port.
std::string said_of(const std::function<void(const FileDescriptor& socket)>& server,
                    milliseconds answer_timeout = seconds(10)) {
  const FileDescriptor listener = listening();
  auto options = options_of(places_of(std::array{2}));
  ::close(options[0].listening_socket);
  options[1].master_port = port_of(listener);
  options[1].rendezvous_timeout = seconds(20);
  options[1].answer_timeout = answer_timeout;
  std::thread thread([&] {
    pollfd entry{.fd = listener.get(), .events = POLLIN, .revents = 0};
    static_cast<void>(::poll(&entry, 1, 20'000));
    const auto socket = try_accept(listener);
    if (socket) server(*socket);
  });
  const auto begin = time_now();
  const auto comm = make_tcp_communicator(options[1]);
  EXPECT_LT(time_now() - begin, seconds(15));
  thread.join();
  return comm.ok() ? "" : comm.error().message();
}

TEST(Rendezvous, SaysSoonThatAnotherProgramHasThePort) {
  const auto says = [](const std::string& text) {
    return [text](const FileDescriptor& socket) {
      EXPECT_TRUE(send_all(socket, std::as_bytes(std::span(text)), soon()).ok());
      std::array<std::byte, 48> knock{};  // all of it: otherwise the close is a reset
      static_cast<void>(receive_all(socket, knock, soon()));
    };
  };
  for (const char* text : {"HTTP/1.1 400 Bad Request\r\n\r\n", "SSH-2.0-OpenSSH_9.2\r\n"}) {
    EXPECT_THAT(said_of(says(text)),
                AllOf(HasSubstr("not rank 0"), HasSubstr("choose another MASTER_PORT")));
  }
  // The server waits for more.
  EXPECT_THAT(said_of(
                  [](const FileDescriptor& socket) {
                    std::array<std::byte, 4096> all{};
                    static_cast<void>(receive_all(socket, all, time_now() + seconds(2)));
                  },
                  milliseconds(300)),
              HasSubstr("300 ms"));
}

TEST(Rendezvous, ShowsWhatASwindlerWritesAndPrintsNoneOfIt) {
  const std::string evil = "\x1b[2J\x1b]0;owned\a\nsluice: all is well" + std::string(9000, 'x');
  const std::string said = said_of([&](const FileDescriptor& socket) {
    const Frame frame = failure_frame(0, Error(ErrorCode::kIo, evil.substr(0, 3500)));
    EXPECT_TRUE(send_frame(socket, frame, soon()).ok());
    std::array<std::byte, 48> knock{};  // all of it: otherwise the close is a reset
    static_cast<void>(receive_all(socket, knock, soon()));
  });
  EXPECT_THAT(said, HasSubstr("\\x1b[2J\\x1b]0;owned\\x07\\x0asluice: all is well"));
  for (const char c : said) EXPECT_GE(c, ' ');
}

TEST(Rendezvous, TellsOthersTheAddressThatARankIsGiven) {
  const Hello hello{.rank = 1, .world = 3, .data_port = 7, .address = "10.0.0.7\n", .host = "a"};
  const auto read = unpack_hello(pack(hello));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->address, "10.0.0.7\\x0a");
  EXPECT_EQ(read->data_port, 7);
  auto options = with_secret(options_of(places_of(std::array{1, 1, 1})));
  options[0].listen_address = "127.0.0.2";
  options[1].listen_address = "127.0.0.3";
  for (const Status& status :
       in_threads(options, [](int, Communicator& comm) { EXPECT_TRUE(comm.barrier().ok()); })) {
    EXPECT_TRUE(status.ok()) << message_of(status);
  }
}

TEST(Rendezvous, RefusesAnAddressToListenAtThatThisHostHasNot) {
  auto options = with_secret(options_of(places_of(std::array{1, 1})));
  for (const std::string& elsewhere : {std::string("192.0.2.1"), std::string(70, 'x')}) {
    options[0].listen_address = elsewhere;
    const auto listener = listen_for(options[0], "127.0.0.1", 0);
    ASSERT_FALSE(listener.ok());
    EXPECT_EQ(listener.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(
        listener.error().message(),
        AllOf(HasSubstr("SLUICE_LISTEN"), HasSubstr("this host has no address " + elsewhere)));
  }
  // Ranks of one host that meet at its loopback address listen only there.
  options[0].context.local_world = options[0].context.world;
  const auto listener = listen_for(options[0], "127.0.0.1", 0);
  ASSERT_TRUE(listener.ok()) << listener.error().message();
  EXPECT_EQ(local_address(*listener), "127.0.0.1");
  ::close(options[0].listening_socket);
}

TEST(ListenAt, TakesTheAddressThatLeadsToOthersAndAllWhereNoneDoes) {
  // The address of this machine that a packet to the documentation network would use.
  const FileDescriptor probe(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in far{};
  far.sin_family = AF_INET;
  far.sin_port = htons(9);
  far.sin_addr.s_addr = htonl(0xc0000201);  // 192.0.2.1
  const bool has_route =
      ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&far), sizeof far) == 0;
  const std::string own = has_route ? local_address(probe) : "";
  if (own.empty() || is_loopback(own)) GTEST_SKIP() << "this machine has no network";
  for (const Reach reach : {Reach::kThisHost, Reach::kAllHosts}) {
    const auto here = listen_at(own, 0, reach);
    ASSERT_TRUE(here.ok()) << here.error().message();
    EXPECT_EQ(local_address(*here), own);
  }
  // A name that is loopback here names something else on other hosts, as does an address that this
  // machine does not have.
  for (const char* elsewhere : {"localhost", "192.0.2.1", ""}) {
    const auto anywhere = listen_at(elsewhere, 0, Reach::kAllHosts);
    ASSERT_TRUE(anywhere.ok()) << anywhere.error().message();
    EXPECT_THAT(local_address(*anywhere), testing::AnyOf("::", "0.0.0.0"));
  }
  EXPECT_TRUE(is_loopback(local_address(*listen_at("localhost", 0, Reach::kThisHost))));
  EXPECT_TRUE(is_own_address("127.0.0.1"));
  EXPECT_TRUE(is_own_address("localhost"));
  EXPECT_FALSE(is_own_address("192.0.2.1"));  // no host's (RFC 5737)
  EXPECT_FALSE(is_own_address("no such host"));
  EXPECT_FALSE(is_own_address(""));
}

}  // namespace
}  // namespace sluice::engine
