// WeightsFile: reads a model's weights in our order, from a checkpoint, or from a safetensors file,
// index or folder with Hugging Face's names.
//
// Memory, threads: those of WeightSource.
// Errors:  name the file.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/families/families.h"
#include "engine/model/model_layout.h"
#include "engine/weights/safetensors_header.h"
#include "engine/weights/weight_source.h"

namespace sluice::engine {

class WeightsFile {
 public:
  // kInvalidArgument if the file, or a configuration file next to it, describes another model
  // (model_weights.h). `queue` must outlive it.
  static Result<WeightsFile> open(aio::IoQueue& queue, const std::string& path,
                                  const ModelShape& shape);

  // Reads elements [first, first + values.size()) of a parameter; kCorrupt if one is not finite.
  Status read(const ParameterSpec& parameter, std::uint64_t first, std::span<float> values) {
    return reader_->read_finite(name_in_file_[parameter.name], first, values);
  }

 private:
  std::unique_ptr<WeightSource> reader_;
  std::map<std::string, std::string> name_in_file_;  // by our name
};

}  // namespace sluice::engine
