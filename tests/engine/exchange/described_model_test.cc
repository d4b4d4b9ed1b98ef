#include "engine/exchange/described_model.h"

#include <gmock/gmock.h>

#include <vector>

#include "engine/exchange/model_weights.h"
#include "engine/exchange/stored_shape.h"
#include "engine/weights/parameter_names.h"
#include "engine/weights/safetensors_writer.h"
#include "tests/engine/exchange/folder_under_test.h"

namespace sluice::engine {
namespace {

using nlohmann::json;
using testing::AllOf;
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
  EXPECT_THAT(check("other"), HasSubstr("model_type"));  // named as a model's folder
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
              HasSubstr("n_head is 2 there, and 4 in the configuration (model.heads)"));
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
              AllOf(HasSubstr("activation_function is silu there, and gelu in the configuration "
                              "(model.activation)"),
                    HasSubstr("tie_word_embeddings is true there, and false in the configuration "
                              "(model.tied_head)")));
  put("run/config.json", json{{"model", {{"layers", 2}, {"activation", "gelu"}}}});
  const Status of_run = check_described_model(queue(), path("run"), shape);
  ASSERT_FALSE(of_run.ok());
  EXPECT_THAT(of_run.error().message(), HasSubstr("model.tied_head is true there"));
}

// Of a model that there has always been nothing more is stored, so that its checkpoints stay what
// they were; and of others what sets them apart.
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
  run.family_numbers["activation"] = 9;  // of a later program
  const auto later = stored_shape(run);
  ASSERT_FALSE(later.ok());
  EXPECT_THAT(later.error().message(), HasSubstr("activation is 9"));
}

// 40,000 rows are more than is read of a head before a command's work.
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
  EXPECT_THAT(refused.error().message(), HasSubstr("token 39999 is the first that differs"));
}

}  // namespace
}  // namespace sluice::engine
