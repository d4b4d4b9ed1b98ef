// StackedWriter: writes a model's parameters to safetensors under their names in exports, with the
// matrices of experts in stacks if the model's names say so (ExpertStack).
//
// Memory:  the writer's, and for stacks in turn one expert in fp32.
// Threads, errors, files: SafetensorsWriter's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/weights/parameter_names.h"
#include "engine/weights/safetensors_writer.h"

namespace sluice::engine {

class StackedWriter {
 public:
  // `parameters`: the model's, in flat order, with the dtype of the files. `names` must outlive it.
  static Result<std::unique_ptr<StackedWriter>> create(aio::IoQueue& queue,
                                                       SafetensorsWriter::Options options,
                                                       std::span<const TensorSpec> parameters,
                                                       const ParameterNames& names);

  // Appends the next values of a parameter, in the order of create().
  Status append(std::string_view parameter, std::span<const float> values);
  Status finish() { return writer_->finish(); }

  std::uint64_t total_bytes() const { return writer_->total_bytes(); }
  std::vector<std::string> paths() const { return writer_->paths(); }

 private:
  // A parameter and its tensor in the file.
  struct Target {
    std::string parameter;
    std::string tensor;
    const ExpertStack* stack = nullptr;  // in turn; null: values are written as they come
    std::uint64_t part = 0;
    std::uint64_t rows = 0;
    std::uint64_t columns = 0;
  };

  StackedWriter() = default;
  std::vector<TensorSpec> lay_out(std::span<const TensorSpec> parameters,
                                  const ParameterNames& names);
  Status write_expert(const Target& target);

  std::unique_ptr<SafetensorsWriter> writer_;
  std::vector<Target> targets_;
  std::size_t next_ = 0;          // the target of the next values
  std::uint64_t done_ = 0;        // its elements that came
  std::vector<float> collected_;  // of an expert: its parts, each [rows, columns]
};

}  // namespace sluice::engine
