// The rules for every communicator, tested on a stand-in for one rank of several, and the behaviour
// of a single process.
#include "engine/comm/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

namespace sluice::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Rank 1 of 3 in the world, 0 of 1 on its node: counts calls that pass the checks.
class RankOneOfThree final : public Communicator {
 public:
  int rank(ProcessGroup group) const override { return group == ProcessGroup::kWorld ? 1 : 0; }
  int world_size(ProcessGroup group) const override {
    return group == ProcessGroup::kWorld ? 3 : 1;
  }
  offload::Topology topology() const override { return {.world = 3, .local_world = 3}; }
  Status finish(void* /*stream*/) override { return {}; }
  void abort(std::string_view /*reason*/) noexcept override {}
  Status health() const override { return {}; }
  int calls = 0;

 private:
  Status do_all_gather(std::span<const std::byte> /*mine*/, std::span<std::byte> /*all*/,
                       const CollectiveOptions& /*options*/) override {
    return count();
  }
  Status do_broadcast(std::span<std::byte> /*bytes*/, int /*root*/,
                      const CollectiveOptions& /*options*/) override {
    return count();
  }
  Status do_all_to_all(std::span<const std::byte> /*sent*/, std::span<std::byte> /*received*/,
                       const CollectiveOptions& /*options*/) override {
    return count();
  }
  Status do_send_receive(const Messages& /*messages*/,
                         const CollectiveOptions& /*options*/) override {
    return count();
  }
  Result<std::unique_ptr<Communicator>> do_part(std::span<const int> /*ranks*/) override {
    SLUICE_RETURN_IF_ERROR(count());
    return make_single_process_communicator();
  }
  Status do_barrier(ProcessGroup /*group*/) override { return count(); }
  Status count() {
    ++calls;
    return {};
  }
};

class CommunicatorRules : public testing::Test {
 protected:
  void accepted(const Status& status) {
    EXPECT_TRUE(status.ok()) << status.error().message();
    EXPECT_EQ(comm_.calls, ++calls_);
  }
  void refused(const Status& status, const char* why) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.error().message(), HasSubstr(why));
    EXPECT_EQ(comm_.calls, calls_) << "something was sent";
  }
  std::span<std::byte> bytes(std::size_t from, std::size_t count) {
    return std::span(bytes_).subspan(from, count);
  }

  RankOneOfThree comm_;
  int calls_ = 0;
  std::array<std::byte, 256> bytes_{};
};

TEST_F(CommunicatorRules, WantEqualPiecesOfAWhole) {
  accepted(comm_.all_gather(bytes(100, 5), bytes(0, 15)));
  accepted(comm_.all_gather({}, {}));
  refused(comm_.all_gather(bytes(100, 5), bytes(0, 16)), "a piece of 5 bytes for each of 3 ranks");
  refused(comm_.all_gather(bytes(100, 5), bytes(0, 5)), "does not make a whole of 5");
  accepted(comm_.all_gather(bytes(100, 5), bytes(0, 5), {.group = ProcessGroup::kNode}));
  accepted(comm_.all_to_all(bytes(0, 9), bytes(100, 9)));
  refused(comm_.all_to_all(bytes(0, 10), bytes(100, 10)), "3 equal pieces each");
  refused(comm_.all_to_all(bytes(0, 9), bytes(100, 12)), "3 equal pieces each");
  accepted(comm_.all_to_all(bytes(0, 23), bytes(100, 9), {.sent_stride_bytes = 10}));
  refused(comm_.all_to_all(bytes(0, 24), bytes(100, 9), {.sent_stride_bytes = 10}),
          "3 equal pieces each");
  refused(comm_.all_to_all(bytes(0, 7), bytes(100, 9), {.sent_stride_bytes = 2}),
          "3 equal pieces each");
  accepted(comm_.all_to_all(bytes(0, 18), bytes(100, 18), {.batches = 2}));
  accepted(comm_.all_to_all(bytes(0, 53), bytes(100, 18), {.sent_stride_bytes = 10, .batches = 2}));
  refused(comm_.all_to_all(bytes(0, 9), bytes(100, 9), {.batches = 2}), "6 equal pieces each");
  refused(comm_.all_to_all(bytes(0, 9), bytes(100, 9), {.batches = 0}), "batches is 0");
}

TEST_F(CommunicatorRules, LetInputAndOutputBeApartOrInPlaceAndNothingElse) {
  accepted(comm_.all_gather(bytes(5, 5), bytes(0, 15)));  // rank 1's own piece
  refused(comm_.all_gather(bytes(0, 5), bytes(0, 15)), "without being in place");
  refused(comm_.all_gather(bytes(14, 5), bytes(0, 15)), "without being in place");
  accepted(comm_.all_gather(bytes(15, 5), bytes(0, 15)));
  accepted(comm_.all_to_all(bytes(0, 9), bytes(0, 9)));
  refused(comm_.all_to_all(bytes(0, 9), bytes(3, 9)), "without being in place");
  refused(comm_.all_to_all(bytes(0, 18), bytes(0, 18), {.batches = 2}), "without being in place");
}

TEST_F(CommunicatorRules, KnowTheRanksOfEachGroup) {
  accepted(comm_.broadcast(bytes(0, 7), 2));
  refused(comm_.broadcast(bytes(0, 7), 3), "no rank 3 among 3");
  refused(comm_.broadcast(bytes(0, 7), -1), "no rank -1 among 3");
  refused(comm_.broadcast(bytes(0, 7), 1, {.group = ProcessGroup::kNode}), "no rank 1 among 1");
  accepted(comm_.barrier());
}

TEST_F(CommunicatorRules, LetMessagesGoToAnotherRankOfTheGroup) {
  accepted(comm_.send_receive({.sent = bytes(0, 7), .to = 2}));
  accepted(comm_.send_receive({.received = bytes(0, 7), .from = 0}));
  accepted(comm_.send_receive({.sent = bytes(0, 7), .to = 0, .received = bytes(7, 3), .from = 0}));
  accepted(comm_.send_receive({.to = 0}));  // a message of no bytes
  refused(comm_.send_receive({.sent = bytes(0, 7), .to = 1}), "has no other rank 1");
  refused(comm_.send_receive({.sent = bytes(0, 7), .to = 3}), "rank 1 of 3 has no other rank 3");
  refused(comm_.send_receive({.sent = bytes(0, 7), .to = 0}, {.group = ProcessGroup::kNode}),
          "rank 0 of 1 has no other rank 0");
  refused(comm_.send_receive({.sent = bytes(0, 7)}), "no rank for them");
  refused(comm_.send_receive({.to = 2, .received = bytes(0, 7)}), "no rank for them");
  refused(comm_.send_receive({.sent = bytes(0, 7), .to = 0, .received = bytes(6, 3), .from = 2}),
          "overlap");
}

TEST_F(CommunicatorRules, LetPartsHaveEachRankOnceAndThisOne) {
  const auto part = [&](std::vector<int> ranks) { return comm_.part(ranks).status(); };
  accepted(part({1}));
  accepted(part({2, 1}));
  refused(part({}), "rank 1 is not a rank of this part");
  refused(part({0, 2}), "rank 1 is not a rank of this part");
  refused(part({1, 1}), "rank 1 is there twice");
  refused(part({1, 3}), "not one of 3");
  refused(part({1, -1}), "not one of 3");
}

TEST(SingleProcess, IsRankZeroOfOneInEveryGroup) {
  const auto comm = make_single_process_communicator();
  for (const auto group : {ProcessGroup::kWorld, ProcessGroup::kNode, ProcessGroup::kPeers}) {
    EXPECT_EQ(comm->rank(group), 0);
    EXPECT_EQ(comm->world_size(group), 1);
    EXPECT_TRUE(comm->barrier(group).ok());
  }
}

TEST(SingleProcess, ReceivesWhatItSendsBitForBit) {
  const auto comm = make_single_process_communicator();
  const std::vector<float> sent = {1.5F, -0.0F, NAN, 1e-45F};
  const auto same_bits = [&](const std::vector<float>& received) {
    return std::memcmp(received.data(), sent.data(), sent.size() * sizeof(float)) == 0;
  };
  std::vector<float> received(4);
  const auto out = std::as_writable_bytes(std::span(received));
  const auto in = std::as_bytes(std::span(sent));
  ASSERT_TRUE(comm->all_gather(in, out).ok());
  EXPECT_TRUE(same_bits(received));
  received.assign(4, 0);
  ASSERT_TRUE(comm->all_to_all(in, out).ok());
  EXPECT_TRUE(same_bits(received));
  ASSERT_TRUE(comm->broadcast(out, 0).ok());
  EXPECT_TRUE(same_bits(received));
  EXPECT_TRUE(comm->all_gather({}, {}).ok());
  EXPECT_FALSE(comm->all_gather(in, out.first(8)).ok());
}

TEST(SingleProcess, GathersSmallValuesAndHasNoRankToAbort) {
  const auto comm = make_single_process_communicator();
  std::array<double, 1> all{};
  ASSERT_TRUE(comm->all_gather_values(0.1, all).ok());
  EXPECT_EQ(all[0], 0.1);
  std::array<std::int64_t, 2> sums = {-7, INT64_MAX};
  ASSERT_TRUE(comm->sum(sums).ok());
  EXPECT_THAT(sums, ElementsAre(-7, INT64_MAX));
  const auto texts = comm->all_gather_text("a name");
  ASSERT_TRUE(texts.ok());
  EXPECT_THAT(*texts, ElementsAre("a name"));
  EXPECT_TRUE(comm->all_gather_text(std::string(kMaxTextBytes + 1, 'x')).ok());  // not sent
  EXPECT_TRUE(comm->health().ok());
  comm->abort("no room");
  for (const Status& status : {comm->health(), comm->barrier(), comm->all_gather_values(0.1, all)})
    EXPECT_TRUE(status.ok());
}

TEST(SingleProcess, TouchesNoDeviceMemory) {
  const auto comm = make_single_process_communicator();
  int stream = 0;
  // Addresses that must not be dereferenced.
  auto* const device = reinterpret_cast<std::byte*>(0x1000);  // NOLINT(performance-no-int-to-ptr)
  const std::span<std::byte> there(device, 64);
  const std::span<std::byte> elsewhere(device + 64, 64);
  EXPECT_TRUE(comm->all_gather(there, there, {.stream = &stream}).ok());
  EXPECT_TRUE(comm->broadcast(there, 0, {.stream = &stream}).ok());
  const Status status = comm->all_gather(there, elsewhere, {.stream = &stream});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(status.error().message(), HasSubstr("in place"));
}

}  // namespace
}  // namespace sluice::engine
