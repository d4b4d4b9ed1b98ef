#include "tests/engine/families/data_families.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "engine/families/families.h"

namespace sluice::engine {
namespace {

using Json = nlohmann::json;

class DataFamily : public ModelFamily {
 public:
  explicit DataFamily(std::string_view name) : name_(name) {}
  std::string_view name() const final { return name_; }
  // A GPT-2's.
  ModelLayout layout(const ModelOptions& options) const override {
    ModelOptions of_gpt2 = options;
    of_gpt2.shape.family = kGpt2Family;
    of_gpt2.shape.numbers.clear();
    return model_layout(of_gpt2);
  }
  const ParameterNames& parameter_names(const ModelShape& /*shape*/) const override {
    static const ParameterNames names = {.prefix = "data."};
    return names;
  }
  std::span<const std::string_view> model_types() const override { return {&name_, 1}; }
  const std::map<std::string, std::string>& config_keys() const override {
    static const std::map<std::string, std::string> keys = {{"layers", "depth"},
                                                            {"hidden", "width"},
                                                            {"heads", "heads"},
                                                            {"context", "positions"},
                                                            {"vocab", "tokens"},
                                                            {"ffn_hidden", "inner"},
                                                            {"data_heads", "num_data_heads"}};
    return keys;
  }
  // A number that the file leaves out stays unset.
  Result<HuggingFaceModel> read_config(std::string_view text) const override {
    const Json json = Json::parse(text, nullptr, false);
    const auto size = [&](const char* key) { return json.value(key, std::int64_t{0}); };
    HuggingFaceModel model;
    model.shape = {.layers = size("depth"),
                   .hidden = size("width"),
                   .heads = size("heads"),
                   .context_tokens = size("positions"),
                   .vocab = size("tokens"),
                   .ffn_hidden = size("inner"),
                   .family = std::string(name()),
                   .numbers = {}};
    if (json.contains("num_data_heads"))
      model.shape.numbers["data_heads"] = json.at("num_data_heads").get<double>();
    return model;
  }
  std::string write_config(const HuggingFaceModel& /*model*/) const override { return "{}"; }

 private:
  std::string_view name_;
};

class Ante final : public DataFamily {
 public:
  Ante() : DataFamily("ante") {}
  // The presets leave out the family's numbers.
  std::span<const NamedShape> presets() const override {
    static const std::vector<NamedShape> shapes = {{.name = "ante-small",
                                                    .shape = {.layers = 2,
                                                              .hidden = 32,
                                                              .heads = 4,
                                                              .context_tokens = 16,
                                                              .vocab = 61,
                                                              .dropout = 0.25,
                                                              .ffn_hidden = 96,
                                                              .family = "ante",
                                                              .numbers = {}}}};
    return shapes;
  }
  std::span<const ShapeNumber> numbers() const override {
    static const std::vector<ShapeNumber> known = {{.key = "model.data_heads",
                                                    .default_value = 4,
                                                    .minimum = 1,
                                                    .maximum = 8,
                                                    .meaning = "heads of keys and values"},
                                                   {.key = "model.data_theta",
                                                    .default_value = 10000,
                                                    .minimum = 1,
                                                    .meaning = "base of the rotary positions"}};
    return known;
  }
  Status check(const ModelShape& shape) const override {
    if (shape.hidden % shape.heads == 0) return {};
    return cannot_build("an ante's hidden is a multiple of its heads");
  }
};

class Bellum final : public DataFamily {
 public:
  Bellum() : DataFamily("bellum") {}
  std::span<const ShapeNumber> numbers() const override {
    static const std::vector<ShapeNumber> known = {{.key = "model.data_heads",
                                                    .default_value = 2,
                                                    .minimum = 2,
                                                    .maximum = 64,
                                                    .meaning = "heads of keys and values"},
                                                   {.key = "model.head_size",
                                                    .default_value = 128,
                                                    .minimum = 1,
                                                    .meaning = "numbers of a head"}};
    return known;
  }
  DefaultNumbers default_numbers() const override { return {.dropout = 0, .ffn_multiplier = 2.5}; }
  // The heads together may be wider or narrower than hidden.
  Status check(const ModelShape& shape) const override {
    const auto size = static_cast<std::int64_t>(shape.numbers.at("head_size"));
    if (size % 2 == 0) return {};
    return cannot_build("a bellum's head_size is even");
  }
};

}  // namespace

const ModelFamily& ante_family() {
  static const Ante family;
  return family;
}

const ModelFamily& bellum_family() {
  static const Bellum family;
  return family;
}

void add_data_families() {
  if (find_family(ante_family().name()) != nullptr) return;
  add_family(ante_family());
  add_family(bellum_family());
}

}  // namespace sluice::engine
