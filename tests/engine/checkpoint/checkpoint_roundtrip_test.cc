// What was appended is restored bit for bit, in any order and from any drive; and other promises of
// saving and loading without faults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "aio/sim_drive.h"
#include "aio/small_file.h"
#include "aio/virtual_loop.h"
#include "engine/weights/safetensors_reader.h"
#include "tests/engine/checkpoint/checkpoint_under_test.h"

namespace sluice::engine {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

class CheckpointOnDrives : public aio::EveryBackend {};
SLUICE_TEST_EVERY_BACKEND(CheckpointOnDrives);

TEST_P(CheckpointOnDrives, ComesBackBitForBit) {
  const aio::TemporaryFolder folder;
  const auto backend_in_use = backend();
  const auto queue = aio::make_queue_or_die(*backend_in_use, {.block_bytes = 8192});
  const std::string path = folder.file("checkpoints/step-000000012");
  for (const std::uint64_t range : {1ULL, 1024ULL, 1'000'000ULL}) {
    const Save save{.version = range, .replace = range != 1, .range = range};
    ASSERT_OK(save_checkpoint(*queue, path, save));
    const auto version = load_checkpoint(*queue, path, range + 3);
    ASSERT_OK(version);
    EXPECT_EQ(*version, range);
  }
}

TEST_P(CheckpointOnDrives, ComesBackThroughChunksOfTheUsualSize) {
  const aio::TemporaryFolder folder;
  const auto backend_in_use = backend();
  const auto queue = aio::make_queue_or_die(*backend_in_use, {});
  const std::vector<TensorSpec> parameters = {{"a", DType::kF32, {1'500'000}},
                                              {"b", DType::kF32, {2'000'003}}};
  const std::string path = folder.file("step-000000001");
  {
    const auto writer = CheckpointWriter::begin(*queue, path, parameters, {});
    ASSERT_OK(writer);
    ASSERT_OK(append_all(**writer, parameters, {.version = 5, .range = 65'536}));
    ASSERT_OK((*writer)->commit(test_state(5, 1)));
  }
  const auto reader = CheckpointReader::open(*queue, path, {});
  ASSERT_OK(reader);
  EXPECT_EQ((*reader)->manifest().files[0].chunks.size(), 4U);
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const State expected = state_of(5, p, elements_of(parameters[p]));
    State read = expected;
    for (auto& values : read) std::fill(values.begin(), values.end(), 1.0F);
    ASSERT_OK((*reader)->read(parameters[p].name, {0, {read[0], read[1], read[2]}}));
    for (std::size_t f = 0; f < read.size(); ++f) EXPECT_TRUE(same_bits(read[f], expected[f]));
  }
}

class Checkpoint : public testing::Test {
 protected:
  static constexpr const char* kPath = "/run/checkpoints/step-000000012";

  void SetUp() override { ASSERT_OK(drive_.files().make_directories("/run")); }
  void save(std::uint64_t version) {
    ASSERT_OK(save_checkpoint(*queue_, kPath, {.version = version}));
  }
  Result<std::unique_ptr<CheckpointWriter>> begin(bool replace = false) {
    CheckpointWriter::Options options = small_chunks();
    options.replace = replace;
    return CheckpointWriter::begin(*queue_, kPath, parameters_, options);
  }

  const std::vector<TensorSpec> parameters_ = test_parameters();
  aio::VirtualLoop loop_;
  aio::SimDrive drive_{loop_, {}};
  std::unique_ptr<aio::IoQueue> queue_ =
      aio::make_queue_or_die(drive_, {.block_bytes = 8192, .queue_depth = 8});
};

TEST_F(Checkpoint, IsReadInAnyOrder) {
  save(3);
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto reader = CheckpointReader::open(*queue_, kPath, {.chunks_ahead = 2});
  ASSERT_OK(reader);
  for (int i = 0; i < 400; ++i) {
    const std::size_t p = random() % parameters_.size();
    const std::uint64_t elements = elements_of(parameters_[p]);
    const std::uint64_t first = random() % (elements + 1);
    const std::uint64_t count = random() % (elements - first + 1);
    const State expected = state_of(3, p, elements);
    State read;
    for (auto& values : read) values.resize(count);
    ASSERT_OK((*reader)->read(parameters_[p].name, {first, {read[0], read[1], read[2]}}));
    for (std::size_t f = 0; f < read.size(); ++f)
      ASSERT_TRUE(same_bits(read[f], std::span(expected[f]).subspan(first, count)));
  }
}

// Files have two bytes per moment, which other programs can read; any range is restored as fp32.
TEST_F(Checkpoint, KeepsBf16MomentsInHalfTheBytes) {
  const auto moments_of = [](State state) {
    for (const std::size_t f : {1, 2})
      for (float& x : state[f]) {
        const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) & 0xFFFF0000;
        x = std::isnan(x) ? std::bit_cast<float>(0x7FC00000) : std::bit_cast<float>(bits);
      }
    return state;
  };
  const auto append = [&](CheckpointWriter& writer, std::size_t p, const State& state) {
    return writer.append(parameters_[p].name, slice_of(state, 0, state[0].size()));
  };
  CheckpointWriter::Options options = small_chunks();
  std::uint64_t elements = 0, wide_bytes = 0;
  for (const DType moments : {DType::kF32, DType::kBF16}) {
    options.moments = moments;
    options.replace = true;
    const auto writer = CheckpointWriter::begin(*queue_, kPath, parameters_, options);
    ASSERT_OK(writer);
    elements = 0;
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      elements += elements_of(parameters_[p]);
      ASSERT_OK(append(**writer, p, moments_of(state_of(6, p, elements_of(parameters_[p])))));
    }
    ASSERT_OK((*writer)->commit(test_state(6, 12)));
    if (moments == DType::kF32) wide_bytes = (*writer)->total_bytes();
    // Headers may differ by some padding.
    if (moments == DType::kBF16) {
      EXPECT_NEAR(static_cast<double>(wide_bytes - (*writer)->total_bytes()),
                  4.0 * static_cast<double>(elements), 200);
    }
  }
  const auto reader = CheckpointReader::open(*queue_, kPath, {.chunks_ahead = 2});
  ASSERT_OK(reader);
  EXPECT_EQ((*reader)->manifest().moments, DType::kBF16);
  std::mt19937_64 random(5);
  for (int i = 0; i < 400; ++i) {
    const std::size_t p = random() % parameters_.size();
    const std::uint64_t all = elements_of(parameters_[p]);
    const std::uint64_t first = random() % (all + 1);
    const std::uint64_t count = random() % (all - first + 1);
    const State expected = moments_of(state_of(6, p, all));
    State read;
    for (auto& values : read) values.resize(count);
    ASSERT_OK((*reader)->read(parameters_[p].name, {first, {read[0], read[1], read[2]}}));
    for (std::size_t f = 0; f < read.size(); ++f)
      ASSERT_TRUE(same_bits(read[f], std::span(expected[f]).subspan(first, count)));
  }
  const auto moment_file = SafetensorsReader::open(
      *queue_, std::string(kPath) + "/" +
                   shard_name(offload::kStateFields[1], 0, (*reader)->manifest().shards()));
  ASSERT_OK(moment_file);
  EXPECT_EQ((*moment_file)->tensors()[0].dtype, DType::kBF16);
}

TEST_F(Checkpoint, RefusesToLoseBitsOfAMoment) {
  CheckpointWriter::Options options = small_chunks();
  options.moments = DType::kBF16;
  const auto writer = CheckpointWriter::begin(*queue_, kPath, parameters_, options);
  ASSERT_OK(writer);
  const float third = 1.0F / 3;
  const float half = 0.5F;
  const Status refused = (*writer)->append(
      parameters_[0].name,
      {.fields = {std::span(&third, 1), std::span(&half, 1), std::span(&third, 1)}});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(), HasSubstr("not a bf16"));
  options.moments = DType::kF16;
  EXPECT_FALSE(CheckpointWriter::begin(*queue_, "/run/other", parameters_, options).ok());
}

TEST_F(Checkpoint, GivesWeightsWithoutTheMomentsFiles) {
  save(4);
  const auto names = drive_.files().list(kPath);
  ASSERT_OK(names);
  int removed = 0;
  for (const std::string& name : *names) {
    if (!name.starts_with("exp_avg")) continue;
    ASSERT_OK(drive_.files().remove(std::string(kPath) + "/" + name));
    ++removed;
  }
  EXPECT_GT(removed, 5);
  const auto whole = CheckpointReader::open(*queue_, kPath, {});
  ASSERT_FALSE(whole.ok());
  EXPECT_THAT(whole.error().message(), HasSubstr("exp_avg-00001-of-"));
  const auto reader = CheckpointReader::open(*queue_, kPath, {.moments = false});
  ASSERT_OK(reader);
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const State expected = state_of(4, p, elements_of(parameters_[p]));
    std::vector<float> values(expected[0].size());
    ASSERT_OK((*reader)->read_master(parameters_[p].name, 0, values));
    EXPECT_TRUE(same_bits(values, expected[0]));
  }
  EXPECT_FALSE((*reader)->read("one", {}).ok());
}

TEST_F(Checkpoint, IsAFolderOfWeightsForOtherReaders) {
  save(7);
  const auto reader = SafetensorsReader::open(*queue_, kPath);
  ASSERT_OK(reader);
  EXPECT_EQ((*reader)->tensors().size(), parameters_.size());
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const State expected = state_of(7, p, elements_of(parameters_[p]));
    std::vector<float> values(expected[0].size());
    ASSERT_OK((*reader)->read(parameters_[p].name, 0, values));
    EXPECT_TRUE(same_bits(values, expected[0]));
  }
}

TEST_F(Checkpoint, OfTheSameStateHasTheSameBytes) {
  save(8);
  ASSERT_OK(save_checkpoint(*queue_, "/run/other", {.version = 8, .range = 77}));
  const auto names = drive_.files().list(kPath);
  ASSERT_OK(names);
  EXPECT_EQ(names->size(), 3 * 4 + 2U);
  for (const std::string& name : *names) {
    EXPECT_EQ(drive_.content(std::string(kPath) + "/" + name, aio::SimDrive::View::kDurable),
              drive_.content("/run/other/" + name, aio::SimDrive::View::kDurable))
        << name;
  }
}

TEST_F(Checkpoint, IsNotOverwrittenUnlessAsked) {
  save(1);
  const auto again = begin();
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code(), ErrorCode::kAlreadyExists);
  ASSERT_OK(begin(/*replace=*/true));  // and given up: the old one stays
  const auto version = load_checkpoint(*queue_, kPath);
  ASSERT_OK(version);
  EXPECT_EQ(*version, 1U);
  EXPECT_EQ(drive_.files().list(kFolder)->size(), 1U);
}

TEST_F(Checkpoint, WithAForeignFileInItIsNotReplaced) {
  save(1);
  ASSERT_OK(aio::write_small_file(*queue_, std::string(kPath) + "/notes.txt", "mine"));
  const auto again = begin(/*replace=*/true);
  ASSERT_FALSE(again.ok());
  EXPECT_THAT(again.error().message(), HasSubstr("notes.txt"));
  ASSERT_OK(load_checkpoint(*queue_, kPath));
}

TEST_F(Checkpoint, LeavesNothingWhenItIsGivenUp) {
  {
    const auto writer = begin();
    ASSERT_OK(writer);
    const State state = state_of(1, 0, elements_of(parameters_[0]));
    ASSERT_OK((*writer)->append("wpe.weight", slice_of(state, 0, state[0].size())));
    const Status early = (*writer)->commit(test_state(1, 12));
    ASSERT_FALSE(early.ok());
    EXPECT_THAT(early.error().message(), ContainsRegex("\"wte.weight\" has 0.*9797"));
  }
  EXPECT_TRUE(drive_.files().list(kFolder)->empty());
  EXPECT_EQ(drive_.used_bytes(), 0U);
}

TEST_F(Checkpoint, SaysWhichValuesComeNext) {
  const State state = state_of(1, 0, elements_of(parameters_[0]));
  const auto first = [&](std::size_t count) { return slice_of(state, 0, count); };
  const auto refused = [&](const offload::ConstStateSlice& values) {
    const auto writer = begin();
    EXPECT_OK((*writer)->append("wpe.weight", first(100)));
    const Status status = (*writer)->append("wpe.weight", values);
    EXPECT_FALSE(status.ok());
    EXPECT_EQ((*writer)->append("wpe.weight", first(1)).error().message(),
              status.error().message());
    EXPECT_FALSE((*writer)->commit(test_state(1, 12)).ok());
    return status.error().message();
  };
  EXPECT_THAT(refused(first(10)),
              ContainsRegex("element 0 of \"wpe.weight\".*element 100 of \"wpe.weight\""));
  offload::ConstStateSlice wrong = first(10);
  wrong.first_element = 100;
  wrong.fields[1] = {};
  EXPECT_THAT(refused(wrong), HasSubstr("other lengths"));
  wrong = first(561);
  wrong.first_element = 100;
  EXPECT_THAT(refused(wrong), ContainsRegex("561.*661"));
}

TEST_F(Checkpoint, RefusesOptionsThatMakeNoSense) {
  for (const auto& options : {CheckpointWriter::Options{.chunk_bytes = 4095},
                              CheckpointWriter::Options{.chunk_bytes = 128 << 20},
                              CheckpointWriter::Options{.chunks_in_flight = 1}}) {
    const auto writer = CheckpointWriter::begin(*queue_, kPath, parameters_, options);
    ASSERT_FALSE(writer.ok());
    EXPECT_EQ(writer.error().code(), ErrorCode::kInvalidArgument);
  }
  EXPECT_FALSE(CheckpointWriter::begin(*queue_, kPath, {}, {}).ok());
  EXPECT_EQ(drive_.operations(), 1U);  // from SetUp's folder
}

TEST_F(Checkpoint, TellsARangeThatIsNotThere) {
  save(1);
  const auto reader = CheckpointReader::open(*queue_, kPath, {});
  ASSERT_OK(reader);
  std::vector<float> values(8);
  EXPECT_EQ((*reader)->read_master("two", 0, values).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ((*reader)->read_master("ln_f.bias", 0, values).error().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_OK((*reader)->read_master("ln_f.bias", 7, {}));
}

// On every size of drive that is too small, nothing is left and the older checkpoint stays.
TEST(CheckpointSpace, IsTakenBeforeAnythingIsWritten) {
  const std::uint64_t needed = [] {
    aio::VirtualLoop loop;
    aio::SimDrive drive(loop, {});
    const auto queue = aio::make_queue_or_die(drive, {});
    EXPECT_OK(save_checkpoint(*queue, "/run/checkpoints/step-000000012", {}));
    return drive.used_bytes();
  }();
  int refused = 0;
  for (std::uint64_t room = 64 * kKiB; room < needed; room += 4096) {
    SCOPED_TRACE("room for " + std::to_string(room) + " of " + std::to_string(needed));
    aio::VirtualLoop loop;
    aio::SimDrive drive(loop, {.capacity_bytes = needed + room});
    const auto queue = aio::make_queue_or_die(drive, {.block_bytes = 8192, .max_retries = 1});
    ASSERT_OK(
        save_checkpoint(*queue, "/run/checkpoints/step-000000006", {.version = 1, .step = 6}));
    const std::uint64_t used = drive.used_bytes();
    const Status saved = save_checkpoint(*queue, "/run/checkpoints/step-000000012", {.version = 2});
    ASSERT_FALSE(saved.ok());
    EXPECT_EQ(saved.error().code(), ErrorCode::kNoSpace) << saved.error().message();
    EXPECT_THAT(saved.error().message(), testing::StartsWith("no room for"));
    ++refused;
    EXPECT_EQ(drive.used_bytes(), used);
    EXPECT_EQ(drive.files().list(kFolder)->size(), 1U);
    const auto version = load_checkpoint(*queue, "/run/checkpoints/step-000000006");
    ASSERT_OK(version);
    EXPECT_EQ(*version, 1U);
  }
  EXPECT_GT(refused, 10);
}

TEST(CheckpointRun, DifferencesNameWhatDiffers) {
  const StoredRun stored = test_state(1, 1).run;
  EXPECT_TRUE(run_differences(stored, stored).empty());
  StoredRun now = stored;
  now.seed = 7;
  now.cpu_threads = 4;
  now.precision = "fp16";
  now.data_order = "another";
  now.dropout = 0;
  now.model = {{"layers", 3}, {"context", 128}};
  const auto differences = run_differences(stored, now);
  EXPECT_EQ(differences.size(), 8U);
  EXPECT_THAT(differences, testing::Contains(ContainsRegex("CPU threads is 4.*2")));
  EXPECT_THAT(differences, testing::Contains(ContainsRegex("layers is 3.*2")));
  EXPECT_THAT(differences, testing::Contains(ContainsRegex("context is 128.*not there")));
}

TEST(CheckpointRun, OfAnImportedOneTheShapeAloneCounts) {
  StoredRun stored = test_state(1, 1).run;
  StoredRun now = stored;
  now.seed = 7;
  now.dropout = 0;
  stored.precision = kImportedPrecision;
  stored.data_order.clear();
  EXPECT_TRUE(run_differences(stored, now).empty());
  now.model["layers"] = 3;
  EXPECT_THAT(run_differences(stored, now), testing::ElementsAre(ContainsRegex("layers is 3.*2")));
}

}  // namespace
}  // namespace sluice::engine
