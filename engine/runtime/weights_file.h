// WeightsFile: a model's weights in a safetensors file, index or folder under Hugging Face's names,
// or in a checkpoint, read in our order.
//
// Memory, threads: as WeightSource's.
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
  // kInvalidArgument where the file holds another model, or a file beside it says so
  // (model_weights.h). `queue` must outlive it.
  static Result<WeightsFile> open(aio::IoQueue& queue, const std::string& path,
                                  const ModelShape& shape);

  // Elements [first, first + values.size()) of a parameter; kCorrupt where one is not finite.
  Status read(const ParameterSpec& parameter, std::uint64_t first, std::span<float> values) {
    return reader_->read_finite(name_in_file_[parameter.name], first, values);
  }

 private:
  std::unique_ptr<WeightSource> reader_;
  std::map<std::string, std::string> name_in_file_;  // by ours
};

}  // namespace sluice::engine
