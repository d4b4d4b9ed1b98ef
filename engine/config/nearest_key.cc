#include "engine/config/nearest_key.h"

#include <algorithm>
#include <set>
#include <vector>

#include "engine/config/key_table.h"

namespace sluice::config {
namespace {

constexpr std::size_t kLongestWord = 64;  // longer words are not compared
constexpr std::size_t kFewKeys = 12;

std::string_view section_of(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

std::string_view last_of(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

// The words that may appear directly in a section: its keys and its sub-sections.
std::set<std::string_view> words_of(std::string_view section) {
  std::set<std::string_view> words;
  for (const Key& key : all_keys()) {
    std::string_view rest = key.path;
    if (!section.empty()) {
      if (!rest.starts_with(section) || rest.size() <= section.size() ||
          rest[section.size()] != '.') {
        continue;
      }
      rest.remove_prefix(section.size() + 1);
    }
    words.insert(rest.substr(0, rest.find('.')));
  }
  return words;
}

template <typename Words>
std::string nearest_word(std::string_view word, const Words& words) {
  std::string nearest;
  const int length = static_cast<int>(word.size());
  int best = (length <= 3 ? 1 : std::max(2, length / 3)) + 1;
  if (word.size() <= kLongestWord) {
    for (const std::string_view candidate : words) {
      const int distance = edit_distance(word, candidate);
      // If it keeps no letter of the candidate, it is not a misspelling of it.
      if (distance < best && distance < static_cast<int>(candidate.size())) {
        best = distance;
        nearest = candidate;
      }
    }
  }
  return nearest;
}

std::string sections_with(std::string_view word) {
  std::string text;
  for (const Key& key : all_keys()) {
    if (last_of(key.path) != word || section_of(key.path).empty()) continue;
    if (!text.empty()) text += " and ";
    text += section_of(key.path);
  }
  return text;
}

struct OtherWord {
  std::string_view word;
  std::string_view key;  // ours
};
// Names in transformers' Trainer, TRL and PEFT for keys with another name here.
constexpr OtherWord kOtherWords[] = {
    {"learning_rate", "optimizer.params.lr"},
    {"adam_beta1", "optimizer.params.betas"},
    {"adam_beta2", "optimizer.params.betas"},
    {"adam_epsilon", "optimizer.params.eps"},
    {"max_grad_norm", "gradient_clipping"},
    {"lr_scheduler_type", "scheduler.type"},
    {"num_train_epochs", "run.epochs"},
    {"max_steps", "run.steps"},
    {"per_device_train_batch_size", "train_micro_batch_size_per_gpu"},
    {"max_seq_length", "data.sequence_length"},
    {"max_length", "data.sequence_length"},
    {"model_name_or_path", "model.path"},
    {"name_or_path", "model.path"},
    {"output_dir", "run.dir"},
    {"logging_steps", "run.log_every"},
    {"eval_steps", "run.eval_every"},
    {"save_steps", "run.checkpoint_every"},
    {"save_total_limit", "run.keep_last"},
    {"load_best_model_at_end", "run.keep_best"},
    {"early_stopping_patience", "early_stopping.patience"},
    {"early_stopping_threshold", "early_stopping.min_delta"},
    {"data_seed", "data.shuffle_seed"},
    {"load_in_8bit", "recipe.lora.base_bits (8)"},
    {"load_in_4bit", "recipe.lora.base_bits (4)"},
    {"bnb_4bit_quant_type", "recipe.lora.base_bits (4: nf4)"},
    {"bnb_4bit_use_double_quant", "recipe.lora.double_quant"},
    {"num_experts", "model.experts"},
    {"num_local_experts", "model.experts"},
    {"num_experts_per_tok", "model.experts_per_token"},
    {"moe_intermediate_size", "model.expert_width"},
};

// Our key for one of these names; empty for any other word.
std::string_view key_of_other_word(std::string_view word) {
  for (const OtherWord& other : kOtherWords)
    if (other.word == word) return other.key;
  return {};
}

}  // namespace

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

std::string suggest_key(std::string_view unknown_path) {
  const std::string_view section = section_of(unknown_path);
  const std::string_view word = last_of(unknown_path);
  const std::string prefix = section.empty() ? "" : std::string(section) + ".";
  if (const std::string_view ours = key_of_other_word(word); !ours.empty())
    return "Sluice's key is " + std::string(ours);
  const auto words = words_of(section);
  if (const std::string nearest = nearest_word(word, words); !nearest.empty()) {
    return "did you mean " + prefix + nearest + "?";
  }
  if (const std::string elsewhere = sections_with(word); !elsewhere.empty()) {
    return std::string(word) + " is a key of " + elsewhere;
  }
  if (find_key(word) != nullptr || is_section(word)) {
    return std::string(word) + " is at the top level";
  }
  if (words.empty() || words.size() > kFewKeys) return "no key is similar";
  std::string known;
  for (const std::string_view name : words)
    known += (known.empty() ? "" : ", ") + std::string(name);
  return (section.empty() ? "keys are " : std::string(section) + " has ") + known;
}

std::string nearest_choice(std::string_view word, std::string_view choices) {
  return nearest_word(word, split_choices(choices));
}

}  // namespace sluice::config
