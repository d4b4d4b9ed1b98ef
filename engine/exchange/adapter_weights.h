// Adapters in a folder of PEFT's: adapter_config.json, which says what they are, and
// adapter_model.safetensors. What PEFT knows and Sluice does not compute is refused by key and
// value.
//
// Memory, threads: as SafetensorsReader's.
// Errors:  name the file. kInvalidArgument: adapters that Sluice does not have, or others than were
//          asked for. kCorrupt: a number that is not finite; open() reads all of them.
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

// adapter_config.json as far as Sluice has it.
struct PeftConfig {
  LoraRecipe recipe;  // targets as they are written, unless that is a pattern: then none
  std::string base;   // the model that it names; may be empty
};
// A sentence without the file's name, for any text. kCorrupt where a value is none.
Result<PeftConfig> parse_peft_config(std::string_view text);
// As PEFT reads it.
std::string peft_config_text(const PeftConfig& config);

// In a file, by PEFT's rules.
std::string peft_name(const ModelShape& shape, const std::string& parameter);

inline constexpr std::string_view kPeftConfigName = "adapter_config.json";
inline constexpr std::string_view kPeftWeightsName = "adapter_model.safetensors";

// That `folder` has no adapter_config.json, and what to name.
Error no_adapter(const std::string& folder);

// The products of a family that the adapters in a folder have, by its tensors: what a pattern in
// its file means.
Result<std::vector<std::string>> adapter_targets_in(aio::IoQueue& queue, const std::string& folder,
                                                    const ModelFamily& family);

// kInvalidArgument where a folder that is named as a model's holds an adapter alone, with what to
// name instead.
Status check_is_no_adapter(aio::FileSystem& files, const std::string& folder);

class AdapterWeights {
 public:
  // With the targets that the file's tensors have. `queue` must outlive it.
  static Result<AdapterWeights> open(aio::IoQueue& queue, const std::string& folder,
                                     const ModelShape& shape);
  // Which have to be just those of `options`.
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
  std::unordered_map<std::string, std::string> name_in_file_;  // by ours
};

}  // namespace sluice::engine
