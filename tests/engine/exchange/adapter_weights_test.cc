// Adapters from strangers: each ends with a sentence that names the file and the problem, or is
// read like PEFT would read it.
#include "engine/exchange/adapter_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "engine/exchange/stored_shape.h"
#include "engine/families/families.h"
#include "tests/engine/exchange/folder_under_test.h"

namespace sluice::engine {
namespace {

using nlohmann::json;
using testing::ContainsRegex;
using testing::HasSubstr;

constexpr std::int64_t kRank = 3;

ModelShape shape() {
  return complete({.layers = 2,
                   .hidden = 8,
                   .heads = 2,
                   .context_tokens = 16,
                   .vocab = 32,
                   .ffn_hidden = 12,
                   .family = "llama"});
}

// The configuration that PEFT 0.21 writes.
json peft_config() {
  return json::parse(R"({
    "alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null,
    "auto_mapping": null, "base_model_name_or_path": "some/model", "bias": "none",
    "corda_config": null, "ensure_weight_tying": false, "eva_config": null,
    "exclude_modules": null, "fan_in_fan_out": false, "inference_mode": true,
    "init_lora_weights": true, "kasa_config": null, "layer_replication": null,
    "layers_pattern": null, "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 12,
    "lora_bias": false, "lora_dropout": 0.0, "lora_ga_config": null, "megatron_config": null,
    "megatron_core": "megatron.core", "modules_to_save": null, "monteclora_config": null,
    "peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 16, "r": 3,
    "rank_pattern": {}, "revision": null, "target_modules": ["q_proj", "down_proj"],
    "target_parameters": null, "task_type": "CAUSAL_LM", "trainable_token_indices": null,
    "use_bdlora": null, "use_dora": false, "use_qalora": false, "use_rslora": false,
    "velora_config": null})");
}

std::vector<TensorSpec> peft_tensors() {
  const LoraRecipe recipe{.rank = kRank, .alpha = 12, .targets = {"q_proj", "down_proj"}};
  std::vector<TensorSpec> tensors =
      parameter_specs(model_layout({.shape = shape(), .lora = recipe}), DType::kF32);
  for (TensorSpec& tensor : tensors) tensor.name = peft_name(shape(), tensor.name);
  return tensors;
}

// Contains the values 0, 1, 2, ... through the whole file, as far as the type represents them.
std::string file_of(const std::vector<TensorSpec>& tensors) {
  const auto places = lay_out(tensors);
  if (!places.ok()) return {};
  std::string file = make_safetensors_header(*places, {{"format", "pt"}});
  float next = 0;
  for (const TensorInfo& tensor : *places) {
    std::string bytes(tensor.size_bytes, '\0');
    for (std::uint64_t i = 0; i < tensor.elements && tensor.dtype == DType::kF32; ++i, ++next)
      std::memcpy(bytes.data() + i * sizeof(next), &next, sizeof(next));
    file += bytes;
  }
  return file;
}

void expect_a_sentence(const std::string& message) {
  EXPECT_GT(message.size(), 30U) << message;
  EXPECT_LT(message.size(), 2500U) << message;
  EXPECT_NE(message.find(' '), std::string::npos) << message;
  EXPECT_EQ(message.find("json.exception"), std::string::npos) << message;
  for (const char c : message)
    ASSERT_TRUE(c >= 0x20 && c < 0x7F) << "what a terminal may obey: " << message;
}

class Adapters : public FolderUnderTest {
 protected:
  // "accepted", or the reason for the refusal.
  std::string open(const std::string& config, const std::string& weights) const {
    put("a/adapter_config.json", config);
    put("a/adapter_model.safetensors", weights);
    const auto opened = AdapterWeights::open(queue(), path("a"), shape());
    if (opened.ok()) return "accepted";
    // The message names one of the two files.
    EXPECT_THAT(opened.error().message(), testing::StartsWith(path("a/adapter_")));
    return opened.error().message();
  }
  std::string with(const json& keys) const {
    json config = peft_config();
    config.update(keys);
    return open(config.dump(2), file_of(peft_tensors()));
  }
  // Replaces the text of one value, so that it need not be JSON.
  std::string with_text(const std::string& key, const std::string& value) const {
    std::string text = json{{key, "HERE"}, {"peft_type", "LORA"}}.dump(2);
    text.replace(text.find("\"HERE\""), 6, value);
    return open(text, file_of(peft_tensors()));
  }
  std::string of_tensors(const std::vector<TensorSpec>& tensors) const {
    return open(peft_config().dump(2), file_of(tensors));
  }
  void expect_consistent() const;
};

// An accepted adapter can be read, and is equal after it is written again.
void Adapters::expect_consistent() const {
  auto opened = AdapterWeights::open(queue(), path("a"), shape());
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  const PeftConfig& config = opened->config();
  EXPECT_TRUE(validate(config.recipe, shape()).ok());
  EXPECT_TRUE(config.recipe.exists());
  EXPECT_TRUE(config.recipe.dropout >= 0 && config.recipe.dropout < 1) << config.recipe.dropout;
  const auto again = parse_peft_config(peft_config_text(config));
  ASSERT_TRUE(again.ok()) << again.error().message();
  EXPECT_EQ(again->recipe, config.recipe);
  for (const TensorSpec& spec :
       parameter_specs(model_layout({.shape = shape(), .lora = config.recipe}), DType::kF32)) {
    std::vector<float> values(spec.shape[0] * spec.shape[1]);
    const Status read = opened->read(spec.name, 0, values);
    ASSERT_TRUE(read.ok()) << read.error().message();
  }
}

TEST_F(Adapters, OfPeftAreReadInTheModelsOrder) {
  ASSERT_EQ(with(json::object()), "accepted");
  expect_consistent();
  auto opened = AdapterWeights::open(queue(), path("a"), shape());
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(opened->config().recipe,
            (LoraRecipe{.rank = kRank, .alpha = 12, .targets = {"q_proj", "down_proj"}}));
  EXPECT_EQ(opened->config().base, "some/model");
  std::vector<float> values(2);
  const Status read = opened->read("layers.0.self_attn.q_proj.lora_A.weight", 5, values);
  ASSERT_TRUE(read.ok()) << read.error().message();
  EXPECT_EQ(values, (std::vector<float>{5, 6}));
}

TEST_F(Adapters, AreRefusedByKeyAndValueWhereSluiceDoesNotComputeThem) {
  const std::vector<std::pair<json, const char*>> cases = {
      {{{"r", 0}}, "r is 0, which is not a rank: it must be a whole number from 1 to 4096"},
      {{{"r", 3.0}}, "r is 3.0"},
      {{{"r", "3"}}, "r is \"3\""},
      {{{"r", true}}, "r is true"},
      {{{"r", 18446744073709551615U}}, "r is 18446744073709551615"},
      {{{"r", 9223372036854775808U}}, "r is 9223372036854775808"},
      {{{"r", 4}}, "lora_A.weight is 3 x 8, but for this model it must be 4 x 8"},
      {{{"lora_alpha", "12"}}, "lora_alpha is \"12\", which is not a number"},
      {{{"lora_alpha", 0}}, "the alpha of its adapters is 0"},
      {{{"lora_alpha", -1}}, "the alpha of its adapters is -1"},
      {{{"lora_alpha", 1e39}}, "the alpha of its adapters is 1e+39"},
      {{{"lora_dropout", -0.5}}, "lora_dropout is -0.5"},
      {{{"lora_dropout", 2}}, "lora_dropout is 2"},
      {{{"use_rslora", 1}}, "use_rslora is 1: it must be true or false"},
      {{{"use_dora", true}}, "use_dora is true, which Sluice does not support"},
      {{{"bias", "all"}}, "bias is \"all\""},
      {{{"lora_bias", true}}, "lora_bias is true"},
      {{{"fan_in_fan_out", true}}, "fan_in_fan_out is true"},
      {{{"layers_to_transform", 0}}, "layers_to_transform is 0"},
      {{{"modules_to_save", {"lm_head"}}}, "modules_to_save is [\"lm_head\"]"},
      {{{"rank_pattern", {{"q_proj", 2}}}}, "rank_pattern is {\"q_proj\":2}"},
      {{{"alpha_pattern", {{"q_proj", 2}}}}, "alpha_pattern is {\"q_proj\":2}"},
      {{{"exclude_modules", {"q_proj"}}}, "exclude_modules is"},
      {{{"init_lora_weights", "pissa_niter_4"}}, "init_lora_weights is \"pissa_niter_4\""},
      {{{"peft_type", "LOHA"}}, "peft_type is \"LOHA\""},
      {{{"peft_type", {"LORA"}}}, "peft_type is [\"LORA\"]"},
      {{{"a_key_of_tomorrow", 1}}, "a_key_of_tomorrow is 1"},
      {{{"\x1b[2J\n", 1}}, R"("\u001b[2J\n" is 1)"},
      {{{std::string(5000, 'k'), std::string(5000, 'v')}}, "kkk...\" is \"vvv"},
      {{{"target_modules", {"q_proj"}}},
       "target_modules is [q_proj], but the adapters in the same folder"},
      {{{"target_modules", {"q_proj", "down_proj", "v_proj"}}},
       "v_proj], but the adapters in the same"},
      {{{"target_modules", {"proj", "down_proj"}}}, "target_modules is [proj, down_proj]"},
      {{{"target_modules", {"q_proj", 1}}}, "target_modules is [\"q_proj\",1]: it must be a list"},
      {{{"target_modules", json::array()}}, "target_modules is []: it must be a list"},
      {{{"target_modules", 5}}, "target_modules is 5: it must be a list"},
      {{{"target_modules", {"\x1b]0;", "\n"}}}, R"(target_modules is ["\u001b]0;", "\n"])"},
  };
  for (const auto& [keys, says] : cases) {
    SCOPED_TRACE(keys.dump().substr(0, 100));
    const std::string refusal = with(keys);
    EXPECT_THAT(refusal, HasSubstr(says));
    expect_a_sentence(refusal);
  }
}

TEST_F(Adapters, AreAcceptedWhereAKeySaysNothingOfWhatTheyCompute) {
  for (const json& keys :
       std::vector<json>{{{"target_modules", "all-linear"}},
                         {{"target_modules", ".*\\.(q|down)_proj"}},
                         {{"target_modules", "(((((a*)*)*)*)*)*b"}},  // refused unmatched
                         {{"target_modules", nullptr}},
                         {{"target_modules", {"self_attn.q_proj", "mlp.down_proj"}}},
                         {{"target_modules",
                           {"layers.0.self_attn.q_proj", "layers.1.self_attn.q_proj",
                            "model.layers.0.mlp.down_proj", "1.mlp.down_proj"}}},
                         {{"modules_to_save", json::array()}},
                         {{"layers_to_transform", json::array()}},
                         {{"layers_pattern", "layers"}},
                         {{"rank_pattern", nullptr}},
                         {{"use_dora", nullptr}},
                         {{"a_key_of_tomorrow", nullptr}},
                         {{"init_lora_weights", "gaussian"}},
                         {{"lora_dropout", 0.1}},
                         {{"lora_alpha", 1e-30}},
                         {{"base_model_name_or_path", 5}},
                         {{"task_type", "SEQ_2_SEQ_LM"}}}) {
    SCOPED_TRACE(keys.dump());
    EXPECT_EQ(with(keys), "accepted");
    expect_consistent();
  }
}

TEST_F(Adapters, AreRefusedByThePlaceWhereTheirConfigurationIsNoJson) {
  EXPECT_THAT(with_text("lora_alpha", "NaN"),
              HasSubstr(R"(it is not JSON at byte 18, in "  \"lora_alpha\": NaN,": save)"));
  EXPECT_THAT(with_text("lora_alpha", "-Infinity"), HasSubstr(R"(\"lora_alpha\": -Infinity,)"));
  EXPECT_THAT(with_text("lora_alpha", "1e400"), HasSubstr(R"(\"lora_alpha\": 1e400,)"));
  EXPECT_THAT(with_text("r", "'3'"), HasSubstr(R"(\"r\": '3')"));
  EXPECT_THAT(with_text("bias", "\"\xff\x1b[2J\""), HasSubstr("not JSON"));
  for (const char* const open : {"[", R"({"a":)", R"([{"a":)"}) {
    std::string deep;
    for (int i = 0; i < 100000; ++i) deep += open;
    EXPECT_THAT(with_text("loftq_config", deep), HasSubstr("8 levels"));
  }
  const std::string text = peft_config().dump();
  for (std::size_t bytes = 0; bytes < text.size(); bytes += 7) {
    const std::string refusal = open(text.substr(0, bytes), "");
    EXPECT_THAT(refusal, HasSubstr("not JSON"));
    EXPECT_THAT(refusal, HasSubstr("(is it cut short?)"));
    expect_a_sentence(refusal);
  }
  for (const char* const other : {"[]", "5", "null", "\"LORA\"", "{}"})
    expect_a_sentence(open(other, ""));
  EXPECT_THAT(open(std::string((1 << 20) + 1, ' '), ""), HasSubstr("adapter_config.json"));
}

TEST_F(Adapters, AreRefusedByTheNameOfTheTensorThatIsAnother) {
  const auto tensors = peft_tensors();
  const auto changed = [&](const auto& change) {
    std::vector<TensorSpec> all = tensors;
    change(all);
    const std::string refusal = of_tensors(all);
    expect_a_sentence(refusal);
    return refusal;
  };
  const std::string first = tensors.front().name;
  const auto renamed = [&](const std::string& name) {
    return changed([&](auto& all) { all.front().name = name; });
  };
  EXPECT_THAT(renamed("x"), HasSubstr("a tensor x"));
  EXPECT_THAT(renamed("\x1b[2J"), HasSubstr(R"(it has a tensor "\u001b[2J", which is no)"));
  EXPECT_THAT(renamed(std::string(1 << 20, 'n')), HasSubstr("nnn...\", which is no"));
  for (const char* const odd : {".lora_A.", ".lora_A.weight", "q_proj.lora_A.", "..lora_B.."})
    EXPECT_NE(renamed(odd), "accepted");
  EXPECT_THAT(renamed("base_model.model.lm_head.lora_A.weight"), HasSubstr("lm_head.lora_A"));
  EXPECT_THAT(renamed("base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector"),
              HasSubstr("lora_magnitude_vector"));
  EXPECT_THAT(renamed("model.layers.0.self_attn.q_proj.lora_A.weight"),
              HasSubstr("it has no tensor " + first));
  EXPECT_THAT(changed([](auto& all) { all.erase(all.begin()); }),
              HasSubstr("it has no tensor " + first + ": a linear layer must have an adapter"));
  EXPECT_THAT(changed([](auto& all) { all.clear(); }), HasSubstr("contains no adapters"));
  EXPECT_THAT(changed([](auto& all) {
                all.push_back(all.front());
                all.back().name.replace(all.back().name.find("layers.0"), 8, "layers.2");
              }),
              ContainsRegex("layers.2.self_attn.q_proj.lora_A.weight.*not exist"));
  EXPECT_THAT(changed([](auto& all) { std::swap(all.front().shape[0], all.front().shape[1]); }),
              HasSubstr(first + " is 8 x 3, but for this model it must be 3 x 8"));
  EXPECT_THAT(changed([](auto& all) { all.front().shape = {}; }), HasSubstr(first + " is"));
  EXPECT_THAT(changed([](auto& all) { all.front().shape = {3, 8, 1}; }), HasSubstr("3 x 8 x 1"));
  for (const DType wrong : {DType::kI64, DType::kI32, DType::kBool})
    EXPECT_THAT(
        changed([&](auto& all) {
          for (TensorSpec& tensor : all) tensor.dtype = wrong;
        }),
        HasSubstr(first + " is " + std::string(to_string(wrong)) + ", but adapters must be"));
  std::vector<TensorSpec> halves = tensors;
  for (TensorSpec& tensor : halves) tensor.dtype = DType::kBF16;
  EXPECT_EQ(of_tensors(halves), "accepted");
  expect_consistent();
  std::string whole = file_of(tensors);
  whole[whole.size() - 2] = '\xff';  // in the last number: a NaN of any type
  whole[whole.size() - 1] = '\x7f';
  EXPECT_THAT(open(peft_config().dump(), whole),
              HasSubstr("element 23 of " + tensors.back().name + " is not finite"));
  whole = file_of(tensors);
  for (std::size_t bytes = 0; bytes < whole.size(); bytes += 101)
    expect_a_sentence(open(peft_config().dump(), whole.substr(0, bytes)));
}

TEST_F(Adapters, AreNotTakenForTheModelTheyBelongTo) {
  ASSERT_EQ(with(json::object()), "accepted");
  const Status found = check_is_no_adapter(queue().backend().files(), path("a"));
  ASSERT_FALSE(found.ok());
  EXPECT_THAT(found.error().message(), HasSubstr("the base model"));
  put("a/config.json", json::object());
  EXPECT_TRUE(check_is_no_adapter(queue().backend().files(), path("a")).ok());
}

// Makes one mistake at a time, or a few, of all kinds.
class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}
  std::size_t below(std::size_t limit) { return random_() % limit; }

  std::string config() {
    json config = peft_config();
    if (below(4) != 0) set_a_key(config);
    if (below(8) == 0) set_a_key(config);
    std::string text = config.dump(static_cast<int>(below(4)) - 1);
    if (below(4) == 0) edit(text);
    return text;
  }

  std::string weights() {
    std::vector<TensorSpec> tensors = peft_tensors();
    if (below(4) == 0) change_a_tensor(tensors);
    std::string file = file_of(tensors);
    if (below(5) == 0) edit(file);
    return file;
  }

 private:
  static constexpr const char* kWords[] = {"null",
                                           "true",
                                           "-1",
                                           "0",
                                           "3",
                                           "1.5",
                                           "1e300",
                                           "-0.0",
                                           "18446744073709551615",
                                           "{}",
                                           "[]",
                                           R"("")",
                                           R"("all-linear")",
                                           R"(".*")",
                                           R"(["q_proj","down_proj"])",
                                           R"(["q_proj"])",
                                           R"({"q_proj":5})",
                                           R"([[[[[[[[[[]]]]]]]]]])",
                                           R"("\u0000\u001b")",
                                           R"("none")",
                                           R"("LORA")",
                                           R"([0])",
                                           R"({"":{}})",
                                           R"("gaussian")"};

  void set_a_key(json& config) {
    auto entry = config.begin();
    std::advance(entry, static_cast<std::ptrdiff_t>(below(config.size())));
    const json value = json::parse(kWords[below(std::size(kWords))]);
    if (below(12) == 0) {
      config["new"] = value;
    } else if (below(12) == 0) {
      config.erase(entry);
    } else {
      *entry = value;
    }
  }

  void change_a_tensor(std::vector<TensorSpec>& tensors) {
    TensorSpec& one = tensors[below(tensors.size())];
    switch (below(6)) {
      case 0:
        return static_cast<void>(tensors.erase(tensors.begin()));
      case 1:
        one.name.erase(below(one.name.size()), 1 + below(9));
        return;
      case 2:
        one.name.insert(below(one.name.size()), tensors.front().name, below(9), below(30));
        return;
      case 3:
        one.shape.assign(below(4), below(9));
        return;
      case 4:
        for (TensorSpec& tensor : tensors)
          tensor.dtype = std::vector{DType::kBF16, DType::kF16, DType::kF64, DType::kI64}[below(4)];
        std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
          return std::pair(element_bytes(b.dtype), a.name) <
                 std::pair(element_bytes(a.dtype), b.name);
        });
        return;
      default:
        std::swap(one.shape, tensors[below(tensors.size())].shape);
    }
  }

  void edit(std::string& text) {
    if (text.empty()) return;
    // Usually within the header of the weights.
    const std::size_t at =
        below(below(4) == 0 ? text.size() : std::min<std::size_t>(text.size(), 1500));
    switch (below(5)) {
      case 0:
        text[at] = static_cast<char>(random_());
        return;
      case 1:
        return static_cast<void>(text.erase(at, 1 + below(8)));
      case 2:
        return static_cast<void>(text.insert(at, kWords[below(std::size(kWords))]));
      case 3:
        return text.resize(at);
      default:
        return static_cast<void>(text.insert(at, text.substr(below(text.size()), below(60))));
    }
  }

  std::mt19937_64 random_;
};

class AdapterFuzz : public Adapters {
 protected:
  void open_mutated(int inputs) {
    const std::uint64_t seed = std::random_device()();
    std::cout << "seed " << seed << "\n";
    Mutator mutate(seed);
    int accepted = 0;
    for (int i = 0; i < inputs && !HasFailure(); ++i) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", input " + std::to_string(i));
      const std::string config = mutate.config();
      const std::string said = open(config, mutate.weights());
      SCOPED_TRACE(said + "\n" + config);
      if (said != "accepted") {
        expect_a_sentence(said);
        continue;
      }
      ++accepted;
      expect_consistent();
      // Everything that PEFT treats differently was refused.
      const json kept = json::parse(config);
      for (const char* const key :
           {"use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "layers_to_transform",
            "fan_in_fan_out", "lora_bias", "use_qalora", "exclude_modules", "new"}) {
        const json value = kept.value(key, json());
        EXPECT_TRUE(value.is_null() || value == false || value == json("") || value.empty()) << key;
      }
    }
    std::cout << accepted << " of " << inputs << " accepted\n";
    EXPECT_GT(accepted, inputs / 10);
    EXPECT_LT(accepted, inputs * 9 / 10);
  }
};
using LongAdapterFuzz = AdapterFuzz;

TEST_F(AdapterFuzz, EndsWithASentenceOrWithWhatPeftWouldCompute) { open_mutated(400); }
TEST_F(LongAdapterFuzz, EndsWithASentenceOrWithWhatPeftWouldCompute) { open_mutated(4000); }

}  // namespace
}  // namespace sluice::engine
