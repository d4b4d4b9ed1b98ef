#include "tools/cli/sample_prompts.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "aio/bounded_json.h"
#include "aio/small_file.h"
#include "engine/budget/configured_model.h"
#include "engine/generate/token_sampler.h"

namespace sluice::tools {
namespace {

using nlohmann::json;

constexpr const char* kKey = "samples.prompts";

Error refusal(const std::string& what) {
  return Error(ErrorCode::kInvalidArgument, std::string(kKey) + ": " + what);
}

Result<std::string> prompt_in(const std::string& line, const std::string& place) {
  const json object = json_or_discarded<json>(line);
  const auto found = object.is_object() ? object.find("prompt") : object.end();
  if (!object.is_object() || found == object.end() || !found->is_string())
    return refusal(place + " is not an object with the text \"prompt\"");
  return found->get<std::string>();
}

Result<std::unique_ptr<TextTokens>> tokens_of(const engine::TokenizerFiles& tokenizer) {
  using Kind = engine::TokenizerFiles::Kind;
  if (tokenizer.kind == Kind::kUnknown)
    return refusal("the tokenizer of the training data is not known (" + tokenizer.note +
                   "): prepare the data with tools/prepare, or leave samples.prompts out");
  if (tokenizer.kind == Kind::kBytes) return byte_tokens();
  SLUICE_ASSIGN_OR_RETURN(std::string tool, find_tokens_tool(""));
  return tool_tokens({.tool = std::move(tool), .json = tokenizer.path});
}

}  // namespace

Result<std::vector<std::string>> parse_prompts(const std::string& path, const std::string& text) {
  std::vector<std::string> prompts;
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    const std::string place = path + ", line " + std::to_string(number);
    if (path.ends_with(".jsonl")) {
      SLUICE_ASSIGN_OR_RETURN(line, prompt_in(line, place));
    }
    if (line.empty()) return refusal(place + " has an empty prompt");
    if (prompts.size() == SamplePrompts::kMostPrompts)
      return refusal(path + " has more than " + std::to_string(SamplePrompts::kMostPrompts) +
                     " prompts");
    prompts.push_back(std::move(line));
  }
  if (prompts.empty()) return refusal(path + " has no prompt");
  return prompts;
}

Result<std::unique_ptr<SamplePrompts>> SamplePrompts::open(
    aio::IoQueue& queue, const config::Config& config, const engine::TokenizerFiles& tokenizer) {
  const std::string& path = config.samples.prompts;
  auto text = aio::read_small_file(queue, path, kMostBytes);
  if (!text.ok()) return std::move(text).error().with_context(kKey);
  SLUICE_ASSIGN_OR_RETURN(auto lines, parse_prompts(path, *text));
  std::unique_ptr<SamplePrompts> made(new SamplePrompts);
  SLUICE_ASSIGN_OR_RETURN(made->tokens_, tokens_of(tokenizer));
  made->special_ = tokenizer.special.within(config.model.vocab);
  const auto most = static_cast<std::size_t>(engine::generation_context(config));
  for (std::string& line : lines) {
    auto tokens = made->tokens_->encode(line);
    if (!tokens.ok()) return std::move(tokens).error().with_context(kKey);
    const std::string name = "prompt " + std::to_string(made->prompts_.size() + 1) + " of " + path;
    if (tokens->empty()) return refusal(name + " has no tokens");
    if (tokens->size() > most)
      return refusal(name + " has " + std::to_string(tokens->size()) +
                     " tokens, but the model sees only " + std::to_string(most) +
                     " (data.sequence_length): shorten it");
    for (const std::int64_t token : *tokens)
      if (token < 0 || token >= config.model.vocab)
        return refusal(name + " has token " + std::to_string(token) + ", but the model has " +
                       std::to_string(config.model.vocab) + " (model.vocab)");
    made->prompts_.push_back(std::move(line));
  }
  return made;
}

Result<std::vector<SampleText>> SamplePrompts::generate(engine::TrainingRun& run,
                                                        const std::function<bool()>& stop) {
  std::vector<SampleText> texts;
  for (std::size_t i = 0; i < prompts_.size() && !stop(); ++i) {
    const auto seed = static_cast<std::uint64_t>(run.config().run.seed) + i;
    SLUICE_ASSIGN_OR_RETURN(SampleText text, continue_text(prompts_[i], seed, run, stop));
    if (!stop()) texts.push_back(std::move(text));
  }
  return texts;
}

Result<SampleText> SamplePrompts::continue_text(const std::string& prompt, std::uint64_t seed,
                                                engine::TrainingRun& run,
                                                const std::function<bool()>& stop) {
  const config::Samples& wanted = run.config().samples;
  engine::TokenSampler sampler({.temperature = wanted.temperature}, seed);
  SampleText made{.prompt = prompt};
  SLUICE_ASSIGN_OR_RETURN(std::vector<std::int64_t> tokens, tokens_->encode(prompt));
  for (bool begins = true; made.tokens < wanted.tokens && !stop(); begins = false) {
    const std::vector<float> logits = run.next_logits(tokens, begins);
    if (std::ranges::any_of(logits, [](float logit) { return std::isnan(logit); }))
      return Error(ErrorCode::kInvalidArgument, "the model's logits are not finite");
    tokens = {sampler.next(logits)};
    made.ended = special_.ends_text(tokens.front());
    if (made.ended) break;
    SLUICE_ASSIGN_OR_RETURN(const std::string piece, tokens_->decode(tokens.front()));
    made.text += piece;
    ++made.tokens;
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string rest, tokens_->finish());
  made.text += rest;
  return made;
}

}  // namespace sluice::tools
