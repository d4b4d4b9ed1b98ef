#include "engine/families/make_model.h"

#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "engine/families/families.h"
#include "engine/model/decoder/decoder_units.h"

namespace sluice::engine {
namespace {

// For families that are no decoders.
std::map<std::string, MakeUnits, std::less<>>& table() {
  static std::map<std::string, MakeUnits, std::less<>> makers;
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
  const std::optional<DecoderSpec> decoder = decoder_spec(options.shape);
  if (maker == table().end() && !decoder) {
    throw std::invalid_argument(
        cannot_build("the family " + options.shape.family +
                     " has a row in the table of families, but none in that of units: this program "
                     "has no code for it, or did not call add_units()")
            .message());
  }
  ModelUnits units =
      maker != table().end() ? maker->second(options) : make_decoder_units(*decoder, options);
  return std::make_unique<Model>(options, model_layout(options), std::move(units));
}

}  // namespace sluice::engine
