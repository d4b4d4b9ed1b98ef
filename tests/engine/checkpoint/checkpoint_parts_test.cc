// A checkpoint that several writers write at once. It is restored bit for bit, whatever its readers
// request and in any order. A part that is missing, damaged or of another checkpoint is detected
// before it is used. The checkpoint counts only when every part is there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <nlohmann/json.hpp>
#include <random>

#include "aio/direct_file.h"
#include "aio/sim_drive.h"
#include "aio/small_file.h"
#include "aio/virtual_loop.h"
#include "engine/checkpoint/remove_checkpoint.h"
#include "engine/checkpoint/verify_checkpoint.h"
#include "engine/weights/safetensors_reader.h"
#include "swap/sealed_json.h"
#include "tests/engine/checkpoint/checkpoint_under_test.h"

namespace sluice::engine {
namespace {

using testing::HasSubstr;

constexpr int kWriters = 3;

class CheckpointParts : public testing::Test {
 protected:
  static constexpr const char* kPath = "/run/checkpoints/step-000000012";
  static constexpr const char* kOther = "/run/other/step-000000012";

  void SetUp() override { ASSERT_OK(drive_.files().make_directories("/run")); }

  void save(int writers, const std::string& path = kPath, std::uint64_t version = 1) {
    ASSERT_OK(
        save_checkpoint(*queue_, path, {.version = version, .replace = true, .writers = writers}));
  }
  CheckpointManifest manifest() { return read_checkpoint_manifest(*queue_, kPath).value(); }
  std::string path_in(const std::string& name) const { return std::string(kPath) + "/" + name; }
  std::string text_of(const std::string& path) {
    return aio::read_small_file(*queue_, path, 1 << 20).value();
  }
  void replace(const std::string& name, const std::string& text) {
    ASSERT_OK(aio::write_small_file(*queue_, path_in(name), text));
  }
  // Loading and verifying both name the file.
  void expect_found(const std::string& name, const std::string& problem) {
    const auto loaded = load_checkpoint(*queue_, kPath);
    ASSERT_FALSE(loaded.ok());
    EXPECT_EQ(loaded.error().code(), ErrorCode::kCorrupt);
    EXPECT_THAT(loaded.error().message(), HasSubstr(path_in(name)));
    EXPECT_THAT(loaded.error().message(), HasSubstr(problem));
    const auto report = verify_checkpoint(*queue_, kPath, {});
    ASSERT_OK(report);
    ASSERT_FALSE(report->damaged.empty());
    for (const DamagedRange& damage : report->damaged) {
      EXPECT_EQ(damage.file, name);
      EXPECT_THAT(damage.problem, HasSubstr(problem));
    }
  }
  std::shared_ptr<const CheckpointPlan> plan(int writers) {
    const auto pieces = pieces_of_writers(parameters_, writers);
    return std::make_shared<const CheckpointPlan>(
        plan_checkpoint(parameters_, pieces, small_chunks().shards()).value());
  }

  const std::vector<TensorSpec> parameters_ = test_parameters();
  aio::VirtualLoop loop_;
  aio::SimDrive drive_{loop_, {}};
  std::unique_ptr<aio::IoQueue> queue_ =
      aio::make_queue_or_die(drive_, {.block_bytes = 8192, .queue_depth = 8});
};

TEST_F(CheckpointParts, ComeBackToReadersOfAnyNumber) {
  for (const int writers : {2, 3, 7}) {
    save(writers);
    EXPECT_EQ(manifest().world, writers);
    EXPECT_FALSE(*drive_.files().exists(path_in(std::string(kWeightIndexName))));
    for (const std::uint64_t range : {std::uint64_t{1 << 20}, std::uint64_t{700}}) {
      const auto version = load_checkpoint(*queue_, kPath, range);
      ASSERT_OK(version);
      EXPECT_EQ(*version, 1U);
    }
    const auto reader = CheckpointReader::open(*queue_, kPath, {});
    ASSERT_OK(reader);
    for (const int readers : {1, 2, 5}) {
      for (const StatePieces& pieces : pieces_of_writers(parameters_, readers)) {
        for (const StatePiece& piece : pieces) {
          const State all = state_of(1, piece.parameter, elements_of(parameters_[piece.parameter]));
          State read;
          for (auto& values : read) values.resize(piece.elements);
          ASSERT_OK((*reader)->read(parameters_[piece.parameter].name,
                                    {piece.first_element, {read[0], read[1], read[2]}}));
          for (std::size_t f = 0; f < read.size(); ++f)
            EXPECT_TRUE(
                same_bits(read[f], std::span(all[f]).subspan(piece.first_element, piece.elements)));
        }
      }
    }
    const auto report = verify_checkpoint(*queue_, kPath, {});
    ASSERT_OK(report);
    EXPECT_TRUE(report->damaged.empty());
    EXPECT_EQ(report->bytes, manifest().total_bytes());
  }
}

TEST_F(CheckpointParts, AreReadInAnyOrder) {
  save(kWriters);
  const auto reader = CheckpointReader::open(*queue_, kPath, {.moments = false, .chunks_ahead = 2});
  ASSERT_OK(reader);
  std::mt19937_64 random(20260725);
  for (int i = 0; i < 300; ++i) {
    const std::size_t p = random() % parameters_.size();
    const std::uint64_t elements = elements_of(parameters_[p]);
    const std::uint64_t first = elements == 0 ? 0 : random() % elements;
    std::vector<float> values(elements == 0 ? 0 : random() % (elements - first) + 1);
    ASSERT_OK((*reader)->read_master(parameters_[p].name, first, values));
    for (std::uint64_t e = 0; e < values.size(); ++e) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(values[e]),
                std::bit_cast<std::uint32_t>(state_at(1, 0, p, first + e)));
    }
  }
}

TEST_F(CheckpointParts, AreSafetensorsFilesThatSayWhatTheyHold) {
  save(kWriters);
  const CheckpointManifest stored = manifest();
  std::uint64_t elements = 0;
  for (std::size_t shard = 0; shard < stored.shards(); ++shard) {
    const auto file = SafetensorsReader::open(*queue_, path_in(stored.files[shard].name));
    ASSERT_OK(file);
    for (const StatePiece& piece : stored.pieces[shard]) {
      const TensorSpec& parameter = stored.tensors[piece.parameter];
      const bool is_whole = piece.elements == elements_of(parameter);
      const std::string name = is_whole
                                   ? parameter.name
                                   : parameter.name + "[" + std::to_string(piece.first_element) +
                                         ":" + std::to_string(piece.end()) + "]";
      const TensorInfo* const tensor = (*file)->find(name);
      ASSERT_NE(tensor, nullptr) << name;
      EXPECT_EQ(tensor->shape, is_whole ? parameter.shape : std::vector{piece.elements});
      elements += piece.elements;
    }
  }
  EXPECT_EQ(elements, stored.elements);
}

// The parts of other ranks are not examined, not even for existence.
TEST_F(CheckpointParts, AreReadOnlyWhereTheyAreAskedFor) {
  save(kWriters);
  const auto pieces = pieces_of_writers(parameters_, kWriters);
  const auto own = plan(kWriters);
  for (std::size_t shard = own->first_shards[1]; shard < own->first_shards[2]; ++shard) {
    for (const offload::StateField& field : offload::kStateFields)
      ASSERT_OK(drive_.files().remove(path_in(shard_name(field, shard, own->shards.size()))));
  }
  const auto reader = CheckpointReader::open(*queue_, kPath, {});
  ASSERT_OK(reader);
  for (const std::size_t writer : {std::size_t{0}, std::size_t{1}, std::size_t{2}}) {
    for (const StatePiece& piece : pieces[writer]) {
      std::vector<float> values(piece.elements);
      const Status read =
          (*reader)->read_master(parameters_[piece.parameter].name, piece.first_element, values);
      ASSERT_EQ(read.ok(), writer != 1);
      if (read.ok()) {
        EXPECT_EQ(
            std::bit_cast<std::uint32_t>(values.front()),
            std::bit_cast<std::uint32_t>(state_at(1, 0, piece.parameter, piece.first_element)));
      } else {
        EXPECT_THAT(read.error().message(), HasSubstr("is missing"));
      }
    }
  }
}

TEST_F(CheckpointParts, AreMissed) {
  save(kWriters);
  const std::string name = manifest().files[1].name;
  ASSERT_OK(drive_.files().remove(path_in(name)));
  expect_found(name, "is missing");
  const auto entry = look_at_checkpoint(*queue_, kPath);
  ASSERT_TRUE(entry);
  EXPECT_FALSE(entry->complete());
  EXPECT_FALSE(entry->leftover) << "nobody removes what may still come";
  EXPECT_THAT(entry->status.error().message(), HasSubstr(name));
}

TEST_F(CheckpointParts, OfAnotherCheckpointAreRefused) {
  save(kWriters);
  save(kWriters, kOther, 2);  // the same step of another run
  const CheckpointManifest stored = manifest();
  for (const StoredFile& file : stored.files) {
    const std::string own = text_of(path_in(file.name));
    replace(file.name, text_of(std::string(kOther) + "/" + file.name));
    expect_found(file.name, "another checkpoint");
    replace(file.name, own);
    if (HasFailure()) return;
  }
  ASSERT_OK(load_checkpoint(*queue_, kPath));
}

TEST_F(CheckpointParts, AreNoOtherRanksParts) {
  save(kWriters);
  const CheckpointManifest stored = manifest();
  for (std::size_t i = 0; i < stored.files.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (stored.files[i].bytes != stored.files[j].bytes) continue;
      const std::string own = text_of(path_in(stored.files[i].name));
      replace(stored.files[i].name, text_of(path_in(stored.files[j].name)));
      expect_found(stored.files[i].name, "do not match their checksum");
      replace(stored.files[i].name, own);
    }
  }
  ASSERT_OK(load_checkpoint(*queue_, kPath));
}

TEST_F(CheckpointParts, AreFoundDamagedWhereABitFlips) {
  save(kWriters);
  for (const StoredFile& file : manifest().files) {
    const std::string own = text_of(path_in(file.name));
    for (std::size_t bit = 5; bit < 8 * own.size(); bit += 25'013) {
      std::string other = own;
      other[bit / 8] = static_cast<char>(other[bit / 8] ^ (1 << (bit % 8)));
      replace(file.name, other);
      expect_found(file.name, "do not match their checksum");
      if (HasFailure()) return;
    }
    replace(file.name, own);
  }
  ASSERT_OK(load_checkpoint(*queue_, kPath));
}

TEST_F(CheckpointParts, CountOnlyWhenAllOfThemAreThere) {
  save(1, kPath, 8);  // the previous one
  const auto pieces = pieces_of_writers(parameters_, 2);
  CheckpointWriter::Options options = small_chunks();
  options.replace = true;
  const auto two = plan(2);
  {
    const auto writer = CheckpointWriter::begin_together(*queue_, kPath, two, options);
    ASSERT_OK(writer);
    const auto part = PartWriter::begin(*queue_, kPath, two, 1, options);
    ASSERT_OK(part);
    EXPECT_THAT((*part)->finish().error().message(), HasSubstr("of its "));
    ASSERT_OK(append_pieces(**part, parameters_, pieces[1], {}));
    EXPECT_OK((*part)->append("one", {}));  // appends nothing
    ASSERT_OK((*part)->finish());
    EXPECT_THAT((*writer)->commit(test_state(1, 12)).error().message(), HasSubstr("of its "));
    ASSERT_OK(append_pieces(**writer, parameters_, pieces[0], {}));
    EXPECT_THAT((*writer)->commit(test_state(1, 12)).error().message(), HasSubstr("writer 1"));
    auto checksums = (*part)->checksums();
    EXPECT_FALSE((*writer)->add_part(2, checksums).ok());
    EXPECT_FALSE((*writer)->add_part(1, std::span(checksums).subspan(1)).ok());
    ASSERT_OK((*writer)->add_part(1, checksums));
    EXPECT_FALSE((*writer)->add_part(1, checksums).ok()) << "once";
    // Simulates a part written where this host does not see it.
    const std::size_t shard = two->first_shards[1];
    ASSERT_OK(
        drive_.files().remove(std::string(kPath) + ".new/" +
                              shard_name(offload::kStateFields[1], shard, two->shards.size())));
    const Status committed = (*writer)->commit(test_state(1, 12));
    ASSERT_FALSE(committed.ok());
    EXPECT_THAT(committed.error().message(), HasSubstr("must share the folder"));
  }
  EXPECT_EQ(*load_checkpoint(*queue_, kPath), 8U);
  EXPECT_FALSE(*drive_.files().exists(std::string(kPath) + ".new"));
}

TEST_F(CheckpointParts, AreAppendedInTheirOrder) {
  const auto pieces = pieces_of_writers(parameters_, 2);
  const auto two = plan(2);
  const auto writer = CheckpointWriter::begin_together(*queue_, kPath, two, small_chunks());
  ASSERT_OK(writer);
  const auto part = PartWriter::begin(*queue_, kPath, two, 1, small_chunks());
  ASSERT_OK(part);
  const Status others = append_pieces(**part, parameters_, pieces[0], {});
  ASSERT_FALSE(others.ok());
  EXPECT_EQ(others.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(others.error().message(),
              HasSubstr("but element " + std::to_string(pieces[1][0].first_element)));
}

TEST_F(CheckpointParts, NeedTheFolderThatTheFirstWriterMakes) {
  const auto part = PartWriter::begin(*queue_, kPath, plan(2), 1, small_chunks());
  ASSERT_FALSE(part.ok());
  EXPECT_THAT(part.error().message(), HasSubstr("must share the folder"));
}

// Every rank is killed in the middle; then comes the next save.
TEST_F(CheckpointParts, ThatWereCutShortAreRemovedByTheNextSave) {
  save(1, kPath, 8);
  const std::string begun = std::string(kPath) + ".new";
  ASSERT_OK(drive_.files().make_directories(begun));
  for (const char* name :
       {"master-00002-of-00007.safetensors", "exp_avg-00006-of-00007.safetensors"})
    ASSERT_OK(aio::write_small_file(*queue_, begun + "/" + name, "begun"));
  EXPECT_EQ(*load_checkpoint(*queue_, kPath), 8U);
  save(kWriters);
  EXPECT_EQ(*load_checkpoint(*queue_, kPath), 1U);
  EXPECT_FALSE(*drive_.files().exists(begun));
  ASSERT_OK(remove_checkpoint(*queue_, kPath));
  EXPECT_FALSE(*drive_.files().exists(kPath));
}

TEST_F(CheckpointParts, HaveBf16Moments) {
  const std::vector<TensorSpec> parameters = {{"a", DType::kF32, {300, 7}},
                                              {"b", DType::kF32, {9}}};
  CheckpointWriter::Options options = small_chunks();
  options.moments = DType::kBF16;
  const auto pieces = pieces_of_writers(parameters, 2);
  const auto two = std::make_shared<const CheckpointPlan>(
      plan_checkpoint(parameters, pieces, options.shards()).value());
  const auto writer = CheckpointWriter::begin_together(*queue_, kPath, two, options);
  ASSERT_OK(writer);
  const auto part = PartWriter::begin(*queue_, kPath, two, 1, options);
  ASSERT_OK(part);
  std::vector<float> values(2100);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 256);
  const auto give = [&](auto& to, const StatePieces& of) {
    for (const StatePiece& piece : of) {
      const auto range = std::span(values).subspan(piece.first_element, piece.elements);
      ASSERT_OK(to.append(parameters[piece.parameter].name,
                          {piece.first_element, {range, range, range}}));
    }
  };
  give(**writer, pieces[0]);
  give(**part, pieces[1]);
  ASSERT_OK((*part)->finish());
  ASSERT_OK((*writer)->add_part(1, (*part)->checksums()));
  ASSERT_OK((*writer)->commit(test_state(1, 12)));
  const auto reader = CheckpointReader::open(*queue_, kPath, {});
  ASSERT_OK(reader);
  State read;
  for (auto& of_field : read) of_field.resize(1500);
  ASSERT_OK((*reader)->read("a", {500, {read[0], read[1], read[2]}}));
  for (const auto& of_field : read)
    EXPECT_TRUE(same_bits(of_field, std::span(values).subspan(500, 1500)));
}

// Each has a valid checksum.
TEST_F(CheckpointParts, AreWhatAReaderMustKnow) {
  save(kWriters);
  const std::string text = text_of(path_in(std::string(kManifestName)));
  const nlohmann::json stored = *swap::parse_sealed_text(text);
  EXPECT_EQ(stored.at("features"), nlohmann::json({"parts"}));
  EXPECT_EQ(stored.at("world_size"), kWriters);
  const auto refusal = [&](const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json content = stored;
    change(content);
    const auto read = parse_checkpoint_manifest(swap::to_sealed_text(content));
    EXPECT_FALSE(read.ok());
    if (read.ok()) return std::string();
    EXPECT_EQ(read.error().code(), ErrorCode::kCorrupt);
    return read.error().message();
  };
  using nlohmann::json;
  EXPECT_THAT(refusal([](json& c) { c["features"].clear(); }), HasSubstr("not in the form"));
  EXPECT_THAT(refusal([](json& c) { c["world_size"] = 1; }), HasSubstr("1 rank"));
  EXPECT_THAT(refusal([](json& c) { c["world_size"] = 1LL << 40; }), HasSubstr("impossible"));
  EXPECT_THAT(refusal([](json& c) { c.erase("pieces"); }), HasSubstr("does not say"));
  EXPECT_THAT(refusal([](json& c) { c["pieces"].erase(0); }), HasSubstr("shards"));
  EXPECT_THAT(refusal([](json& c) { c["pieces"][0].erase(0); }), HasSubstr("wpe.weight"));
  EXPECT_THAT(refusal([](json& c) { c["pieces"][0][0][2] = 1; }), HasSubstr("wpe.weight"));
  EXPECT_THAT(refusal([](json& c) { c["pieces"][0][0][0] = 99; }), HasSubstr("order"));
  EXPECT_THAT(refusal([](json& c) { c["pieces"].back().back()[0] = 99; }), HasSubstr("ln_f.bias"));
  EXPECT_THAT(refusal([](json& c) { c["pieces"].back().push_back({99, 0, 5}); }), HasSubstr("99"));
  EXPECT_THAT(refusal([](json& c) { c["pieces"][0][0] = {0, 0}; }), HasSubstr("three numbers"));
  EXPECT_THAT(refusal([](json& c) { c["pieces"][0][0][1] = -1; }), HasSubstr(""));
  EXPECT_THAT(refusal([](json& c) { c["tensors"][0]["shape"][0] = 1ULL << 62; }), HasSubstr("wpe"));
  EXPECT_THAT(refusal([](json& c) { c["tensors"][1]["name"] = "wpe.weight"; }),
              HasSubstr("wpe.weight"));
  EXPECT_THAT(refusal([](json& c) { c["parameters"] = 7; }), HasSubstr("7 parameters"));
  EXPECT_THAT(refusal([](json& c) { c["files"].erase(0); }), HasSubstr("files"));
}

}  // namespace
}  // namespace sluice::engine
