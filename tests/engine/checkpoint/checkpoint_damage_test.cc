// A checkpoint with damaged bytes - one bit, one chunk, a file - is detected by loading and by
// verifying it, and neither changes anything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>
#include <random>
#include <utility>

#include "aio/direct_file.h"
#include "aio/sim_drive.h"
#include "aio/small_file.h"
#include "aio/virtual_loop.h"
#include "engine/checkpoint/verify_checkpoint.h"
#include "tests/engine/checkpoint/checkpoint_under_test.h"
#include "tests/sanitized.h"

namespace sluice::engine {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kSlowness = sweep_stride(23);

constexpr const char* kPath = "/run/checkpoints/step-000000012";
constexpr std::uint64_t kChunkBytes = 4096;

// A model so small that every bit can be tried: two shards, several chunks.
std::vector<TensorSpec> small_parameters() {
  return {{"wte.weight", DType::kF32, {40, 33}},
          {"h.0.bias", DType::kF32, {700}},
          {"ln_f.bias", DType::kF32, {3}}};
}

class DamagedCheckpoint : public testing::Test {
 protected:
  void SetUp() override { save(kPath, 1); }

  void save(const std::string& path, std::uint64_t version) {
    CheckpointWriter::Options options = small_chunks();
    options.max_shard_bytes = 6000;
    const auto parameters = small_parameters();
    const auto writer = CheckpointWriter::begin(*queue_, path, parameters, options);
    ASSERT_OK(writer);
    ASSERT_OK(append_all(**writer, parameters, {.version = version}));
    ASSERT_OK((*writer)->commit(test_state(version, 12)));
    if (path == kPath) manifest_ = *read_checkpoint_manifest(*queue_, kPath);
  }

  // Loads everything through a new reader.
  Status load() {
    SLUICE_ASSIGN_OR_RETURN(const auto reader, CheckpointReader::open(*queue_, kPath, {}));
    const auto parameters = small_parameters();
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const State expected = state_of(1, p, elements_of(parameters[p]));
      State read;
      for (auto& values : read) values.resize(expected[0].size());
      SLUICE_RETURN_IF_ERROR(reader->read(parameters[p].name, {0, {read[0], read[1], read[2]}}));
      for (std::size_t f = 0; f < read.size(); ++f)
        EXPECT_TRUE(same_bits(read[f], expected[f])) << "a wrong value was handed out";
    }
    return {};
  }

  std::string path_in(const std::string& name) const { return std::string(kPath) + "/" + name; }
  std::string content(const std::string& name) {
    return aio::read_small_file(*queue_, path_in(name), 1 << 20).value();
  }
  void put(const std::string& name, const std::string& text) {
    ASSERT_OK(aio::write_small_file(*queue_, path_in(name), text));
  }
  void flip(aio::DirectFile& file, std::uint64_t bit) {
    std::byte byte{};
    ASSERT_OK(queue_->read(file, bit / 8, {&byte, 1}));
    byte ^= static_cast<std::byte>(1U << (bit % 8));
    ASSERT_OK(queue_->write(file, bit / 8, {&byte, 1}));
    ASSERT_OK(file.finish());  // removes the padding
  }

  // Both report that this file has changed; loading reports it first.
  void expect_found(const std::string& name, std::optional<std::uint64_t> byte = std::nullopt) {
    const auto report = verify_checkpoint(*queue_, kPath, {});
    ASSERT_OK(report);
    ASSERT_EQ(report->damaged.size(), 1U) << name;
    const DamagedRange& damage = report->damaged[0];
    EXPECT_EQ(damage.file, name);
    EXPECT_THAT(damage.problem, HasSubstr(path_in(name)));
    if (byte && name != kManifestName) {
      EXPECT_EQ(damage.begin_bytes, *byte / kChunkBytes * kChunkBytes);
      EXPECT_GT(damage.end_bytes, *byte);
      EXPECT_LE(damage.end_bytes, damage.begin_bytes + kChunkBytes);
    }
    const Status loaded = load();
    if (name == kWeightIndexName) {  // for other programs: loading does not need it
      ASSERT_OK(loaded);
      return;
    }
    ASSERT_FALSE(loaded.ok()) << name << " was loaded";
    EXPECT_EQ(loaded.error().code(), ErrorCode::kCorrupt);
    EXPECT_THAT(loaded.error().message(), HasSubstr(path_in(name)));
    if (byte && name != kManifestName) {
      EXPECT_THAT(loaded.error().message(),
                  HasSubstr("bytes " + std::to_string(damage.begin_bytes) + " to "));
    }
  }

  // Flips each of these bits, one at a time.
  void flip_and_expect_found(const std::string& name, const std::vector<std::uint64_t>& bits) {
    const auto file = aio::DirectFile::open(
        *queue_, path_in(name), {.open = {.access = aio::OpenOptions::Access::kReadWrite}});
    ASSERT_OK(file);
    for (const std::uint64_t bit : bits) {
      SCOPED_TRACE("bit " + std::to_string(bit) + " of " + name);
      flip(**file, bit);
      expect_found(name, bit / 8);
      flip(**file, bit);
      if (HasFailure()) return;
    }
    EXPECT_OK(load());
    flipped_ += bits.size();
  }

  static std::vector<std::uint64_t> every(std::uint64_t bytes, std::uint64_t stride) {
    std::vector<std::uint64_t> bits;
    for (std::uint64_t bit = 0; bit < 8 * bytes; bit += stride) bits.push_back(bit);
    return bits;
  }
  std::uint64_t header_bytes(const std::string& name) {
    const std::string file = content(name);
    std::uint64_t length = 0;
    for (std::size_t i = 8; i-- > 0;) length = length << 8 | static_cast<unsigned char>(file[i]);
    return 8 + length;
  }
  void flip_manifest_and_headers(std::uint64_t stride) {
    flip_and_expect_found(std::string(kManifestName),
                          every(content(std::string(kManifestName)).size(), stride));
    for (const StoredFile& file : manifest_.files) {
      if (file.name == kWeightIndexName) continue;
      flip_and_expect_found(file.name, every(header_bytes(file.name), stride));
    }
    std::cout << flipped_ << " bits of the manifest and of headers flipped, each found\n";
  }
  void flip_elsewhere(int count, std::uint64_t seed) {
    std::cout << "seed " << seed << "\n";
    std::mt19937_64 random(seed);
    for (int i = 0; i < count && !HasFailure(); ++i) {
      const StoredFile& file = manifest_.files[random() % manifest_.files.size()];
      const std::uint64_t header = file.name == kWeightIndexName ? 0 : header_bytes(file.name);
      flip_and_expect_found(file.name, {8 * header + random() % (8 * (file.bytes - header))});
    }
    std::cout << flipped_ << " bits elsewhere flipped, each found\n";
  }

  aio::VirtualLoop loop_;
  aio::SimDrive drive_{loop_, {}};
  std::unique_ptr<aio::IoQueue> queue_ =
      aio::make_queue_or_die(drive_, {.block_bytes = 8192, .queue_depth = 4});
  CheckpointManifest manifest_;
  std::uint64_t flipped_ = 0;
};

TEST_F(DamagedCheckpoint, IsNotWhatVerifySaysOfAWholeOne) {
  std::uint64_t last = 0;
  const auto report = verify_checkpoint(
      *queue_, kPath, {.on_progress = [&](std::uint64_t done, std::uint64_t total) {
        EXPECT_GT(done, std::exchange(last, done));
        EXPECT_EQ(total, manifest_.total_bytes());
        return true;
      }});
  ASSERT_OK(report);
  EXPECT_TRUE(report->damaged.empty());
  EXPECT_EQ(report->step, 12);
  EXPECT_EQ(report->files, 7U);
  EXPECT_EQ(report->bytes, manifest_.total_bytes());
  EXPECT_EQ(last, report->bytes);
  EXPECT_GT(report->chunks, 9U);
  const auto stopped = verify_checkpoint(
      *queue_, kPath, {.on_progress = [](std::uint64_t, std::uint64_t) { return false; }});
  EXPECT_EQ(stopped.error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(verify_checkpoint(*queue_, "/run/none", {}).error().code(), ErrorCode::kNotFound);
}

TEST_F(DamagedCheckpoint, IsFoundWhereAnyBitOfManifestOrHeaderFlips) {
  flip_manifest_and_headers(kSlowness);
}
TEST_F(DamagedCheckpoint, IsFoundWhereABitFlipsElsewhere) {
  flip_elsewhere(static_cast<int>(1000 / kSlowness), std::random_device()());
}

TEST_F(DamagedCheckpoint, IsFoundByTwoChunksThatChangedPlaces) {
  for (const auto& [a, b] :
       {std::pair("master-00001-of-00002.safetensors", "exp_avg-00001-of-00002.safetensors"),
        std::pair("exp_avg-00001-of-00002.safetensors", "exp_avg_sq-00001-of-00002.safetensors")}) {
    const std::string of_a = content(a);
    const std::string of_b = content(b);
    put(a, of_b.substr(0, kChunkBytes) + of_a.substr(kChunkBytes));
    expect_found(a, 0);
    put(a, of_a.substr(0, kChunkBytes) + of_b.substr(kChunkBytes));
    expect_found(a, kChunkBytes);
    put(a, of_a);
  }
  EXPECT_OK(load());
}

// If the bytes are equal, their place differs.
TEST_F(DamagedCheckpoint, IsFoundByThePlaceOfEqualChunks) {
  const std::vector<std::byte> zeros(kChunkBytes);
  const std::uint64_t here = checkpoint_hash(zeros, {.file = 1, .offset_bytes = 4096});
  EXPECT_NE(here, checkpoint_hash(zeros, {.file = 1, .offset_bytes = 8192}));
  EXPECT_NE(here, checkpoint_hash(zeros, {.file = 2, .offset_bytes = 4096}));
}

TEST_F(DamagedCheckpoint, IsFoundByFilesCutShortGrownOrMissing) {
  for (const StoredFile& file : manifest_.files) {
    const std::string whole = content(file.name);
    for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{5}, file.bytes - 1}) {
      put(file.name, whole.substr(0, bytes));
      expect_found(file.name);
    }
    put(file.name, whole + "x");
    expect_found(file.name);
    ASSERT_OK(drive_.files().remove(path_in(file.name)));
    expect_found(file.name);
    put(file.name, whole);
    if (HasFailure()) FAIL() << file.name;
  }
  EXPECT_OK(load());
}

TEST_F(DamagedCheckpoint, IsFoundByTheFileOfAnotherCheckpoint) {
  const std::string other = "/run/other";
  save(other, 2);
  for (const StoredFile& file : manifest_.files) {
    if (file.name == kWeightIndexName) continue;  // the same in both
    const std::string whole = content(file.name);
    const auto theirs = aio::read_small_file(*queue_, other + "/" + file.name, 1 << 20);
    ASSERT_OK(theirs);
    put(file.name, *theirs);
    const auto report = verify_checkpoint(*queue_, kPath, {});
    ASSERT_OK(report);
    EXPECT_EQ(report->damaged.size(), file.chunks.size()) << file.name;
    const Status loaded = load();
    ASSERT_FALSE(loaded.ok());
    EXPECT_THAT(loaded.error().message(), HasSubstr(path_in(file.name)));
    put(file.name, whole);
  }
  const std::string manifest = content(std::string(kManifestName));
  put(std::string(kManifestName),
      aio::read_small_file(*queue_, other + "/checkpoint.json", 1 << 20).value());
  EXPECT_FALSE(load().ok());
  EXPECT_GT(verify_checkpoint(*queue_, kPath, {})->damaged.size(), 5U);
  put(std::string(kManifestName), manifest);
  EXPECT_OK(load());
}

TEST_F(DamagedCheckpoint, ListsEveryDamagedRangeAtOnce) {
  const auto flip_in = [&](const std::string& name, std::uint64_t byte) {
    const auto file = aio::DirectFile::open(
        *queue_, path_in(name), {.open = {.access = aio::OpenOptions::Access::kReadWrite}});
    flip(**file, 8 * byte);
  };
  flip_in("master-00001-of-00002.safetensors", 100);
  flip_in("master-00001-of-00002.safetensors", 5000);
  flip_in("exp_avg_sq-00002-of-00002.safetensors", 0);
  ASSERT_OK(drive_.files().remove(path_in("exp_avg-00002-of-00002.safetensors")));
  const auto report = verify_checkpoint(*queue_, kPath, {.chunks_ahead = 2});
  ASSERT_OK(report);
  ASSERT_EQ(report->damaged.size(), 4U);
  EXPECT_EQ(report->damaged[1].begin_bytes, 4096U);
  EXPECT_EQ(report->damaged[2].file, "exp_avg-00002-of-00002.safetensors");
  EXPECT_EQ(report->damaged[2].end_bytes, 0U);
  EXPECT_EQ(report->damaged[3].file, "exp_avg_sq-00002-of-00002.safetensors");
}

// Valid files with a made-up manifest: it is compared with the files.
TEST_F(DamagedCheckpoint, IsFoundByAManifestThatSpeaksOfAnotherModel) {
  CheckpointManifest manifest = manifest_;
  manifest.elements += 1;
  put(std::string(kManifestName), to_text(manifest));
  expect_found(std::string(kManifestName));
}

}  // namespace
}  // namespace sluice::engine
