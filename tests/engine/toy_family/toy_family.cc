#include "tests/engine/toy_family/toy_family.h"

#include <array>
#include <nlohmann/json.hpp>

#include "engine/families/families.h"
#include "engine/families/make_model.h"
#include "tests/engine/toy_family/toy_layout.h"

namespace sluice::engine {
namespace {

using Json = nlohmann::json;

class ToyFamily final : public ModelFamily {
 public:
  std::string_view name() const override { return "toy"; }
  std::span<const NamedShape> presets() const override {
    static const std::vector<NamedShape> shapes = {{.name = "toy-small",
                                                    .shape = {.layers = 4,
                                                              .hidden = 32,
                                                              .heads = 2,
                                                              .context_tokens = 16,
                                                              .vocab = 64,
                                                              .ffn_hidden = 64,
                                                              .family = "toy",
                                                              .numbers = {{"toy_epsilon", 1e-5}}}}};
    return shapes;
  }
  std::span<const ShapeNumber> numbers() const override {
    static const std::vector<ShapeNumber> known = {{.key = "model.toy_epsilon",
                                                    .default_value = 1e-6,
                                                    .minimum = 0,
                                                    .maximum = 1,
                                                    .meaning = "what keeps a norm from 1/0"}};
    return known;
  }
  Status check(const ModelShape& shape) const override {
    if (shape.dropout != 0) return cannot_build("a toy has no dropout: set model.dropout to 0");
    if (shape.hidden % shape.heads != 0) return cannot_build("hidden is no multiple of heads");
    return {};
  }
  ModelLayout layout(const ModelOptions& options) const override { return toy_layout(options); }

  const ParameterNames& parameter_names(const ModelShape& /*shape*/) const override {
    static const ParameterNames names = {.prefix = "toy."};
    return names;
  }
  std::span<const std::string_view> model_types() const override {
    static constexpr std::array<std::string_view, 1> kTypes = {"toy"};
    return kTypes;
  }
  const std::map<std::string, std::string>& config_keys() const override {
    static const std::map<std::string, std::string> keys = {
        {"layers", "layers"},     {"hidden", "width"}, {"heads", "heads"},
        {"context", "positions"}, {"vocab", "tokens"}, {"ffn_hidden", "inner"}};
    return keys;
  }
  Result<HuggingFaceModel> read_config(std::string_view text) const override {
    const Json json = Json::parse(text, nullptr, false);
    const auto number = [&](const char* key) { return json.value(key, std::int64_t{0}); };
    return HuggingFaceModel{.shape = {.layers = number("layers"),
                                      .hidden = number("width"),
                                      .heads = number("heads"),
                                      .context_tokens = number("positions"),
                                      .vocab = number("tokens"),
                                      .ffn_hidden = number("inner"),
                                      .family = "toy",
                                      .numbers = {{"toy_epsilon", json.value("epsilon", 1e-6)}}},
                            .special = {},
                            .notes = {}};
  }
  std::string write_config(const HuggingFaceModel& model) const override {
    const ModelShape& shape = model.shape;
    return Json{{"model_type", "toy"},
                {"layers", shape.layers},
                {"width", shape.hidden},
                {"heads", shape.heads},
                {"positions", shape.context_tokens},
                {"tokens", shape.vocab},
                {"inner", shape.ffn()},
                {"epsilon", toy_epsilon(shape)}}
        .dump(1);
  }
};

}  // namespace

const ModelFamily& toy_family() {
  static const ToyFamily family;
  return family;
}

void add_toy_family() {
  if (find_family(toy_family().name()) != nullptr) return;
  add_family(toy_family());
  add_units(toy_family().name(), &make_toy_units);
}

}  // namespace sluice::engine
