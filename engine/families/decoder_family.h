// DecoderFamily: the ModelFamily of a FamilyTable. Without LibTorch.
//
// Memory:  keeps the table for the whole program. Threads: any.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/families/family_table.h"

namespace sluice::engine {

class DecoderFamily final : public ModelFamily {
 public:
  explicit DecoderFamily(FamilyTable table);

  // The shape may lack numbers, which then have their defaults.
  DecoderSpec spec(const ModelShape& shape) const;
  const FamilyTable& table() const { return table_; }

  std::string_view name() const override { return table_.name; }
  std::span<const NamedShape> presets() const override { return table_.presets; }
  std::span<const ShapeNumber> numbers() const override { return numbers_; }
  std::span<const ShapeList> lists() const override { return table_.lists; }
  DefaultNumbers default_numbers() const override { return table_.defaults; }
  void resolve_derived(ModelShape& shape) const override;
  Status check(const ModelShape& shape) const override;
  std::span<const std::string_view> adapter_targets(const ModelShape& shape) const override;
  ModelLayout layout(const ModelOptions& options) const override;
  const ParameterNames& parameter_names(const ModelShape& shape) const override;
  std::span<const std::string_view> model_types() const override { return types_; }
  const std::map<std::string, std::string>& config_keys() const override { return keys_; }
  Result<HuggingFaceModel> read_config(std::string_view text) const override;
  std::string write_config(const HuggingFaceModel& model) const override;

 private:
  FamilyTable table_;
  std::vector<ShapeNumber> numbers_;
  std::vector<std::string_view> types_;
  std::map<std::string, std::string> keys_;
  // By class; and whether its head is tied.
  std::map<std::string_view, std::vector<std::string_view>> targets_;
  std::map<std::pair<std::string_view, bool>, ParameterNames> names_;
};

}  // namespace sluice::engine
