#include "engine/families/llama_presets.h"

#include <map>
#include <string>
#include <utility>

#include "engine/families/family_table.h"

namespace sluice::engine {
namespace {

using Numbers = std::map<std::string, double>;

NamedShape model(std::string_view name, std::string_view architecture, const PresetSizes& sizes,
                 Numbers numbers) {
  const ShapeNumber number = {.choices = kLlamaArchitectures};
  numbers["architecture"] = number.place(architecture).value_or(0);
  return preset(kLlamaFamily, name, sizes, std::move(numbers));
}

constexpr double kTied = 1;
constexpr double kLlamaEpsilon = 1e-5;

struct Experts {
  double count;
  double per_token;
  double width;  // 0: that of Sizes::ffn
};
Numbers with(const Experts& experts, Numbers numbers) {
  numbers["experts"] = experts.count;
  numbers["experts_per_token"] = experts.per_token;
  numbers["expert_width"] = experts.width;
  return numbers;
}

// The rope_scaling in the config.json of Llama 3.1 and later.
Numbers llama3(double factor) {
  return {{"norm_epsilon", kLlamaEpsilon},
          {"rope_theta", 500000},
          {"rope_scaling", static_cast<double>(RopeScaling::kLlama3)},
          {"rope_factor", factor},
          {"rope_low_freq_factor", 1},
          {"rope_high_freq_factor", 4},
          {"rope_original_context", 8192}};
}

Numbers tied(Numbers numbers) {
  numbers["tied_head"] = kTied;
  return numbers;
}

}  // namespace

// The sizes of the config.json files on the Hugging Face Hub.
std::vector<NamedShape> llama_presets() {
  const Numbers qwen = {{"norm_epsilon", 1e-6}, {"rope_theta", 1e6}};
  const Numbers mistral = {{"norm_epsilon", kLlamaEpsilon}, {"rope_theta", 1e6}};
  const Numbers qwen_moe = {{"norm_epsilon", 1e-6}, {"rope_theta", 1e6}, {"norm_topk_prob", 1}};
  const Numbers gpt_oss = {{"norm_epsilon", 1e-5},
                           {"attention_bias", 1},
                           {"window", 128},
                           {"window_layers", 1},
                           {"window_full_layers", 1},
                           {"rope_theta", 150000},
                           {"rope_scaling", static_cast<double>(RopeScaling::kYarn)},
                           {"rope_factor", 32},
                           {"rope_original_context", 4096},
                           {"rope_truncate", 0}};
  return {
      model("llama2-7b", "llama", {32, 4096, 32, 32, 128, 11008, 32000, 4096},
            {{"norm_epsilon", kLlamaEpsilon}}),
      model("llama3.1-8b", "llama", {32, 4096, 32, 8, 128, 14336, 128256, 131072}, llama3(8)),
      model("llama3.2-1b", "llama", {16, 2048, 32, 8, 64, 8192, 128256, 131072}, tied(llama3(32))),
      model("llama3.2-3b", "llama", {28, 3072, 24, 8, 128, 8192, 128256, 131072}, tied(llama3(32))),
      model("llama3.3-70b", "llama", {80, 8192, 64, 8, 128, 28672, 128256, 131072}, llama3(8)),
      model("mistral-7b", "mistral", {32, 4096, 32, 8, 128, 14336, 32768, 32768}, mistral),
      model("qwen2.5-0.5b", "qwen2", {24, 896, 14, 2, 64, 4864, 151936, 32768}, tied(qwen)),
      model("qwen2.5-1.5b", "qwen2", {28, 1536, 12, 2, 128, 8960, 151936, 32768}, tied(qwen)),
      model("qwen2.5-3b", "qwen2", {36, 2048, 16, 2, 128, 11008, 151936, 32768}, tied(qwen)),
      model("qwen2.5-7b", "qwen2", {28, 3584, 28, 4, 128, 18944, 152064, 32768}, qwen),
      model("qwen3-0.6b", "qwen3", {28, 1024, 16, 8, 128, 3072, 151936, 40960}, tied(qwen)),
      model("qwen3-1.7b", "qwen3", {28, 2048, 16, 8, 128, 6144, 151936, 40960}, tied(qwen)),
      model("qwen3-4b", "qwen3", {36, 2560, 32, 8, 128, 9728, 151936, 40960}, tied(qwen)),
      model("qwen3-8b", "qwen3", {36, 4096, 32, 8, 128, 12288, 151936, 40960}, qwen),
      model("qwen3-14b", "qwen3", {40, 5120, 40, 8, 128, 17408, 151936, 40960}, qwen),
      model("qwen3-32b", "qwen3", {64, 5120, 64, 8, 128, 25600, 151936, 40960}, qwen),
      model("qwen3-30b-a3b", "qwen3_moe", {48, 2048, 32, 4, 128, 6144, 151936, 40960},
            with(Experts{128, 8, 768}, qwen_moe)),
      model("mixtral-8x7b", "mixtral", {32, 4096, 32, 8, 128, 14336, 32000, 32768},
            with(Experts{8, 2, 0}, mistral)),
      model("gpt-oss-20b", "gpt_oss", {24, 2880, 64, 8, 64, 2880, 201088, 131072},
            with(Experts{32, 4, 0}, gpt_oss)),
      model("gpt-oss-120b", "gpt_oss", {36, 2880, 64, 8, 64, 2880, 201088, 131072},
            with(Experts{128, 4, 0}, gpt_oss)),
      model("phi3-mini", "phi3", {32, 3072, 32, 32, 96, 8192, 32064, 4096},
            {{"norm_epsilon", 1e-5}, {"window", 2047}}),
      // Not phi4, with which the names of smaller models begin.
      model("phi4-14b", "phi3", {40, 5120, 40, 10, 128, 17920, 100352, 16384},
            {{"norm_epsilon", 1e-5}, {"rope_theta", 250000}}),
      model("smollm3-3b", "smollm3", {36, 2048, 16, 4, 128, 11008, 128256, 65536},
            tied({{"norm_epsilon", 1e-6}, {"rope_theta", 5e6}, {"unrotated_interval", 4}})),
  };
}

}  // namespace sluice::engine
