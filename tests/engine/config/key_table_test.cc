// The consistency of the key table, and every key with valid and invalid values.
#include "engine/config/key_table.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <type_traits>

#include "engine/config/nearest_key.h"
#include "tests/engine/config/resolving.h"

namespace sluice::config {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using Json = nlohmann::ordered_json;

std::vector<const Key*> honoured_keys() {
  std::vector<const Key*> keys;
  for (const Key& key : all_keys()) {
    if (key.treatment == Treatment::kHonoured) keys.push_back(&key);
  }
  return keys;
}

// The root with `value` at "a.b.c".
void put(Json& root, std::string_view path, const Json& value) {
  Json* place = &root;
  for (const std::string_view part : [&] {
         std::vector<std::string_view> parts;
         while (!path.empty()) {
           const auto dot = std::min(path.find('.'), path.size());
           parts.push_back(path.substr(0, dot));
           path.remove_prefix(std::min(dot + 1, path.size()));
         }
         return parts;
       }()) {
    place = &(*place)[std::string(part)];
  }
  *place = value;
}

bool is_batch_size(const Key& key) {
  return key.path == "train_batch_size" || key.path == "train_micro_batch_size_per_gpu" ||
         key.path == "gradient_accumulation_steps";
}

// A run file in which the key is valid, with the other keys that it needs.
Json surroundings(const Key& key) {
  Json root = Json::object();
  if (!is_batch_size(key)) put(root, "train_batch_size", 24);
  if (key.path == "gradient_accumulation_steps") put(root, "train_micro_batch_size_per_gpu", 1);
  if (key.path == "run.lanes" || key.path == "run.rounds")
    put(root, "gradient_accumulation_steps", 24);  // any small number divides it
  if (!key.applies_to.empty()) put(root, "scheduler.type", split_choices(key.applies_to).front());
  if (key.applies_to == "OneCycle" || key.path == "scheduler.type") {
    put(root, "scheduler.params.cycle_min_lr", 0.25);
    put(root, "scheduler.params.cycle_max_lr", 0.5);
  }
  // A schedule with these values must be able to run to its end.
  if (key.path == "scheduler.params.total_num_steps")
    put(root, "scheduler.params.warmup_num_steps", 1);
  if (key.path == "scheduler.type") put(root, "scheduler.params.min_lr_rate", 0.5);
  if (key.path == "scheduler.params.lr_end") put(root, "optimizer.params.lr", 2);
  if (key.path == "scheduler.params.warmup_ratio") put(root, "run.epochs", 2);
  if (key.path == "scheduler.params.warmup_type")
    put(root, "scheduler.type", "warmup_stable_decay");
  if (key.path == "scheduler.params.cycle_max_mom") put(root, "scheduler.params.cycle_min_mom", 0);
  if (key.path == "scheduler.params.lr_range_test_step_rate") put(root, "run.steps", 100);
  if (key.path == "optimizer.params.adam_w_mode") put(root, "optimizer.type", "Adam");
  if (key.path == "bf16.check_grad_overflow") put(root, "bf16.enabled", true);
  if (key.path == "placement.unit_inputs_to_nvme" || key.path == "placement.gradients_to_nvme")
    put(root, "budget.nvme_paths", Json({"/nvme"}));
  if (key.path == "run.keep_best" || key.path.starts_with("early_stopping.")) {
    put(root, "run.eval_every", 5);
    put(root, "early_stopping.patience", 2);
  }
  if (key.path == "model.hidden") put(root, "model.heads", 1);
  if (key.path == "model.family") put(root, "model.preset", "custom");
  if (key.path == "model.preset" || key.path == "model.path" || key.path == "model.family") {
    for (const char* name : {"layers", "hidden", "heads", "context", "vocab"}) {
      put(root, std::string("model.") + name,
          320);  // a multiple of any preset's key and value heads
    }
    if (key.path == "model.family") put(root, "model.heads", 2);
  }
  if (key.path.starts_with("recipe.lora.")) {
    put(root, "model.preset", "qwen3-0.6b");
    put(root, "recipe.lora.rank", 2);
    if (key.path == "recipe.lora.double_quant") put(root, "recipe.lora.base_bits", 4);
  }
  if (key.path.ends_with(".device")) put(root, "budget.nvme_paths", "/nvme");
  if (key.path == "placement.nvme_weights") put(root, "budget.nvme_paths", Json({"/a", "/b"}));
  if (key.path == "fp8.enabled") put(root, "bf16.enabled", true);
  if (key.path.starts_with("communication.")) put(root, "zero_optimization.stage", 3);
  if (key.path == "zero_optimization.zero_quantized_nontrainable_weights") {
    put(root, "model.preset", "qwen3-0.6b");
    put(root, "recipe.lora.rank", 2);
    put(root, "zero_optimization.stage", 3);
  }
  if (key.path == "placement.optimizer_fractions") {
    put(root, "budget.nvme_paths", "/nvme");
    put(root, "zero_optimization.offload_optimizer.device", "auto");
  }
  return root;
}

// Valid values that are not the default.
std::vector<Json> right_values(const Key& key) {
  const Json standard = Json::parse(key.default_json);
  if (!key.choices.empty()) {
    std::vector<Json> all;
    for (const std::string_view choice : split_choices(key.choices)) all.emplace_back(choice);
    return all;
  }
  const double low = std::isfinite(key.range.minimum) ? key.range.minimum : -8;
  return std::visit(
      [&](auto accessor) -> std::vector<Json> {
        using A = decltype(accessor);
        if constexpr (std::is_same_v<A, Accessor<bool>>) return {!standard.get<bool>()};
        if constexpr (std::is_same_v<A, Accessor<std::int64_t>>) {
          if (key.path == "recipe.lora.base_bits") return {4, 8, 16};
          const auto first = static_cast<std::int64_t>(low);
          return {standard == first ? first + 1 : first, first + 2};
        }
        if constexpr (std::is_same_v<A, Accessor<std::string>>) return {"some/where"};
        if constexpr (std::is_same_v<A, Accessor<Betas>>) return {Json({0.5, 0.75})};
        if constexpr (std::is_same_v<A, Accessor<std::vector<std::string>>>) {
          if (key.path == "recipe.lora.targets") return {Json({"q_proj", "down_proj"})};
          return {Json({"a", "b"})};
        }
        if constexpr (std::is_same_v<A, Accessor<std::optional<TierFractions>>>) {
          return {Json{{"gpu", 0.25}, {"cpu", 0.5}, {"nvme", 0.25}}};
        }
        if constexpr (std::is_same_v<A, Accessor<std::optional<PathWeights>>>) {
          return {"equal", Json({64, 1})};
        }
        if constexpr (std::is_same_v<A, Accessor<std::vector<ParameterGroup>>>) {
          return {Json::array({{{"match", "*.bias"}, {"lr", 0.5}}}),
                  Json::array({{{"match", {"*ln_1*", "h.0.*"}}, {"weight_decay", 0.5}},
                               {{"match", "*wte*"}, {"lr", 0.0}}})};
        }
        return {low + 0.5};  // a number
      },
      key.field);
}

std::vector<Json> wrong_values(const Key& key) {
  const bool numbers = std::holds_alternative<FamilyList>(key.field);
  std::vector<Json> wrong = {Json::object({{"x", 1}}), numbers ? Json({1, "x"}) : Json({1, 2, 3})};
  const bool text = std::holds_alternative<Accessor<std::string>>(key.field);
  const bool texts = std::holds_alternative<Accessor<std::vector<std::string>>>(key.field);
  if (text || texts) wrong.emplace_back(5);
  if (!text && !texts) wrong.emplace_back("nonsense");
  if (std::holds_alternative<Accessor<std::int64_t>>(key.field)) {
    wrong.emplace_back(7.5);
    wrong.emplace_back(true);
    wrong.emplace_back(1e300);
    wrong.emplace_back(18446744073709551615ULL);
  }
  if (std::isfinite(key.range.minimum)) wrong.emplace_back(key.range.minimum - 1);
  if (std::isfinite(key.range.maximum)) wrong.emplace_back(key.range.maximum + 1);
  return wrong;
}

// A family's numbers depend on each other: LlamaNumbers below.
TEST(KeyTable, EveryHonouredKeyTakesItsValuesAndGivesThemBack) {
  for (const Key* key : honoured_keys()) {
    if (!key->families.empty()) continue;
    for (const Json& value : right_values(*key)) {
      SCOPED_TRACE(std::string(key->path) + " = " + value.dump());
      Json root = surroundings(*key);
      if (value == "log") put(root, "scheduler.type", "WarmupLR");
      put(root, key->path, value);
      const auto resolved = accepted(resolve_run(root.dump()));
      const KeyReport report = report_on(resolved, std::string(key->path));
      EXPECT_EQ(report.outcome, Outcome::kHonoured);
      EXPECT_EQ(report.source, "run.json");
      EXPECT_EQ(Json::parse(report.value), value);
      // And in the canonical form, at its place.
      const Json canonical = Json::parse(to_json(resolved.config));
      std::string pointer = "/" + std::string(key->path);
      std::replace(pointer.begin(), pointer.end(), '.', '/');
      // Left out if it equals the preset's, so that older programs can read the file.
      if (key->path == "model.family" && value == "gpt2") {
        EXPECT_FALSE(canonical.contains(Json::json_pointer(pointer)));
        continue;
      }
      EXPECT_EQ(canonical.at(Json::json_pointer(pointer)), value);
    }
  }
}

TEST(KeyTable, LlamaNumbersAreTakenAsWordsSwitchesAndCountsAndGivenBack) {
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, Json>>{{"architecture", "qwen2"},
                                                 {"kv_heads", 4.0},
                                                 {"head_dim", 64.0},
                                                 {"norm_epsilon", 0.001},
                                                 {"tied_head", true},
                                                 {"attention_bias", true},
                                                 {"window", 512.0},
                                                 {"window_first_layer", 3.0},
                                                 {"rope_theta", 5e5},
                                                 {"rope_scaling", "yarn"},
                                                 {"rope_factor", 4.0},
                                                 {"rope_beta_fast", 16.0},
                                                 {"rope_original_context", 64.0},
                                                 {"rope_truncate", false}}) {
    SCOPED_TRACE(key);
    Json root = {{"train_batch_size", 1}};
    put(root, "model.preset", "qwen3-8b");
    put(root, "model." + key, value);
    // Stored only if a scaling reads it.
    if (key == "rope_original_context") put(root, "model.rope_scaling", "yarn");
    const auto resolved = accepted(resolve_run(root.dump()));
    EXPECT_EQ(report_on(resolved, "model." + key).outcome, Outcome::kHonoured);
    const std::string text = to_json(resolved.config);
    EXPECT_EQ(Json::parse(text).at("model").at(key), value);
    EXPECT_EQ(to_json(accepted(resolve_run(text)).config), text);
  }
  const auto refused = [](const char* key, const Json& value) {
    Json root = {{"train_batch_size", 1}};
    put(root, "model.preset", "qwen3-8b");
    put(root, std::string("model.") + key, value);
    return refusal(resolve_run(root.dump()));
  };
  EXPECT_THAT(refused("rope_scaling", "yern"), HasSubstr("did you mean \"yarn\"?"));
  EXPECT_THAT(refused("rope_scaling", 3), HasSubstr("model.rope_scaling must be"));
  EXPECT_THAT(refused("tied_head", "maybe"), HasSubstr("model.tied_head must be"));
  EXPECT_THAT(refused("kv_heads", 2.5), HasSubstr("kv_heads is 2.5"));
  EXPECT_THAT(refused("kv_heads", 5), HasSubstr("divided among 5"));
  EXPECT_THAT(refused("mlp_bias", true), ContainsRegex("mlp_bias.*llama"));
}

TEST(KeyTable, ListsOfNumbersAreGivenBackAndOmittedWhereThereAreNone) {
  const auto run_with = [](const Json& list, const char* scaling = "longrope") {
    Json root = {{"train_batch_size", 1}};
    put(root, "model.preset", "phi3-mini");
    put(root, "model.rope_scaling", scaling);
    put(root, "model.rope_original_context", 2048);
    for (const char* const key : {"model.rope_short_factor", "model.rope_long_factor"})
      put(root, key, list);
    return resolve_run(root.dump());
  };
  std::vector<double> factors(48, 1.25);  // half as many as a head's 96 numbers
  factors.back() = 64.5;
  const auto resolved = accepted(run_with(factors));
  EXPECT_EQ(report_on(resolved, "model.rope_long_factor").outcome, Outcome::kHonoured);
  EXPECT_EQ(resolved.config.model.shape().lists,
            (std::map<std::string, std::vector<double>>{{"rope_short_factor", factors},
                                                        {"rope_long_factor", factors}}));
  const std::string text = to_json(resolved.config);
  EXPECT_EQ(Json::parse(text).at("model").at("rope_long_factor"), factors);
  EXPECT_EQ(to_json(accepted(resolve_run(text)).config), text);
  const auto without = accepted(run_with(Json::array(), "none"));
  EXPECT_TRUE(without.config.model.shape().lists.empty());
  EXPECT_FALSE(Json::parse(to_json(without.config)).at("model").contains("rope_long_factor"));

  for (const Json& wrong : std::vector<Json>{3, "1, 2", {1, "x"}, {1, Json()}, Json(257, 1)})
    EXPECT_THAT(refusal(run_with(wrong)), HasSubstr("must be a list of numbers"));
  EXPECT_THAT(refusal(run_with(Json(257, 1))), HasSubstr("more than 256 entries"));
  EXPECT_THAT(refusal(run_with(Json(47, 1))), HasSubstr("has 47 numbers"));
  EXPECT_THAT(refusal(run_with(Json::array())), HasSubstr("has 0 numbers"));
  EXPECT_THAT(refusal(run_with(Json(48, 1), "none")), HasSubstr("is for rope_scaling longrope"));
  EXPECT_THAT(refusal(resolve_run(R"({"train_batch_size": 1,
                                      "model": {"rope_long_factor": [1]}})")),
              HasSubstr("belongs to models of the family llama"));
}

// A file stores them only if they differ from the fixed values of earlier versions, so that older
// programs can read the other files.
TEST(KeyTable, Gpt2NumbersAreTakenAndGivenBackWhereTheyAreNotTheDefault) {
  const auto resolved = [](const std::string& key, const Json& value) {
    Json root = {{"train_batch_size", 1}};
    put(root, "model." + key, value);
    return accepted(resolve_run(root.dump()));
  };
  const std::string usual = to_json(resolved("preset", "gpt2-medium").config);
  for (const auto& [key, value, of_openai] : std::vector<std::tuple<std::string, Json, Json>>{
           {"activation", "relu", "gelu_new"},
           {"norm_epsilon", 1e-6, 1e-5},
           {"tied_head", false, true},
           {"scale_attention", false, true},
           {"scale_attention_by_layer", true, false}}) {
    SCOPED_TRACE(key);
    EXPECT_FALSE(Json::parse(usual).at("model").contains(key));
    const Resolved other = resolved(key, value);
    EXPECT_EQ(report_on(other, "model." + key).outcome, Outcome::kHonoured);
    const std::string text = to_json(other.config);
    EXPECT_EQ(Json::parse(text).at("model").at(key), value);
    EXPECT_EQ(to_json(accepted(resolve_run(text)).config), text);
    const Resolved same = resolved(key, of_openai);
    EXPECT_FALSE(Json::parse(to_json(same.config)).at("model").contains(key));
    EXPECT_EQ(report_on(same, "model." + key).outcome, Outcome::kHonoured);
  }
  EXPECT_EQ(resolved("activation", "silu").config.model.shape().numbers.at("activation"), 3);
  const auto refused = [](const std::string& key, const Json& value) {
    Json root = {{"train_batch_size", 1}};
    put(root, "model." + key, value);
    return refusal(resolve_run(root.dump()));
  };
  EXPECT_THAT(refused("activation", "rely"), HasSubstr("did you mean \"relu\"?"));
  EXPECT_THAT(refused("norm_epsilon", 0), ContainsRegex("norm_epsilon is 0.0.*gpt2"));
  EXPECT_THAT(refused("norm_epsilon", -1), ContainsRegex("model.norm_epsilon.*at least 0"));
  EXPECT_THAT(refused("kv_heads", 2), HasSubstr("family llama"));
  Json llama = {{"train_batch_size", 1}};
  put(llama, "model.preset", "qwen3-8b");
  put(llama, "model.activation", "relu");
  EXPECT_THAT(refusal(resolve_run(llama.dump())), ContainsRegex("model.activation.*gpt2"));
}

TEST(KeyTable, EveryHonouredKeyRefusesWhatItCannotBe) {
  for (const Key* key : honoured_keys()) {
    for (const Json& value : wrong_values(*key)) {
      SCOPED_TRACE(std::string(key->path) + " = " + value.dump());
      Json root = surroundings(*key);
      put(root, key->path, value);
      EXPECT_THAT(refusal(resolve_run(root.dump())),
                  HasSubstr(std::string(key->path) + " must be"));
    }
  }
}

TEST(KeyTable, EveryHonouredKeyTakesAutoOrHasItAsAChoice) {
  for (const Key* key : honoured_keys()) {
    Json root = surroundings(*key);
    const bool needed = key->path == "scheduler.params.cycle_min_lr" ||
                        key->path == "scheduler.params.cycle_max_lr" ||
                        key->path == "scheduler.params.min_lr";
    put(root, key->path, "auto");
    if (needed) {
      EXPECT_THAT(refusal(resolve_run(root.dump())), HasSubstr(std::string(key->path)));
      continue;
    }
    accepted(resolve_run(root.dump()));
  }
}

TEST(KeyTable, EveryOtherKeyIsIgnoredOrRefusedWithItsReason) {
  for (const Key& key : all_keys()) {
    if (key.treatment == Treatment::kHonoured || key.treatment == Treatment::kAlias) continue;
    SCOPED_TRACE(key.path);
    Json root = {{"train_batch_size", 8}};
    put(root, key.path, true);
    const auto result = resolve_run(root.dump());
    if (key.treatment == Treatment::kIgnored) {
      const KeyReport report = report_on(accepted(result), std::string(key.path));
      EXPECT_EQ(report.outcome, Outcome::kIgnored);
      EXPECT_EQ(report.reason, key.reason);
      continue;
    }
    EXPECT_THAT(refusal(result), HasSubstr(std::string(key.reason)));
    put(root, key.path, false);
    if (key.treatment == Treatment::kRefusedIfTrue) accepted(resolve_run(root.dump()));
  }
}

TEST(KeyTable, EveryOtherNameStandsForAKeyOrASection) {
  int names = 0;
  for (const Key& key : all_keys()) {
    if (key.treatment != Treatment::kAlias) continue;
    ++names;
    const Key* target = find_key(key.alias_of);
    ASSERT_TRUE(target != nullptr || is_section(key.alias_of)) << key.path;
    EXPECT_TRUE(key.share_of.empty() || find_key(key.share_of) != nullptr) << key.path;
    if (target != nullptr) {
      EXPECT_EQ(target->treatment, Treatment::kHonoured) << key.path;
    }
  }
  EXPECT_GT(names, 5);
}

TEST(KeyTable, HasEachPathOnceAndSaysWhatItIs) {
  std::set<std::string_view> paths;
  for (const Key& key : all_keys()) {
    SCOPED_TRACE(key.path);
    EXPECT_TRUE(paths.insert(key.path).second);
    const bool honoured = key.treatment == Treatment::kHonoured;
    EXPECT_EQ(honoured, !key.meaning.empty());
    EXPECT_EQ(honoured, !std::holds_alternative<std::monostate>(key.field));
    EXPECT_EQ(key.treatment == Treatment::kAlias, !key.alias_of.empty());
    EXPECT_EQ(!honoured && key.treatment != Treatment::kAlias, !key.reason.empty());
    EXPECT_FALSE(is_section(key.path)) << "a key cannot be a section as well";
  }
}

TEST(KeyTable, DescribesEveryKeyWithDefaultUnitAndSource) {
  const std::string text = describe_keys();
  for (const Key& key : all_keys()) EXPECT_THAT(text, HasSubstr(std::string(key.path) + "\n"));
  EXPECT_THAT(text, HasSubstr("zero_optimization.offload_param.buffer_size\n    a whole number, at "
                              "least 0, in elements; default 100000000; DeepSpeed's\n"));
  EXPECT_THAT(text,
              HasSubstr("budget.gpu_gib\n    a number, 0 to 1073741824, in GiB; default unset; "
                        "Sluice's own"));
}

TEST(NearestKey, CountsEditsAndSwapsOfNeighbours) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("stage", "stge"), 1);
  EXPECT_EQ(edit_distance("stage", "satge"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
}

TEST(NearestKey, SuggestsUnderItsOwnSection) {
  EXPECT_EQ(suggest_key("fp16.enable"), "did you mean fp16.enabled?");
  EXPECT_EQ(suggest_key("zero_optimisation"), "did you mean zero_optimization?");
  EXPECT_EQ(suggest_key("zero_optimization.sub_groupsize"),
            "did you mean zero_optimization.sub_group_size?");
  EXPECT_EQ(suggest_key("budget.gpu_gb"), "did you mean budget.gpu_gib?");
}

TEST(NearestKey, PointsAtTheSectionThatHasTheKey) {
  EXPECT_EQ(suggest_key("thread_count"), "thread_count is a key of aio");
  EXPECT_EQ(suggest_key("model.queue_depth"), "queue_depth is a key of aio");
  EXPECT_EQ(suggest_key("run.train_batch_size"), "train_batch_size is at the top level");
  EXPECT_EQ(suggest_key("num_train_epochs"), "Sluice's key is run.epochs");
  EXPECT_EQ(suggest_key("model.num_experts"), "Sluice's key is model.experts");
  EXPECT_EQ(suggest_key("optimizer.params.learning_rate"), "Sluice's key is optimizer.params.lr");
}

TEST(NearestKey, ListsASmallSectionWhenNothingIsNear) {
  EXPECT_EQ(suggest_key("budget.zzzzzzzz"),
            "budget has cpu_gib, gpu_gib, nvme_gib, nvme_paths, nvme_tb_per_day");
  EXPECT_EQ(suggest_key("zzzzzzzzzzzz"), "no key is similar");
}

}  // namespace
}  // namespace sluice::config
