// Reads adapters from a PEFT folder: adapter_config.json, which describes them, and
// adapter_model.safetensors. PEFT features that Sluice does not implement are refused, naming key
// and value.
//
// Memory and threads: those of SafetensorsReader.
// Errors:  name the file. kInvalidArgument: adapters that Sluice does not support, or other than
//          the requested ones. kCorrupt: a non-finite number; open() reads all of them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/model/lora_recipe.h"
#include "engine/model/model_shape.h"
#include "engine/weights/dtype.h"
#include "engine/weights/safetensors_reader.h"

namespace sluice::engine {

class ModelFamily;

// The keys of adapter_config.json that Sluice uses.
struct PeftConfig {
  LoraRecipe recipe;               // targets as written; none if they are a pattern
  std::string base;                // name of the base model; may be empty
  std::string base_revision = {};  // of the base on the hub; may be empty
};
// For any text. Errors are a sentence without the file's name; kCorrupt for an invalid value.
Result<PeftConfig> parse_peft_config(std::string_view text);
// In PEFT's format.
std::string peft_config_text(const PeftConfig& config);

// A parameter's tensor name in a file, by PEFT's rules.
std::string peft_name(const ModelShape& shape, const std::string& parameter);

inline constexpr std::string_view kPeftConfigName = "adapter_config.json";
inline constexpr std::string_view kPeftWeightsName = "adapter_model.safetensors";

// The error if `folder` has no adapter_config.json; says what to give instead.
Error no_adapter(const std::string& folder);

// Which of a model's products have adapters in a folder, according to its tensors. This resolves a
// pattern in adapter_config.json. `known`: ModelFamily::adapter_targets().
Result<std::vector<std::string>> adapter_targets_in(aio::IoQueue& queue, const std::string& folder,
                                                    std::span<const std::string_view> known);

// kInvalidArgument if a folder given as a model contains only an adapter; says what to give
// instead.
Status check_is_no_adapter(aio::FileSystem& files, const std::string& folder);

class AdapterWeights {
 public:
  // Uses the targets that the file's tensors have. `queue` must outlive this.
  static Result<AdapterWeights> open(aio::IoQueue& queue, const std::string& folder,
                                     const ModelShape& shape);
  // The targets must be exactly those of `options`.
  static Result<AdapterWeights> open(aio::IoQueue& queue, const std::string& folder,
                                     const ModelOptions& options);

  const PeftConfig& config() const { return config_; }
  // Elements [first, first + values.size()) of a parameter of ModelLayout::layout().
  Status read(const std::string& parameter, std::uint64_t first, std::span<float> values) {
    return reader_->read(name_in_file_.at(parameter), first, values);
  }

 private:
  PeftConfig config_;
  std::unique_ptr<SafetensorsReader> reader_;
  std::unordered_map<std::string, std::string> name_in_file_;  // by our name
};

}  // namespace sluice::engine
