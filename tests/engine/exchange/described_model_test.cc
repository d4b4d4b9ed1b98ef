#include "engine/exchange/described_model.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <span>
#include <vector>

#include "engine/exchange/base_fingerprint.h"
#include "engine/exchange/model_weights.h"
#include "engine/exchange/stored_shape.h"
#include "engine/weights/parameter_names.h"
#include "engine/weights/safetensors_writer.h"
#include "tests/engine/exchange/folder_under_test.h"

namespace sluice::engine {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

const ModelShape kShape{
    .layers = 2, .hidden = 32, .heads = 4, .context_tokens = 16, .vocab = 61, .ffn_hidden = 80};

json hugging_face(const json& changes = json::object()) {
  json config = {{"model_type", "gpt2"}, {"n_layer", 2},     {"n_embd", 32}, {"n_head", 4},
                 {"n_positions", 16},    {"vocab_size", 61}, {"n_inner", 80}};
  config.update(changes);
  return config;
}

class DescribedModel : public FolderUnderTest {
 protected:
  std::string check(const std::string& weights) const {
    const Status checked = check_described_model(queue(), path(weights), kShape);
    if (checked.ok()) return "accepted";
    EXPECT_EQ(checked.error().code(), ErrorCode::kInvalidArgument) << checked.error().message();
    return checked.error().message();
  }
};

TEST_F(DescribedModel, IsNotLookedForWhereNothingSaysIt) {
  std::filesystem::create_directory(path("bare"));
  EXPECT_EQ(check("bare"), "accepted");
  EXPECT_EQ(check("bare/model.safetensors"), "accepted");
  put("other/config.json", json{{"colour", "red"}});
  EXPECT_EQ(check("other/model.safetensors"), "accepted");
  EXPECT_THAT(check("other"), HasSubstr("model_type"));  // refused as a model's folder
}

TEST_F(DescribedModel, IsToBeDownloadedWhereItsFolderIsNotThereAlone) {
  std::filesystem::create_directory(path("bare"));
  EXPECT_EQ(absent_model(path("bare")), "");
  EXPECT_EQ(absent_model(path("bare/Qwen3-8B")),
            path("bare/Qwen3-8B") +
                " does not exist: hf download Qwen/Qwen3-8B "
                "--local-dir " +
                path("bare/Qwen3-8B") +
                " downloads the model, and so does its name on the hub, Qwen/Qwen3-8B. Or name the "
                "folder that contains it");
  EXPECT_EQ(absent_model(path("bare/model.safetensors")), "");
  EXPECT_EQ(absent_model(path("bare/model.safetensors.index.json")), "");
  EXPECT_EQ(absent_model(path(std::string(300, 'x'))), "");  // cannot be looked up
}

TEST_F(DescribedModel, HasANameOnTheHubWhereItIsNoPath) {
  for (const char* const name : {"Qwen/Qwen3-0.6B", "me/a_b.c-D@main", "0x/a@refs/pr/1"})
    EXPECT_TRUE(is_hub_name(name)) << name;
  for (const char* const path : {"",
                                 "/",
                                 "gpt2",
                                 "/Qwen/a",
                                 "Qwen/",
                                 "/a",
                                 "Qwen/Qwen3-8B/",
                                 "a/b/c",
                                 "./a",
                                 "../a",
                                 "a/..",
                                 "a b/c",
                                 "Qwen/a@",
                                 "models/Qwen3-8B",
                                 "runs/a",
                                 "me/model.safetensors",
                                 "me/tokenizer.json",
                                 "me/'; rm x",
                                 "-a/b",
                                 "a/-b"})
    EXPECT_FALSE(is_hub_name(path)) << path;
}

TEST_F(DescribedModel, IsRefusedByFolderFileAndIndexWhereSluiceDoesNotComputeIt) {
  for (const auto& [key, value] :
       std::map<std::string, json>{{"activation_function", "relu"},
                                   {"layer_norm_epsilon", 1e-6},
                                   {"tie_word_embeddings", false},
                                   {"scale_attn_by_inverse_layer_idx", true},
                                   {"scale_attn_weights", false},
                                   {"model_type", "bert"}}) {
    put("theirs/config.json", hugging_face({{key, value}}));
    for (const char* weights :
         {"theirs", "theirs/model.safetensors", "theirs/model.safetensors.index.json"})
      EXPECT_THAT(check(weights), AllOf(HasSubstr("theirs/config.json"), HasSubstr(key))) << key;
  }
}

TEST_F(DescribedModel, IsRefusedAsImportDoesWhereItsFileDoesNotSayWhichModelItIs) {
  for (const auto& [key, value] : std::map<std::string, json>{{"n_layer", 2},
                                                              {"n_embd", 32},
                                                              {"activation_function", "relu"},
                                                              {"layer_norm_epsilon", 1e-6},
                                                              {"architectures", {"Other"}}}) {
    put("theirs/config.json", json{{key, value}});
    for (const char* weights :
         {"theirs", "theirs/model.safetensors", "theirs/model.safetensors.index.json"})
      EXPECT_THAT(check(weights), AllOf(HasSubstr("theirs/config.json"), HasSubstr("model_type")))
          << key;
  }
}

TEST_F(DescribedModel, HasTheConfigurationsShapeToItsHeads) {
  put("theirs/config.json", hugging_face());
  EXPECT_EQ(check("theirs"), "accepted");
  put("theirs/config.json", hugging_face({{"n_head", 2}}));
  EXPECT_THAT(check("theirs/model.safetensors"),
              ContainsRegex("n_head is 2.*4.*\\(model.heads\\)"));
  put("theirs/config.json", hugging_face({{"n_inner", nullptr}}));
  EXPECT_THAT(check("theirs"), HasSubstr("n_inner is 128"));
}

TEST_F(DescribedModel, MayBeARunsOwnFile) {
  put("run/config.json", json{{"model", {{"layers", 2}, {"heads", 4}, {"preset", "custom"}}}});
  EXPECT_EQ(check("run/model.safetensors"), "accepted");
  put("run/config.json", json{{"model", {{"layers", 2}, {"heads", 8}}}});
  EXPECT_THAT(check("run/model.safetensors"), HasSubstr("model.heads is 8 there"));
}

TEST_F(DescribedModel, IsAnErrorWhereTheFileIsDamaged) {
  put("theirs/config.json", std::string("{\"model_type\": \"gp"));
  const Status checked = check_described_model(queue(), path("theirs"), kShape);
  ASSERT_FALSE(checked.ok());
  EXPECT_EQ(checked.error().code(), ErrorCode::kCorrupt);
}

TEST_F(DescribedModel, IsOneWhereItsNumbersAreTheConfigurations) {
  ModelShape shape = kShape;
  shape.numbers = {{"activation", 1}, {"tied_head", 0}};
  const auto check = [&](const json& changes) {
    put("theirs/config.json", hugging_face(changes));
    const Status checked = check_described_model(queue(), path("theirs"), shape);
    return checked.ok() ? std::string("accepted") : checked.error().message();
  };
  EXPECT_EQ(check({{"activation_function", "gelu"}, {"tie_word_embeddings", false}}), "accepted");
  EXPECT_THAT(check({{"activation_function", "silu"}}),
              AllOf(ContainsRegex("activation_function is silu.*gelu.*\\(model.activation\\)"),
                    ContainsRegex("tie_word_embeddings is true.*false.*\\(model.tied_head\\)")));
  put("run/config.json", json{{"model", {{"layers", 2}, {"activation", "gelu"}}}});
  const Status of_run = check_described_model(queue(), path("run"), shape);
  ASSERT_FALSE(of_run.ok());
  EXPECT_THAT(of_run.error().message(), HasSubstr("model.tied_head is true there"));
}

// Models that always existed store nothing new, so that their checkpoints stay unchanged; others
// store what distinguishes them.
TEST(StoredShape, HasWhatSetsAGpt2Apart) {
  StoredRun run;
  store_shape(complete(kShape), run);
  EXPECT_TRUE(run.family_numbers.empty());
  EXPECT_EQ(stored_shape(run)->numbers, complete(kShape).numbers);
  EXPECT_EQ(complete(run).family_numbers, complete(kShape).numbers);
  ModelShape other = kShape;
  other.numbers = {{"activation", 2}, {"tied_head", 0}};
  store_shape(complete(other), run);
  EXPECT_EQ(run.family_numbers, other.numbers);
  EXPECT_EQ(stored_shape(run)->numbers, complete(other).numbers);
  run.family_numbers["activation"] = 9;  // from a later program
  const auto later = stored_shape(run);
  ASSERT_FALSE(later.ok());
  EXPECT_THAT(later.error().message(), HasSubstr("activation is 9"));
}

// Lists of numbers, as longrope has them: a file of transformers, a run's own, and a checkpoint.
TEST_F(DescribedModel, IsAnotherWhereOneNumberOfAListDiffers) {
  const json config = {{"model_type", "phi3"},
                       {"hidden_size", 32},
                       {"num_attention_heads", 4},
                       {"original_max_position_embeddings", 16},
                       {"rope_scaling",
                        {{"type", "longrope"},
                         {"short_factor", {1.0, 1.0, 1.25, 2.0}},
                         {"long_factor", {1.0, 3.0, 4.0, 7.5}}}}};
  const ModelShape shape = read_hugging_face_config(config.dump())->shape;
  ModelShape other = shape;
  other.lists["rope_long_factor"][3] = 7.25;
  const auto differences = [&](const char* folder, const ModelShape& wanted) {
    const Status checked = check_described_model(queue(), path(folder), wanted);
    return checked.ok() ? "accepted" : checked.error().message();
  };
  put("theirs/config.json", config);
  put("run/config.json", json{{"model",
                               {{"preset", "phi3-mini"},
                                {"hidden", 32},
                                {"heads", 4},
                                {"rope_long_factor", shape.lists.at("rope_long_factor")}}}});
  EXPECT_EQ(differences("theirs", shape), "accepted");
  for (const char* const folder : {"theirs", "run"})
    EXPECT_THAT(differences(folder, other),
                HasSubstr("rope_long_factor is [1.0,3.0,4.0,7.5] there, and [1.0,3.0,4.0,7.25]"));
  StoredRun run;
  store_shape(shape, run);
  EXPECT_EQ(stored_shape(run)->lists, shape.lists);
  run.family_lists["rope_long_factor"].pop_back();
  EXPECT_THAT(stored_shape(run).error().message(), HasSubstr("rope_long_factor has 3 numbers"));
}

// 40,000 rows are more than the part of a head that is read before a command's work.
TEST_F(DescribedModel, HasItsHeadReadWholeWhereItsWeightsAreUsedAlone) {
  const ModelShape shape{
      .layers = 1, .hidden = 32, .heads = 4, .context_tokens = 8, .vocab = 40'000};
  std::vector<TensorSpec> tensors = parameter_specs(shape, DType::kBF16);
  tensors.push_back({.name = "lm_head.weight", .dtype = DType::kBF16, .shape = {40'000, 32}});
  SafetensorsWriter::Options options;
  options.path = path("model.safetensors");
  auto writer = SafetensorsWriter::create(queue(), options, tensors);
  ASSERT_TRUE(writer.ok()) << writer.error().message();
  for (const TensorSpec& tensor : tensors) {
    std::vector<float> zeros(1);
    for (const std::uint64_t length : tensor.shape) zeros.resize(zeros.size() * length);
    if (tensor.name == "lm_head.weight") zeros.back() = 1;
    ASSERT_TRUE((*writer)->append(tensor.name, zeros).ok());
  }
  ASSERT_TRUE((*writer)->finish().ok());
  EXPECT_TRUE(open_model_weights(queue(), options.path, shape, HeadCheck::kBeginning).ok());
  const auto refused = open_model_weights(queue(), options.path, shape, HeadCheck::kWhole);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(), HasSubstr("token 39999"));
}

// The base's values matter, not only its shape.
class BaseOfAdapters : public FolderUnderTest {
 protected:
  // Element i of parameter p is a function of both, except for one element.
  void write(std::size_t changed, std::uint64_t element) const {
    const auto specs = parameter_specs(kShape, DType::kF32);
    SafetensorsWriter::Options options;
    options.path = path("base.safetensors");
    auto writer = SafetensorsWriter::create(queue(), options, specs);
    ASSERT_TRUE(writer.ok()) << writer.error().message();
    for (std::size_t p = 0; p < specs.size(); ++p) {
      std::vector<float> values = values_of(p);
      if (p == changed) values[element] += 0.5F;
      ASSERT_TRUE((*writer)->append(specs[p].name, values).ok());
    }
    ASSERT_TRUE((*writer)->finish().ok());
  }
  static std::vector<float> values_of(std::size_t parameter) {
    const std::vector<std::uint64_t> shape = parameter_specs(kShape, DType::kF32)[parameter].shape;
    std::uint64_t elements = 1;
    for (const std::uint64_t size : shape) elements *= size;
    std::vector<float> values(elements);
    for (std::uint64_t i = 0; i < elements; ++i)
      values[i] = static_cast<float>((i * 31 + parameter) % 1009);
    return values;
  }
  static BaseFingerprint fingerprint(std::uint64_t at_once) {
    BaseFingerprint fingerprint;
    for (std::size_t p = 0; p < parameter_specs(kShape, DType::kF32).size(); ++p) {
      const std::vector<float> values = values_of(p);
      for (std::uint64_t first = 0; first < values.size(); first += at_once)
        fingerprint.add(values.size(), first,
                        std::span(values).subspan(
                            first, std::min<std::uint64_t>(at_once, values.size() - first)));
    }
    return fingerprint;
  }
  std::string check(const StoredRun& stored) const {
    auto weights = open_model_weights(queue(), path("base.safetensors"), kShape, HeadCheck::kWhole);
    if (!weights.ok()) return weights.error().message();
    const Status checked = check_base_sample(*weights, stored, {.path = "X", .advice = "ADVICE"});
    return checked.ok() ? "accepted" : checked.error().message();
  }
};

TEST_F(BaseOfAdapters, IsTheSameHoweverItsValuesCome) {
  const BaseFingerprint whole = fingerprint(1 << 20);
  EXPECT_EQ(whole.all().size(), 16U);
  EXPECT_NE(whole.all(), whole.sample());
  for (const std::uint64_t at_once : {1, 255, 256, 257, 1000}) {
    const BaseFingerprint pieces = fingerprint(at_once);
    EXPECT_EQ(pieces.all(), whole.all());
    EXPECT_EQ(pieces.sample(), whole.sample()) << at_once;
  }
}

TEST_F(BaseOfAdapters, IsKnownByASampleOfEveryParameter) {
  StoredRun stored;
  stored.adapters = StoredAdapters{.rank = 1, .base_sample = fingerprint(1 << 20).sample()};
  write(1000, 0);
  EXPECT_EQ(check(stored), "accepted");
  for (std::size_t p = 0; p < parameter_specs(kShape, DType::kF32).size(); ++p) {
    const std::uint64_t elements = values_of(p).size();
    for (const std::uint64_t element : {std::uint64_t{0}, elements / 3, elements - 1}) {
      write(p, element);
      EXPECT_THAT(check(stored), HasSubstr("those of X: ADVICE")) << p;
    }
  }
  // A change between the sampled ranges is in the fingerprint of all values only. An older
  // checkpoint has no sample, so any base is accepted.
  std::size_t large = 0;
  while (values_of(large).size() < 3000) ++large;
  write(large, 300);
  EXPECT_EQ(check(stored), "accepted");
  write(0, 0);
  stored.adapters->base_sample.clear();
  EXPECT_EQ(check(stored), "accepted");
  stored.adapters.reset();
  EXPECT_EQ(check(stored), "accepted");
}

}  // namespace
}  // namespace sluice::engine
