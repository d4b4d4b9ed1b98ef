#include "engine/weights/parameter_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/exchange/stored_shape.h"
#include "engine/families/families.h"

namespace sluice::engine {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

const ModelShape kTiny{.layers = 2, .hidden = 8, .heads = 2, .context_tokens = 16, .vocab = 100};

const ParameterNames& names_of_gpt2() { return find_family("gpt2")->parameter_names({}); }

std::vector<TensorInfo> file_with(std::vector<TensorSpec> tensors) {
  const auto places = lay_out(tensors);
  EXPECT_TRUE(places.ok());
  return *places;
}

std::vector<TensorInfo> tiny_file(const std::string& prefix) {
  auto tensors = parameter_specs(kTiny, DType::kF32);
  for (TensorSpec& tensor : tensors) tensor.name.insert(0, prefix);
  return file_with(std::move(tensors));
}

TensorInfo& tensor(std::vector<TensorInfo>& file, std::string_view name) {
  return *std::find_if(file.begin(), file.end(),
                       [&](const TensorInfo& it) { return it.name == name; });
}

std::string refusal(const std::vector<TensorInfo>& file) {
  const auto names = match_parameters(names_of_gpt2(), file, parameter_specs(kTiny, DType::kF32));
  if (names.ok()) return "accepted";
  EXPECT_EQ(names.error().code(), ErrorCode::kInvalidArgument);
  return names.error().message();
}

TEST(Gpt2Names, AreHuggingFacesWithConv1dsShapes) {
  const auto parameters = parameter_specs(*preset_shape("gpt2-small"), DType::kF32);
  std::uint64_t elements = 0;
  for (const TensorInfo& tensor : file_with(parameters)) elements += tensor.elements;
  EXPECT_EQ(elements, 124'439'808U);  // the size of GPT-2 small with a tied head
  EXPECT_EQ(parameters.size(), 148U);
  const auto has = [&](const char* name, std::vector<std::uint64_t> shape) {
    return std::find(parameters.begin(), parameters.end(),
                     TensorSpec{name, DType::kF32, std::move(shape)}) != parameters.end();
  };
  EXPECT_TRUE(has("wte.weight", {50257, 768}));
  EXPECT_TRUE(has("wpe.weight", {1024, 768}));
  EXPECT_TRUE(has("h.0.ln_1.weight", {768}));
  EXPECT_TRUE(has("h.11.attn.c_attn.weight", {768, 2304}));
  EXPECT_TRUE(has("h.11.attn.c_attn.bias", {2304}));
  EXPECT_TRUE(has("h.3.attn.c_proj.weight", {768, 768}));
  EXPECT_TRUE(has("h.3.ln_2.bias", {768}));
  EXPECT_TRUE(has("h.3.mlp.c_fc.weight", {768, 3072}));
  EXPECT_TRUE(has("h.3.mlp.c_proj.weight", {3072, 768}));
  EXPECT_TRUE(has("h.3.mlp.c_proj.bias", {768}));
  EXPECT_TRUE(has("ln_f.bias", {768}));
}

TEST(Gpt2Names, AreFoundWithAndWithoutTheirPrefix) {
  const auto wanted = parameter_specs(kTiny, DType::kBF16);
  for (const std::string prefix :
       {"", "transformer.", "module.transformer.", "_orig_mod.transformer.", "module._orig_mod.",
        "_orig_mod.module.transformer."}) {
    const auto names = match_parameters(names_of_gpt2(), tiny_file(prefix), wanted);
    ASSERT_TRUE(names.ok()) << names.error().message();
    ASSERT_EQ(names->size(), wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ((*names)[i], prefix + wanted[i].name);
  }
}

TEST(Gpt2Names, LeaveMasksAndATiedHeadAside) {
  auto file = tiny_file("transformer.");
  file.push_back({{"transformer.h.0.attn.bias", DType::kBool, {1, 1, 16, 16}}});
  file.push_back({{"transformer.h.1.attn.masked_bias", DType::kF32, {}}});
  file.push_back({{"lm_head.weight", DType::kF32, {100, 8}}});
  EXPECT_EQ(refusal(file), "accepted");
  file.back().shape = {104, 8};
  EXPECT_THAT(refusal(file), ContainsRegex("\"lm_head.weight\".*\\[104, 8\\].*\\[100, 8\\]"));
}

TEST(Gpt2Names, OfBlocksThatWereCompiledAreRefusedWithAHint) {
  auto file = tiny_file("");
  for (TensorInfo& it : file)
    if (it.name.starts_with("h.0.")) it.name.insert(4, "_orig_mod.");
  EXPECT_THAT(refusal(file), AllOf(HasSubstr("has no tensor \"h.0."), HasSubstr("torch.compile")));
}

TEST(Gpt2Names, SayWhatIsMissingWrongOrTooMuch) {
  auto file = tiny_file("");
  std::erase_if(file, [](const TensorInfo& it) { return it.name == "h.0.attn.c_attn.bias"; });
  EXPECT_THAT(refusal(file), HasSubstr("has no tensor \"h.0.attn.c_attn.bias\""));
  file = tiny_file("");
  tensor(file, "h.0.attn.c_attn.weight").shape = {24, 8};  // in nn.Linear's layout
  EXPECT_THAT(refusal(file), ContainsRegex("\\[24, 8\\].*\\[8, 24\\]"));
  file = tiny_file("");
  file.push_back({{"h.2.ln_1.weight", DType::kF32, {8}}});
  EXPECT_THAT(refusal(file), HasSubstr("a tensor \"h.2.ln_1.weight\""));
  file = tiny_file("");
  file.push_back({{"transformer.wpe.weight", DType::kF32, {16, 8}}});
  EXPECT_THAT(refusal(file), HasSubstr("the same parameter"));
  file = tiny_file("");
  tensor(file, "wpe.weight").dtype = DType::kI32;
  EXPECT_THAT(refusal(file), HasSubstr("\"wpe.weight\" is I32"));
}

}  // namespace
}  // namespace sluice::engine
