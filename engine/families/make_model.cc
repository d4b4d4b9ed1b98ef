#include "engine/families/make_model.h"

#include <map>
#include <stdexcept>
#include <string>

#include "engine/families/families.h"
#include "engine/model/decoder/decoder_units.h"
#include "engine/model/gemma3/gemma3_shape.h"
#include "engine/model/gpt2/gpt2_layout.h"
#include "engine/model/llama/llama_layout.h"
#include "engine/model/llama/llama_shape.h"
#include "engine/model/qwen3_5/qwen3_5_shape.h"

namespace sluice::engine {
namespace {

ModelUnits gemma3_units(const ModelOptions& options) {
  return make_decoder_units(gemma3_spec(options.shape), options);
}

ModelUnits gpt2_units(const ModelOptions& options) {
  return make_decoder_units(gpt2_spec(options.shape), options);
}

ModelUnits llama_units(const ModelOptions& options) {
  return make_decoder_units(llama_spec(llama_shape(options.shape)), options);
}

ModelUnits qwen3_5_units(const ModelOptions& options) {
  return make_decoder_units(qwen3_5_spec(options.shape), options);
}

std::map<std::string, MakeUnits, std::less<>>& table() {
  static std::map<std::string, MakeUnits, std::less<>> makers = {
      {std::string(kGemma3Family), &gemma3_units},
      {std::string(kGpt2Family), &gpt2_units},
      {std::string(kLlamaFamily), &llama_units},
      {std::string(kQwen35Family), &qwen3_5_units}};
  return makers;
}

void check(const ModelOptions& options) {
  const Status status = validate(options.shape);
  if (!status.ok()) throw std::invalid_argument(status.error().message());
  const Status adapters = validate(options.lora, options.shape);
  if (!adapters.ok()) throw std::invalid_argument(adapters.error().message());
  if (options.padded_vocab != 0 && options.padded_vocab < options.shape.vocab) {
    throw std::invalid_argument("the model cannot be built: padded_vocab is " +
                                std::to_string(options.padded_vocab) + ", less than vocab " +
                                std::to_string(options.shape.vocab));
  }
  if (options.chunk_rows < 0) {
    throw std::invalid_argument("the model cannot be built: chunk_rows is negative");
  }
}

}  // namespace

void add_units(std::string_view family, MakeUnits make) { table()[std::string(family)] = make; }

std::unique_ptr<Model> make_model(const ModelOptions& options) {
  check(options);
  const auto maker = table().find(options.shape.family);
  if (maker == table().end()) {
    throw std::invalid_argument(
        cannot_build("the family " + options.shape.family +
                     " has a row in the table of families, but none in that of units: this program "
                     "has no code for it, or did not call add_units()")
            .message());
  }
  return std::make_unique<Model>(options, model_layout(options), maker->second(options));
}

}  // namespace sluice::engine
