// How the communicator uses NCCL, on a stand-in for it (fake_nccl.cc): ranks are threads that meet
// over TCP.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <functional>
#include <latch>
#include <thread>

#include "engine/comm/nccl_communicator.h"
#include "engine/comm/tcp_communicator.h"
#include "tests/engine/comm/collective_suite.h"
#include "tests/engine/comm/tcp_ranks.h"

namespace sluice::engine {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

template <typename Function>
Function* fake(const char* name) {
  static void* const library = ::dlopen(SLUICE_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(library, nullptr) << ::dlerror();
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

bool stream_is_done(void* stream) { return fake<int(void*)>("fake_nccl_stream_done")(stream) != 0; }

NcclOptions nccl_options() {
  return {.library = SLUICE_FAKE_NCCL,
          .stream_done = [](void* stream) -> Result<bool> { return stream_is_done(stream); },
          .connect_timeout = seconds(20),
          .collective_timeout = seconds(20),
          .max_send_bytes = 1000};
}

// A stream is an address that belongs to this rank.
class StreamMemory final : public SuiteMemory {
 public:
  explicit StreamMemory(Communicator& comm) : comm_(comm) {}
  void* stream() override { return this; }
  void read(std::span<std::byte> to, std::span<const std::byte> from) override {
    EXPECT_TRUE(comm_.finish(this).ok());
    SuiteMemory::read(to, from);
  }
  void reset() override {
    EXPECT_TRUE(comm_.finish(this).ok());
    SuiteMemory::reset();
  }

 private:
  Communicator& comm_;
};

class Nccl : public testing::Test {
 protected:
  void SetUp() override { set(-1, -1); }
  void TearDown() override {
    set(-1, -1);
    EXPECT_EQ(fake<int()>("fake_nccl_open_comms")(), 0);
  }
  static void set(int hangs, int fails) { fake<void(int, int)>("fake_nccl_set")(hangs, fails); }

  static void in_ranks(const std::vector<RankPlace>& places, const NcclOptions& options,
                       const RankBody& body) {
    std::latch all_connected(static_cast<std::ptrdiff_t>(places.size()));
    for (const Status& status :
         in_threads(options_of(places), [&](int rank, std::unique_ptr<Communicator> host) {
           auto comm = make_nccl_communicator(std::move(host), options);
           all_connected.arrive_and_wait();
           ASSERT_TRUE(comm.ok()) << comm.error().message();
           body(rank, **comm);
         })) {
      EXPECT_EQ(message_of(status), "");
    }
  }
};

TEST_F(Nccl, DoesEveryCollectiveAsTheOracleSays) {
  for (const std::vector<int>& hosts :
       {std::vector{1}, std::vector{2}, std::vector{2, 1}, std::vector{2, 2}}) {
    const auto places = places_of(hosts);
    std::vector<std::vector<std::string>> complaints(places.size());
    in_ranks(places, nccl_options(), [&](int rank, Communicator& comm) {
      StreamMemory memory(comm);
      const SuiteOptions suite{.places = places, .memory = &memory, .device = true};
      auto& own = complaints[static_cast<std::size_t>(rank)];
      own = check_collectives(comm, suite);
      if (own.empty()) own = check_parts(comm, suite);
    });
    for (const auto& of_rank : complaints) EXPECT_THAT(of_rank, testing::IsEmpty());
    EXPECT_EQ(fake<int()>("fake_nccl_aborts")(), 0);
  }
  // A larger all-to-all is sent in pieces.
  EXPECT_EQ(fake<std::size_t()>("fake_nccl_largest_send")(), 1000U);
}

TEST_F(Nccl, LeavesHostMemoryToTheOtherTransport) {
  const auto places = places_of(std::array{2});
  in_ranks(places, nccl_options(), [&](int, Communicator& comm) {
    // An exchange in place, which NCCL does not have.
    std::array<int, 2> values = {10 * comm.rank(), 10 * comm.rank() + 1};
    const auto bytes = std::as_writable_bytes(std::span(values));
    EXPECT_TRUE(comm.all_to_all(bytes, bytes).ok());
    EXPECT_THAT(values, ElementsAre(comm.rank(), 10 + comm.rank()));
    int stream = 0;
    EXPECT_EQ(comm.all_to_all(bytes, bytes, {.stream = &stream}).error().code(),
              ErrorCode::kUnsupported);
    EXPECT_TRUE(comm.barrier().ok());
  });
}

// The status of each rank's finish() for an all-gather that cannot end.
std::vector<Status> stuck_gather(
    const NcclOptions& options, const std::vector<RankPlace>& places,
    const std::function<void(int, Communicator&)>& meanwhile,
    const std::function<void(const std::vector<RankPlace>&, const NcclOptions&, const RankBody&)>&
        run) {
  std::vector<Status> ends(places.size());
  run(places, options, [&](int rank, Communicator& comm) {
    std::vector<std::byte> all(places.size() * 8);
    Status& end = ends[static_cast<std::size_t>(rank)];
    int stream = 0;
    end = comm.all_gather(std::span(all).subspan(static_cast<std::size_t>(rank) * 8, 8), all,
                          {.stream = &stream});
    meanwhile(rank, comm);
    if (end.ok()) end = comm.finish(&stream);
    EXPECT_EQ(comm.all_gather(std::span(all).first(8), std::span(all), {.stream = &stream}).ok(),
              false);
    // The kernels that waited have ended: nothing is left on the stream.
    const auto until = std::chrono::steady_clock::now() + seconds(5);
    while (!stream_is_done(&stream) && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_TRUE(stream_is_done(&stream));
  });
  return ends;
}

TEST_F(Nccl, EndsWhatWaitsForARankThatGaveUp) {
  set(1, -1);
  const auto ends = stuck_gather(
      nccl_options(), places_of(std::array{3}),
      [](int rank, Communicator& comm) {
        if (rank == 1) comm.abort("the GPU ran out of memory");
      },
      in_ranks);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(message_of(ends[static_cast<std::size_t>(rank)]),
              "rank 1 (a) ended the run: the GPU ran out of memory");
  }
  EXPECT_EQ(message_of(ends[1]), "the GPU ran out of memory");
  EXPECT_EQ(fake<int()>("fake_nccl_aborts")(), 3);
}

TEST_F(Nccl, EndsAfterItsTimeWhenARankHangs) {
  set(2, -1);
  NcclOptions options = nccl_options();
  options.collective_timeout = milliseconds(300);
  for (const Status& end : stuck_gather(
           options, places_of(std::array{3}), [](int, Communicator&) {}, in_ranks)) {
    EXPECT_THAT(message_of(end), AllOf(HasSubstr("NCCL: rank "), HasSubstr("waited 300 ms")));
  }
}

TEST_F(Nccl, TellsOthersWhatNcclReports) {
  set(0, -1);
  const auto ends = stuck_gather(
      nccl_options(), places_of(std::array{2}),
      [](int rank, Communicator&) {
        if (rank == 1) set(0, 1);
      },
      in_ranks);
  EXPECT_THAT(message_of(ends[0]), AllOf(HasSubstr("rank 1 (a) ended"),
                                         HasSubstr("unhandled system error (a cable was pulled)")));
}

TEST_F(Nccl, SaysThatItIsNotThere) {
  const auto missing =
      make_nccl_communicator(make_single_process_communicator(), {.library = "libno-such-nccl.so"});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(missing.error().message(), HasSubstr("libno-such-nccl.so"));
  const auto other =
      make_nccl_communicator(make_single_process_communicator(), {.library = "libm.so.6"});
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.error().message(), HasSubstr("NCCL 2.18"));
}

}  // namespace
}  // namespace sluice::engine
