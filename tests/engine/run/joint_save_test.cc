// A checkpoint that all ranks write at once, with faults at operations of each rank. All ranks get
// the same error from the rank that failed. The valid checkpoint is the old one or the new one,
// whole, and the same ranks can save again.
#include "engine/run/joint_save.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "aio/fault_backend.h"
#include "aio/log.h"
#include "aio/make_backend.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/checkpoint_reader.h"
#include "engine/checkpoint/verify_checkpoint.h"
#include "engine/exchange/stored_shape.h"
#include "engine/families/families.h"
#include "engine/runtime/flat_ranges.h"
#include "tests/aio/backends_under_test.h"
#include "tests/engine/comm/tcp_ranks.h"

namespace sluice::engine {
namespace {

using aio::FaultKind;
using testing::HasSubstr;

constexpr int kRanks = 3;
constexpr std::int64_t kStep = 4;

ModelLayout tiny_model() {
  return model_layout(
      {.shape = {.layers = 1, .hidden = 16, .heads = 2, .context_tokens = 8, .vocab = 70}});
}

float value_of(std::int64_t version, std::uint64_t element) {
  return static_cast<float>(version) * 1e6F + static_cast<float>(element);
}

// One rank of a run whose state has a version.
class SavingRank {
 public:
  SavingRank(int rank, Communicator& link, std::string folder)
      : link_{.part = {rank, kRanks}, .link = &link}, folder_(std::move(folder)) {}

  Status save(std::int64_t version, const aio::FaultPlan& plan) {
    aio::FaultBackend faults(*drive_, plan);
    const auto queue = aio::make_queue_or_die(faults, {.max_retries = 1});
    JointSave joint(model_, link_, *queue, DType::kF32);
    const auto source = [&](const JointSave::Append& append) { return give(version, append); };
    Status done;
    if (link_.part.rank == 0) {
      CheckpointState state{.configuration = "{}"};
      state.position = {.global_step = kStep, .samples_drawn = static_cast<std::uint64_t>(version)};
      done = joint.lead(CheckpointFolder(*queue, folder_).path_of(kStep), state, source).status();
    } else {
      done = joint.follow(source);
    }
    injected_ = faults.injected();
    return done;
  }
  bool was_harmed() const { return injected_ > 0; }

  // Whether all ranks got the same result; and whether any was harmed.
  std::pair<bool, bool> compare(const Status& done) const {
    std::array<std::array<int, 2>, kRanks> all{};
    const std::array<int, 2> mine = {done.ok() ? 1 : 0, was_harmed() ? 1 : 0};
    EXPECT_OK(link_.link->all_gather_values(mine, std::span(all)));
    bool same = true;
    bool harmed = false;
    for (const auto& of_rank : all) {
      same = same && of_rank[0] == mine[0];
      harmed = harmed || of_rank[1] != 0;
    }
    return {same, harmed};
  }

  // The valid version, after comparing all of it.
  std::uint64_t saved_version() {
    const auto queue = aio::make_queue_or_die(*drive_, {});
    const auto newest = CheckpointFolder(*queue, folder_).newest();
    EXPECT_OK(newest);
    if (!newest.ok() || !*newest) return 0;
    EXPECT_TRUE(verify_checkpoint(*queue, (*newest)->path, {})->damaged.empty());
    const auto reader = CheckpointReader::open(*queue, (*newest)->path, {});
    EXPECT_OK(reader);
    const std::uint64_t version = (*reader)->state().position.samples_drawn;
    for (const TensorInfo& parameter : (*reader)->parameters()) {
      std::vector<float> values(parameter.elements);
      EXPECT_OK((*reader)->read_master(parameter.name, 0, values));
      for (std::uint64_t i = 0; i < values.size(); ++i)
        if (values[i] != value_of(static_cast<std::int64_t>(version), i))
          ADD_FAILURE() << parameter.name << " of another version";
    }
    return version;
  }

 private:
  Status give(std::int64_t version, const JointSave::Append& append) const {
    for (int unit = 0; unit < model_.units(); ++unit) {
      const UnitLayout& layout = model_.layout(unit);
      const offload::UnitShard shard = offload::shard_of(layout.elements, link_.part);
      SLUICE_RETURN_IF_ERROR(
          for_each_parameter(layout, shard.first_element, shard.elements,
                             [&](const ParameterSpec& parameter, std::uint64_t first,
                                 std::uint64_t /*offset*/, std::uint64_t elements) {
                               std::vector<float> values(elements);
                               for (std::uint64_t i = 0; i < elements; ++i)
                                 values[i] = value_of(version, first + i);
                               return append(parameter.name, {first, {values, values, values}});
                             }));
    }
    return {};
  }

  const ModelLayout model_ = tiny_model();
  const RankLink link_;
  const std::string folder_;
  std::unique_ptr<aio::IoBackend> drive_ = aio::make_backend({}).value();
  std::uint64_t injected_ = 0;
};

aio::FaultPlan fault_at(std::uint64_t nth, FaultKind kind) {
  return aio::FaultPlan::of(
      {.fault = kind, .nth = nth, .persistent = false, .targets = aio::all_fault_targets()});
}

void fail_each_rank(SavingRank& rank, int own) {
  std::int64_t version = 1;
  ASSERT_OK(rank.save(version, {}));
  int failed = 0;
  for (int victim = 0; victim < kRanks; ++victim) {
    for (std::uint64_t nth = 1;; nth += 7) {
      const FaultKind kind = nth % 2 == 0 ? FaultKind::kEio : FaultKind::kEnospc;
      const Status done =
          rank.save(++version, victim == own ? fault_at(nth, kind) : aio::FaultPlan());
      const auto [same, harmed] = rank.compare(done);
      ASSERT_TRUE(same) << "rank " << own << ", fault " << nth << " at rank " << victim;
      if (!done.ok()) {
        ++failed;
        EXPECT_THAT(done.error().message(), HasSubstr("rank " + std::to_string(victim)));
      }
      if (own == 0) {
        const auto counts = static_cast<std::int64_t>(rank.saved_version());
        // After a failure that followed its manifest, the new one is valid as well.
        EXPECT_TRUE(counts == version || (!done.ok() && counts == version - 1)) << counts;
      }
      ASSERT_OK(rank.save(++version, {}));
      if (own == 0) {
        EXPECT_EQ(static_cast<std::int64_t>(rank.saved_version()), version);
      }
      if (!harmed || testing::Test::HasFailure()) break;
    }
  }
  EXPECT_GT(failed, kRanks);
}

TEST(JointSave, FailsOnAllRanksByTheNameOfTheOneThatFailed) {
  const aio::TemporaryFolder folder;
  log::set_sink([](log::Level, std::string_view) {});
  std::vector<RankPlace> places;
  for (int rank = 0; rank < kRanks; ++rank) places.push_back({.host = "here", .local_rank = rank});
  const auto met = in_threads(options_of(places), [&](int rank, Communicator& link) {
    SavingRank saving(rank, link, folder.file("checkpoints"));
    fail_each_rank(saving, rank);
  });
  log::set_sink({});
  for (const Status& status : met) EXPECT_TRUE(status.ok()) << message_of(status);
}

TEST(PiecesOfRanks, AreTheWholeModelOnce) {
  const ModelLayout model = tiny_model();
  const auto plan = plan_checkpoint(parameter_specs(model, DType::kF32), {});
  ASSERT_OK(plan);
  for (const int world : {1, 2, 3, 8, 64}) {
    const auto pieces = pieces_of_ranks(model, world);
    EXPECT_EQ(pieces.size(), static_cast<std::size_t>(world));
    EXPECT_OK(check_pieces(plan->parameters, pieces));
  }
}

}  // namespace
}  // namespace sluice::engine
