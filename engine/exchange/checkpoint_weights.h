// CheckpointWeights: a WeightSource for a checkpoint that several ranks have written. The weights
// of one rank's checkpoint are a safetensors set, which any reader can read.
//
// Memory, threads and errors are those of CheckpointReader; all data is checked against the
// manifest.
#pragma once

#include <memory>
#include <string>

#include "aio/io_queue.h"
#include "engine/checkpoint/checkpoint_reader.h"
#include "engine/weights/weight_source.h"

namespace sluice::engine {

class CheckpointWeights final : public WeightSource {
 public:
  // Null if the folder is no such checkpoint. `queue` must outlive this.
  static Result<std::unique_ptr<CheckpointWeights>> open(aio::IoQueue& queue,
                                                         const std::string& folder);

  std::span<const TensorInfo> tensors() const override { return reader_->parameters(); }
  const TensorInfo* find(std::string_view name) const override { return reader_->find(name); }
  Status read(std::string_view name, std::uint64_t first_element,
              std::span<float> values) override {
    return reader_->read_master(name, first_element, values);
  }

  std::string place_of(std::string_view /*name*/) const override { return folder_; }

 private:
  CheckpointWeights(std::string folder, std::unique_ptr<CheckpointReader> reader)
      : folder_(std::move(folder)), reader_(std::move(reader)) {}

  const std::string folder_;
  const std::unique_ptr<CheckpointReader> reader_;
};

}  // namespace sluice::engine
