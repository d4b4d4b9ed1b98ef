// Weights as tensors: read from checkpoints and safetensors files, and written to them.
#include "python/native/tool_bindings.h"
// The include above must come first.
#include <ATen/ATen.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aio/io_watchdog.h"
#include "aio/units.h"
#include "engine/checkpoint/checkpoint_names.h"
#include "engine/checkpoint/checkpoint_reader.h"
#include "engine/exchange/checkpoint_weights.h"
#include "engine/weights/safetensors_reader.h"
#include "engine/weights/safetensors_writer.h"
#include "tools/session/checkpoint_argument.h"
#include "tools/session/export_checkpoint.h"
#include "tools/session/open_queue.h"

namespace py = pybind11;

namespace sluice::tools {
namespace {

using engine::must_be;
using engine::value_of;

struct OpenFiles {
  aio::IoWatchdog watchdog{aio::IoWatchdog::Options{}};
  FileQueue files = value_of(open_queue(watchdog));
};

at::ScalarType scalar_type(engine::DType type) {
  switch (type) {
    case engine::DType::kBF16:
      return at::kBFloat16;
    case engine::DType::kF16:
      return at::kHalf;
    case engine::DType::kF64:
      return at::kDouble;
    default:
      return at::kFloat;
  }
}

engine::DType stored_type(const std::string& name, const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return engine::DType::kF32;
    case at::kBFloat16:
      return engine::DType::kBF16;
    case at::kHalf:
      return engine::DType::kF16;
    default:
      throw engine::RefusedError(name + " is of " + std::string(toString(tensor.scalar_type())) +
                                 ", but save() writes only tensors of fp32, bf16 and fp16");
  }
}

std::vector<std::int64_t> sizes_of(const engine::TensorInfo& tensor) {
  return {tensor.shape.begin(), tensor.shape.end()};
}

// Whether the path is a run's directory, or the folder of one checkpoint.
bool is_of_a_run(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  return engine::parse_folder_name(engine::last_name(path)) ||
         fs::exists(path + "/" + std::string(engine::kManifestName), error) ||
         fs::is_directory(path + "/" + std::string(engine::kCheckpointsFolder), error);
}

using Weights = std::vector<std::pair<std::string, at::Tensor>>;

template <typename Read>
at::Tensor read_tensor(const engine::TensorInfo& tensor, at::ScalarType type, const Read& read) {
  at::Tensor values = at::empty(sizes_of(tensor), at::kFloat);
  must_be(read(tensor.name, std::span(values.mutable_data_ptr<float>(),
                                      static_cast<std::size_t>(values.numel()))));
  return type == at::kFloat ? values : values.to(type);
}

Weights load(const std::string& path, const std::string& checkpoint,
             std::optional<at::ScalarType> type) {
  OpenFiles open;
  Weights weights;
  if (!checkpoint.empty() || is_of_a_run(path)) {
    const CheckpointArgument from = value_of(find_checkpoint(*open.files.queue, path, checkpoint));
    const auto reader =
        value_of(engine::CheckpointReader::open(*open.files.queue, from.path, {.moments = false}));
    for (const engine::TensorInfo& tensor : reader->parameters())
      weights.emplace_back(tensor.name,
                           read_tensor(tensor, type.value_or(at::kFloat),
                                       [&](const std::string& name, std::span<float> to) {
                                         return reader->read_master(name, 0, to);
                                       }));
    return weights;
  }
  const auto reader = value_of(engine::SafetensorsReader::open(*open.files.queue, path));
  for (const engine::TensorInfo& tensor : reader->tensors())
    weights.emplace_back(tensor.name,
                         read_tensor(tensor, type.value_or(scalar_type(tensor.dtype)),
                                     [&](const std::string& name, std::span<float> to) {
                                       return reader->read(name, 0, to);
                                     }));
  return weights;
}

void save(const Weights& weights, const std::string& path, std::uint64_t max_shard_bytes) {
  OpenFiles open;
  std::vector<engine::TensorSpec> specs;
  for (const auto& [name, tensor] : weights) {
    engine::TensorSpec spec{.name = name, .dtype = stored_type(name, tensor)};
    for (const std::int64_t size : tensor.sizes())
      spec.shape.push_back(static_cast<std::uint64_t>(size));
    specs.push_back(std::move(spec));
  }
  engine::SafetensorsWriter::Options options;
  options.path = path;
  options.max_shard_bytes = max_shard_bytes;
  const auto writer =
      value_of(engine::SafetensorsWriter::create(*open.files.queue, options, specs));
  for (const auto& [name, tensor] : weights) {
    const at::Tensor values = tensor.detach().to(at::kCPU, at::kFloat).contiguous();
    must_be(writer->append(
        name, std::span(values.const_data_ptr<float>(), static_cast<std::size_t>(values.numel()))));
  }
  must_be(writer->finish());
}

engine::DType dtype_named(const std::string& name) {
  if (name == "fp32") return engine::DType::kF32;
  if (name == "bf16") return engine::DType::kBF16;
  if (name == "fp16") return engine::DType::kF16;
  throw engine::RefusedError("dtype is \"" + name + "\"; it must be fp32, bf16 or fp16");
}

std::string export_to(const std::string& from, const std::string& to, const std::string& checkpoint,
                      const std::string& dtype, std::uint64_t max_shard_bytes,
                      const std::string& tokenizer, bool merged, const std::string& base) {
  OpenFiles open;
  const ExportedCheckpoint made = value_of(export_checkpoint(
      *open.files.queue, {.from = from,
                          .to = to,
                          .checkpoint = checkpoint,
                          .dtype = dtype.empty() ? std::nullopt : std::optional(dtype_named(dtype)),
                          .max_shard_bytes = max_shard_bytes,
                          .tokenizer = tokenizer,
                          .merged = merged,
                          .base = base}));
  warn_of_exported(made.tokenizer);
  return made.path;
}

}  // namespace

void define_weights(py::module_& module) {
  module.def(
      "load_weights",
      [](const std::string& path, const std::string& checkpoint,
         std::optional<at::ScalarType> type) {
        Weights weights;
        {
          const py::gil_scoped_release no_gil;
          weights = load(path, checkpoint, type);
        }
        py::dict dict;
        for (auto& [name, tensor] : weights) dict[py::str(name)] = py::cast(std::move(tensor));
        return dict;
      },
      py::arg("path"), py::arg("checkpoint"), py::arg("dtype"));
  module.def("save_weights", &save, py::arg("weights"), py::arg("path"), py::arg("max_shard_bytes"),
             engine::NoGil());
  module.def("export_checkpoint", &export_to, py::arg("from_"), py::arg("to"),
             py::arg("checkpoint"), py::arg("dtype"), py::arg("max_shard_bytes"),
             py::arg("tokenizer"), py::arg("merged"), py::arg("base"), engine::NoGil());
  module.def("is_of_a_run", &is_of_a_run);
}

}  // namespace sluice::tools
