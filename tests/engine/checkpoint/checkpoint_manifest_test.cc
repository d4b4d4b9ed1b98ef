// checkpoint.json: exactly what is written is accepted; damaged and hostile texts give a sentence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <stdexcept>

#include "aio/sim_drive.h"
#include "aio/small_file.h"
#include "aio/virtual_loop.h"
#include "swap/sealed_json.h"
#include "tests/engine/checkpoint/checkpoint_under_test.h"
#include "tests/swap/sealed_json_mutator.h"

namespace sluice::engine {
namespace {

using testing::HasSubstr;

CheckpointManifest test_manifest(std::size_t shards = 2) {
  CheckpointManifest manifest;
  manifest.state = test_state(9, 12);
  manifest.parameters = 8;
  manifest.elements = 123'456;
  manifest.chunk_bytes = 8192;
  aio::SplitMix mix(5);
  const auto add = [&](std::string name, std::uint64_t bytes) {
    StoredFile file{.name = std::move(name), .bytes = bytes};
    for (std::uint64_t i = 0; i < (bytes - 1) / 8192 + 1; ++i) file.chunks.push_back(mix.next());
    manifest.files.push_back(std::move(file));
  };
  for (const offload::StateField& field : offload::kStateFields) {
    for (std::size_t i = 0; i < shards; ++i) add(shard_name(field, i, shards), 10'000 + i);
  }
  add(std::string(kWeightIndexName), 8192);
  return manifest;
}

nlohmann::json content_of(const CheckpointManifest& manifest) {
  return nlohmann::json::parse(to_text(manifest))["content"];
}

TEST(CheckpointManifest, IsReadAsItWasWritten) {
  for (const std::size_t shards : {1, 2, 11}) {
    CheckpointManifest manifest = test_manifest(shards);
    manifest.state.validation_loss = -0.0;
    manifest.state.position.loss_scale.scale = std::numeric_limits<double>::denorm_min();
    const auto read = parse_checkpoint_manifest(to_text(manifest));
    ASSERT_OK(read);
    EXPECT_EQ(*read, manifest);
    EXPECT_TRUE(std::signbit(*read->state.validation_loss));
    EXPECT_EQ(read->shards(), shards);
  }
}

TEST(CheckpointManifest, DoesNotStoreALossThatIsNoNumber) {
  CheckpointManifest manifest = test_manifest();
  manifest.state.loss = std::numeric_limits<double>::quiet_NaN();
  manifest.state.validation_loss = std::numeric_limits<double>::infinity();
  const auto read = parse_checkpoint_manifest(to_text(manifest));
  ASSERT_OK(read);
  EXPECT_FALSE(read->state.loss);
  EXPECT_FALSE(read->state.validation_loss);
}

nlohmann::json features_of(const CheckpointManifest& manifest) {
  return content_of(manifest)["features"];
}

CheckpointManifest of_adapters() {
  CheckpointManifest manifest = test_manifest();
  manifest.state.run.family = "other";
  manifest.state.run.adapters = StoredAdapters{.rank = 8,
                                               .alpha = 16.5,
                                               .rank_stabilised = true,
                                               .targets = {"q_proj", "v_proj"},
                                               .base = "0123456789abcdef"};
  return manifest;
}

TEST(CheckpointManifest, NamesWhatItsReadersMustKnow) {
  CheckpointManifest manifest = test_manifest();
  EXPECT_EQ(content_of(manifest)["version"], 9);
  EXPECT_EQ(features_of(manifest), nlohmann::json::array());
  manifest.moments = DType::kBF16;
  EXPECT_EQ(features_of(manifest), nlohmann::json({"moments"}));
  manifest.state.client = "{\"epoch\": 1}";
  EXPECT_EQ(features_of(manifest), nlohmann::json({"client", "moments"}));
  EXPECT_EQ(*parse_checkpoint_manifest(to_text(manifest)), manifest);
  EXPECT_EQ(features_of(of_adapters()), nlohmann::json({"adapters"}));

  nlohmann::json content = content_of(manifest);
  content["features"].push_back("experts");
  const auto newer = parse_checkpoint_manifest(swap::to_sealed_text(content));
  ASSERT_FALSE(newer.ok());
  EXPECT_EQ(newer.error().code(), ErrorCode::kNewerVersion);
  EXPECT_THAT(newer.error().message(), HasSubstr("it needs \"experts\""));
  // A manifest must list every feature that it uses.
  for (const std::size_t left_out : {0U, 1U}) {
    content = content_of(manifest);
    content["features"].erase(left_out);
    EXPECT_FALSE(parse_checkpoint_manifest(swap::to_sealed_text(content)).ok());
  }
}

// Versions 1 to 8 had these keys only where they were needed.
TEST(CheckpointManifest, OfEarlierVersionsIsRead) {
  const auto earlier = [](nlohmann::json content, int version) {
    content["version"] = version;
    content.erase("features");
    return content;
  };
  nlohmann::json first = earlier(content_of(test_manifest()), 1);
  first["train"].erase("skipped_in_a_row");
  for (const char* const key : {"sums", "family", "family_numbers"}) first["run"].erase(key);
  const auto read = parse_checkpoint_manifest(swap::to_sealed_text(first));
  ASSERT_OK(read);
  EXPECT_EQ(*read, test_manifest());

  CheckpointManifest manifest = of_adapters();
  nlohmann::json fourth = earlier(content_of(manifest), 4);
  for (const char* const key : {"dropout", "base_bits", "base_sample"})
    fourth["run"]["adapters"].erase(key);
  EXPECT_EQ(*parse_checkpoint_manifest(swap::to_sealed_text(fourth)), manifest);

  manifest = test_manifest();
  manifest.moments = DType::kBF16;
  manifest.state.run.sums.lanes = 4;
  manifest.state.client = "x";
  const auto eighth =
      parse_checkpoint_manifest(swap::to_sealed_text(earlier(content_of(manifest), 8)));
  EXPECT_EQ(*eighth, manifest);

  EXPECT_FALSE(parse_checkpoint_manifest(swap::to_sealed_text(first) + " ").ok());
}

// Real files of programs for which these versions were the newest; only the configuration's text is
// left out.
TEST(CheckpointManifest, WrittenByEarlierProgramsIsRead) {
  const auto read = [](int version) {
    std::ifstream file(CHECKPOINT_TEST_DATA "/version" + std::to_string(version) + ".json");
    std::ostringstream text;
    text << file.rdbuf();
    auto manifest = parse_checkpoint_manifest(text.str());
    if (!manifest.ok()) throw std::runtime_error(manifest.error().message());
    EXPECT_EQ(manifest->state.position.global_step, 2) << version;
    EXPECT_EQ(*parse_checkpoint_manifest(to_text(*manifest)), *manifest) << version;
    return *std::move(manifest);
  };
  const CheckpointManifest third = read(3);
  EXPECT_EQ(third.state.run.family, "llama");
  EXPECT_EQ(third.state.run.family_numbers.at("rope_theta"), 10'000);
  EXPECT_EQ(third.state.run.sums, SumsOfRun{});
  const CheckpointManifest fifth = read(5);
  ASSERT_TRUE(fifth.state.run.adapters);
  EXPECT_EQ(fifth.state.run.adapters->dropout, 0.1);
  EXPECT_EQ(fifth.state.run.adapters->base_bits, 16);
  const CheckpointManifest sixth = read(6);
  EXPECT_EQ(sixth.state.run.family, "gpt2");
  EXPECT_EQ(sixth.moments, DType::kBF16);
  EXPECT_TRUE(sixth.state.run.sums.by_use);
  const CheckpointManifest seventh = read(7);
  EXPECT_EQ(seventh.world, 2);
  EXPECT_EQ(seventh.tensors.size(), 16U);
  EXPECT_EQ(seventh.state.run.sums.lanes, 2);
}

TEST(CheckpointManifest, KeepsSkippedSteps) {
  CheckpointManifest manifest = test_manifest();
  manifest.state.position.skipped_in_a_row = 3;
  EXPECT_EQ(*parse_checkpoint_manifest(to_text(manifest)), manifest);
  for (const int impossible : {-1, 5}) {  // 4 of its 12 steps were not applied
    nlohmann::json content = content_of(manifest);
    content["train"]["skipped_in_a_row"] = impossible;
    EXPECT_FALSE(parse_checkpoint_manifest(swap::to_sealed_text(content)).ok()) << impossible;
  }
}

TEST(CheckpointManifest, KeepsTheFamilysListsAndEarlierOnesHaveNone) {
  CheckpointManifest manifest = test_manifest();
  EXPECT_FALSE(content_of(manifest)["run"].contains("family_lists"));
  EXPECT_THAT(features_of(manifest), testing::Not(testing::Contains("lists")));
  const StoredRun without = manifest.state.run;
  manifest.state.run.family_lists = {{"factors", {1, 0.1, 1e-6}}};
  EXPECT_THAT(features_of(manifest), testing::Contains("lists"));
  EXPECT_EQ(*parse_checkpoint_manifest(to_text(manifest)), manifest);
  const StoredRun stored = manifest.state.run;
  StoredRun now = stored;
  EXPECT_THAT(run_differences(stored, now), testing::IsEmpty());
  now.family_lists["factors"][1] = 0.2;
  EXPECT_THAT(run_differences(stored, now),
              testing::ElementsAre(AllOf(HasSubstr("the model's factors is [1.0,0.2,1e-06]"),
                                         HasSubstr("[1.0,0.1,1e-06]"))));
  EXPECT_THAT(run_differences(stored, without), testing::ElementsAre(HasSubstr("not there")));
  for (const nlohmann::json& wrong : std::vector<nlohmann::json>{3, {1, 2}, {{"factors", {"a"}}}}) {
    nlohmann::json content = content_of(manifest);
    content["run"]["family_lists"] = wrong;
    EXPECT_FALSE(parse_checkpoint_manifest(swap::to_sealed_text(content)).ok()) << wrong;
  }
}

TEST(CheckpointManifest, KeepsTheFamilyAndItsNumbers) {
  CheckpointManifest manifest = test_manifest();
  manifest.state.run.family = "other";
  manifest.state.run.family_numbers = {{"theta", 0.1}};
  EXPECT_EQ(*parse_checkpoint_manifest(to_text(manifest)), manifest);
  // A shape of another family, or with another number, belongs to another run.
  const StoredRun stored = manifest.state.run;
  StoredRun now = stored;
  EXPECT_THAT(run_differences(stored, now), testing::IsEmpty());
  now.family_numbers["theta"] = 0.2;
  EXPECT_THAT(run_differences(stored, now),
              testing::ElementsAre(HasSubstr("the model's theta is")));
  now.family = "gpt2";
  EXPECT_THAT(run_differences(stored, now), testing::Contains(HasSubstr("the model's family is")));
}

TEST(CheckpointManifest, KeepsTheEvaluationsOfARunThatMayStopEarly) {
  CheckpointManifest manifest = test_manifest();
  const auto lowest_step = manifest.state.position.global_step - 1;
  for (const std::optional<double>& lowest : {std::optional<double>(), std::optional(2.5)}) {
    manifest.state.evaluations = StoredEvaluations{
        .lowest_loss = lowest, .lowest_step = lowest_step, .without_improvement = 3};
    EXPECT_EQ(features_of(manifest), nlohmann::json({"evaluations"}));
    const auto read = parse_checkpoint_manifest(to_text(manifest));
    ASSERT_OK(read);
    EXPECT_EQ(*read, manifest);
  }
  manifest.state.evaluations->lowest_step = manifest.state.position.global_step + 1;
  EXPECT_THAT(parse_checkpoint_manifest(to_text(manifest)).error().message(),
              HasSubstr("evaluations are impossible"));
}

TEST(CheckpointManifest, KeepsTheOrderOfSums) {
  CheckpointManifest manifest = test_manifest();
  manifest.state.run.sums = {.by_use = true, .lanes = 4, .rounds = 3};
  EXPECT_EQ(*parse_checkpoint_manifest(to_text(manifest)), manifest);
  nlohmann::json content = content_of(manifest);
  content["run"]["sums"]["lanes"] = 0;
  const auto laneless = parse_checkpoint_manifest(swap::to_sealed_text(content));
  ASSERT_FALSE(laneless.ok());
  EXPECT_THAT(laneless.error().message(), HasSubstr("0 lanes and 3 rounds"));
  // A run may continue from a checkpoint of another order: only its last bits may differ.
  EXPECT_THAT(run_differences(test_manifest().state.run, manifest.state.run), testing::IsEmpty());
}

TEST(CheckpointManifest, RefusesMomentsOfOtherTypesAndTextsThatAreNone) {
  CheckpointManifest manifest = test_manifest();
  manifest.moments = DType::kBF16;
  manifest.state.client = "x";
  for (const char* const wrong : {"F16", "F32", "bf16", ""}) {
    nlohmann::json content = content_of(manifest);
    content["moments"] = wrong;
    EXPECT_FALSE(parse_checkpoint_manifest(swap::to_sealed_text(content)).ok()) << wrong;
  }
  for (const auto& wrong : {nlohmann::json(""), nlohmann::json(1), nlohmann::json()}) {
    nlohmann::json content = content_of(manifest);
    content["client"] = wrong;
    EXPECT_FALSE(parse_checkpoint_manifest(swap::to_sealed_text(content)).ok()) << wrong;
  }
}

TEST(CheckpointManifest, KeepsAdapters) {
  const CheckpointManifest manifest = of_adapters();
  EXPECT_EQ(*parse_checkpoint_manifest(to_text(manifest)), manifest);
  CheckpointManifest other = manifest;
  other.state.run.adapters->dropout = 0.1;
  other.state.run.adapters->base_sample = "fedcba9876543210";
  EXPECT_EQ(*parse_checkpoint_manifest(to_text(other)), other);
  EXPECT_THAT(run_differences(other.state.run, manifest.state.run),
              testing::ElementsAre(HasSubstr("recipe.lora.dropout is 0")));
  other = manifest;
  other.state.run.adapters->base_bits = 8;
  EXPECT_EQ(*parse_checkpoint_manifest(to_text(other)), other);
  EXPECT_THAT(run_differences(other.state.run, manifest.state.run),
              testing::ElementsAre(HasSubstr("recipe.lora.base_bits is 16")));
  EXPECT_FALSE(content_of(other)["run"]["adapters"].contains("double_quant"));
  CheckpointManifest nf4 = manifest;
  nf4.state.run.adapters->base_bits = 4;
  for (const bool twice : {false, true}) {
    nf4.state.run.adapters->double_quant = twice;
    EXPECT_EQ(*parse_checkpoint_manifest(to_text(nf4)), nf4);
    EXPECT_THAT(content_of(nf4)["features"], testing::Contains("nf4"));
  }
  EXPECT_THAT(run_differences(nf4.state.run, other.state.run),
              testing::ElementsAre(HasSubstr("recipe.lora.base_bits is 8"),
                                   HasSubstr("recipe.lora.double_quant is false")));
  for (const char* const part : {"rank", "alpha", "rank_stabilised", "targets", "base"}) {
    nlohmann::json content = content_of(manifest);
    content["run"]["adapters"].erase(part);
    EXPECT_FALSE(parse_checkpoint_manifest(swap::to_sealed_text(content)).ok()) << part;
    content = content_of(manifest);
    content["run"]["adapters"][part] = {{"no", "such"}};
    EXPECT_FALSE(parse_checkpoint_manifest(swap::to_sealed_text(content)).ok()) << part;
  }
}

// Each has a valid checksum: what the seal cannot detect, the parser must.
TEST(CheckpointManifest, RefusesWhatCannotBe) {
  const auto refusal = [](const std::function<void(nlohmann::json&)>& change,
                          ErrorCode code = ErrorCode::kCorrupt) {
    nlohmann::json content = content_of(test_manifest());
    change(content);
    const auto read = parse_checkpoint_manifest(swap::to_sealed_text(content));
    EXPECT_FALSE(read.ok());
    if (read.ok()) return std::string();
    EXPECT_EQ(read.error().code(), code);
    return read.error().message();
  };
  using nlohmann::json;
  constexpr ErrorCode kNewer = ErrorCode::kNewerVersion;
  EXPECT_THAT(refusal([](json& c) { c["format"] = "else"; }), HasSubstr("not the manifest"));
  EXPECT_THAT(refusal([](json& c) { c["version"] = 99; }, kNewer),
              HasSubstr("that wrote it, 0.1.0"));
  EXPECT_THAT(refusal(
                  [](json& c) {
                    c = {{"format", c["format"]}, {"version", 1LL << 40}};
                  },
                  kNewer),
              HasSubstr("version 1099511627776"));
  EXPECT_THAT(refusal([](json& c) { c["version"] = 0; }), HasSubstr("version 0"));
  EXPECT_THAT(refusal([](json& c) { c["world_size"] = 4; }), HasSubstr("4 ranks"));
  EXPECT_THAT(refusal([](json& c) { c["world_size"] = 0; }), HasSubstr("ranks"));
  EXPECT_THAT(refusal([](json& c) { c["chunk_bytes"] = 0; }), HasSubstr("chunks"));
  EXPECT_THAT(refusal([](json& c) { c["chunk_bytes"] = 1 << 30; }), HasSubstr("chunks"));
  EXPECT_THAT(refusal([](json& c) { c["train"]["applied_step"] = 13; }), HasSubstr("step"));
  EXPECT_THAT(refusal([](json& c) { c["train"]["loss_scale"]["scale"] = 0.0; }),
              HasSubstr("scale"));
  EXPECT_THAT(refusal([](json& c) { c["files"] = json::array(); }), HasSubstr("0 files"));
  EXPECT_THAT(refusal([](json& c) { c["files"].erase(0); }), HasSubstr("6 files"));
  EXPECT_THAT(refusal([](json& c) { std::swap(c["files"][0], c["files"][1]); }),
              HasSubstr("master-00001-of-00002"));
  EXPECT_THAT(refusal([](json& c) { c["files"][0]["name"] = "../../etc/passwd"; }),
              HasSubstr("master-00001-of-00002"));
  EXPECT_THAT(refusal([](json& c) { c["files"][0]["bytes"] = 0; }), HasSubstr("0 bytes"));
  EXPECT_THAT(refusal([](json& c) { c["files"][0]["bytes"] = 1ULL << 63; }), HasSubstr("bytes"));
  EXPECT_THAT(refusal([](json& c) { c["files"][0]["bytes"] = 100; }), HasSubstr("1 chunks"));
  EXPECT_THAT(refusal([](json& c) { c["files"][0]["xxh3_64"] = std::string(32, 'A'); }),
              HasSubstr("not in the form"));
  EXPECT_THAT(refusal([](json& c) { c["more"] = 1; }), HasSubstr("not in the form"));
  EXPECT_THAT(refusal([](json& c) { c["run"]["seed"] = "x"; }), HasSubstr("not valid"));
  EXPECT_THAT(refusal([](json& c) { c.erase("configuration"); }), HasSubstr("configuration"));
}

TEST(CheckpointManifest, RefusesASpaceMore) {
  std::string text = to_text(test_manifest());
  ASSERT_OK(parse_checkpoint_manifest(text));
  EXPECT_FALSE(parse_checkpoint_manifest(text + " ").ok());
  EXPECT_FALSE(parse_checkpoint_manifest(text.insert(1, " ")).ok());
}

TEST(CheckpointNames, OfFilesAndFoldersAreReadBack) {
  for (std::size_t field = 0; field < offload::kStateFields.size(); ++field) {
    for (const std::size_t shards : {1, 7, 10'000}) {
      const std::string name = shard_name(offload::kStateFields[field], shards - 1, shards);
      EXPECT_EQ(parse_shard_name(name), (ShardName{field, shards - 1, shards})) << name;
      EXPECT_TRUE(is_checkpoint_file(name));
    }
  }
  for (const char* name :
       {"master-00000-of-00002.safetensors", "master-00003-of-00002.safetensors",
        "master-1-of-2.safetensors", "master-00001-of-00002.bin", "exp-00001-of-00002.safetensors",
        "master-0000x-of-00002.safetensors", "master-00001-of-00002.safetensors.new", "notes.txt",
        "checkpoint.json.old", "", "master-+0001-of-00002.safetensors",
        "master--0001-of-00002.safetensors"})
    EXPECT_FALSE(is_checkpoint_file(name)) << name;
  for (const char* name : {"checkpoint.json", "checkpoint.json.new", "checkpoint.json.removed",
                           "model.safetensors.index.json"})
    EXPECT_TRUE(is_checkpoint_file(name)) << name;

  EXPECT_EQ(checkpoint_name(12), "step-000000012");
  for (const std::int64_t step : {0LL, 12LL, 999'999'999LL, 1'000'000'000LL, 123'456'789'012LL})
    EXPECT_EQ(parse_folder_name(checkpoint_name(step))->step, step);
  EXPECT_TRUE(parse_folder_name("step-000000012.new")->replacement);
  for (const char* name :
       {"step-12", "step-0000000012", "step-00000001x", "Step-000000012", "step-",
        "step-000000012.old", "step--00000012", "best", ".new", "step-99999999999999999999"})
    EXPECT_FALSE(parse_folder_name(name)) << name;
}

TEST(CheckpointNames, ShowTheRunThatACheckpointLiesIn) {
  for (const auto& [checkpoint, run] : std::map<std::string, std::string>{
           {"a/checkpoints/step-000000012", "a"},
           {"/a/b/checkpoints/copy", "/a/b"},
           {"/checkpoints/step-000000012", "/"},
           {"checkpoints/step-000000012", "."},
           {"./checkpoints/step-000000012", "."},
           {"../checkpoints/step-000000012", ".."},
           {"a/checkpoints/set-aside-at-step-000000002-2/checkpoints/step-000000012", "a"},
           {"checkpoints/set-aside-at-step-000000002/checkpoints/step-000000012", "."},
           {"a/set-aside-at-step-000000002/checkpoints/x", "a/set-aside-at-step-000000002"},
           {"a/other/step-000000012", ""},
           {"step-000000012", ""}})
    EXPECT_EQ(run_directory_of(checkpoint), run) << checkpoint;
}

// Two parameters: the first in files, the second in two records with a gap between its pieces.
CheckpointManifest in_store() {
  CheckpointManifest manifest = test_manifest();
  manifest.files.pop_back();  // the index
  manifest.parameters = 2;
  manifest.elements = 200;
  manifest.tensors = {{"a", DType::kF32, {100}}, {"b", DType::kF32, {10, 10}}};
  manifest.pieces = {{{.parameter = 0, .elements = 60}},
                     {{.parameter = 0, .first_element = 60, .elements = 40}}};
  manifest.records = StoredRecords{
      .store = {.run = "a",
                .paths = {"/nvme0", "/nvme1"},
                .store_id = 0xFEDCBA9876543210U,
                .records = {{4, 0}, {3, 1}, {9, 0}, {1, 1}}},
      .parts = {{.state = 0,
                 .parameters = 2,
                 .elements = 128,
                 .pieces = {{{.parameter = 1, .elements = 64}, 0},
                            {{.parameter = 1, .first_element = 64, .elements = 30}, 96}}},
                {.state = 1,
                 .parameters = 3,
                 .elements = 16,
                 .pieces = {{{.parameter = 1, .first_element = 94, .elements = 6}, 2}}}}};
  return manifest;
}

// ---- mutated texts ------------------------------------------------------------------------------

void expect_sentence(const Error& error) {
  EXPECT_TRUE(error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kNewerVersion)
      << error.message();
  EXPECT_THAT(error.message(), HasSubstr("/run/step/checkpoint.json: "));
  EXPECT_LT(error.message().size(), 2000U);
  EXPECT_EQ(error.message().find('\n'), std::string::npos) << error.message();
}

// Goes through the file, like a load. Half of the texts get a valid checksum, so that their content
// is parsed.
void fuzz(const CheckpointManifest& manifest_of, int inputs, std::uint64_t seed) {
  std::cout << "seed " << seed << "\n";
  swap::SealedJsonMutator mutator(seed);
  aio::VirtualLoop loop;
  aio::SimDrive drive(loop, {});
  ASSERT_OK(drive.files().make_directories("/run/step"));
  const auto queue = aio::make_queue_or_die(drive, {});
  const std::string whole = to_text(manifest_of);
  ASSERT_OK(parse_checkpoint_manifest(whole));
  int refused = 0;
  int unchanged = 0;
  for (int i = 0; i < inputs && !testing::Test::HasFailure(); ++i) {
    const bool sealed = i % 2 == 1;
    const std::string text =
        sealed ? mutator.sealed(content_of(manifest_of)) : mutator.damaged(whole);
    ASSERT_OK(aio::write_small_file(*queue, "/run/step/checkpoint.json", text));
    const auto manifest = read_checkpoint_manifest(*queue, "/run/step");
    if (manifest.ok()) {
      ++unchanged;  // or has other valid content
      if (swap::parse_sealed_text(text)->at("version") == 9) {
        EXPECT_EQ(to_text(*manifest), text);
      } else {  // in the form of an earlier version
        EXPECT_EQ(*parse_checkpoint_manifest(to_text(*manifest)), *manifest);
      }
      EXPECT_TRUE(sealed || text == whole);
      continue;
    }
    ++refused;
    expect_sentence(manifest.error());
    const auto reader = CheckpointReader::open(*queue, "/run/step", {});
    ASSERT_FALSE(reader.ok());
    EXPECT_EQ(reader.error().message(), manifest.error().message());
  }
  std::cout << inputs << " mutated manifests: " << refused << " refused, " << unchanged
            << " that say something that could be\n";
  EXPECT_GT(refused, inputs / 2);
}

TEST(CheckpointManifestFuzz, GivesASentenceForMutatedTexts) {
  fuzz(test_manifest(), 1000, 17);
  fuzz(in_store(), 1000, 18);
}
TEST(LongCheckpointManifestFuzz, GivesASentenceForMutatedTexts) {
  fuzz(test_manifest(), 10'000, std::random_device()());
  fuzz(in_store(), 10'000, std::random_device()());
}

}  // namespace
}  // namespace sluice::engine
