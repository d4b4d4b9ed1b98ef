#include "engine/exchange/export_model.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "aio/log.h"
#include "aio/small_file.h"
#include "engine/exchange/model_card.h"
#include "engine/exchange/stored_shape.h"
#include "engine/families/families.h"
#include "engine/weights/safetensors_writer.h"

namespace sluice::engine {
namespace {

constexpr std::uint64_t kElementsAtOnce = std::uint64_t{1} << 20;

std::string config_text(const ModelShape& shape, const ExportOptions& options) {
  return family_of(shape).write_config({.shape = shape,
                                        .special = options.tokenizer.special.within(shape.vocab),
                                        .dtype = options.dtype,
                                        .notes = {}});
}

Status check_parameters(const CheckpointReader& checkpoint, const ModelShape& shape) {
  const std::vector<TensorSpec> wanted = parameter_specs(shape, DType::kF32);
  const auto same = [](const TensorInfo& stored, const TensorSpec& spec) {
    return static_cast<const TensorSpec&>(stored) == spec;
  };
  const auto stored = checkpoint.parameters();
  if (std::equal(stored.begin(), stored.end(), wanted.begin(), wanted.end(), same)) return {};
  return Error(ErrorCode::kCorrupt,
               "the checkpoint's parameters are not those of the model that it names");
}

Result<Exported> write_weights(aio::IoQueue& queue, CheckpointReader& checkpoint,
                               const ModelShape& shape, const ExportOptions& options) {
  SafetensorsWriter::Options files;
  files.path = options.folder + "/model.safetensors";
  files.max_shard_bytes = options.max_shard_bytes;
  const ParameterNames& names = family_of(shape).parameter_names(shape);
  std::vector<TensorSpec> tensors = parameter_specs(shape, options.dtype);
  for (TensorSpec& tensor : tensors) tensor.name = names.exported(tensor.name);
  SLUICE_ASSIGN_OR_RETURN(const auto writer,
                          SafetensorsWriter::create(queue, files, std::move(tensors)));
  std::vector<float> values;
  std::uint64_t done = 0;
  for (const TensorInfo& parameter : checkpoint.parameters()) {
    for (std::uint64_t first = 0; first < parameter.elements; first += kElementsAtOnce) {
      values.resize(std::min(kElementsAtOnce, parameter.elements - first));
      SLUICE_RETURN_IF_ERROR(checkpoint.read_master(parameter.name, first, values));
      SLUICE_RETURN_IF_ERROR(writer->append(names.exported(parameter.name), values));
      done += values.size();
      if (options.progress) options.progress(done, checkpoint.manifest().elements);
    }
  }
  SLUICE_RETURN_IF_ERROR(writer->finish());
  return Exported{.bytes = writer->total_bytes(), .files = writer->paths().size()};
}

Result<Exported> write_folder(aio::IoQueue& queue, CheckpointReader& checkpoint,
                              const ExportOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(const ModelShape shape, stored_shape(checkpoint.state().run));
  SLUICE_RETURN_IF_ERROR(check_parameters(checkpoint, shape));
  SLUICE_ASSIGN_OR_RETURN(const Exported exported,
                          write_weights(queue, checkpoint, shape, options));
  TokenizerFiles tokenizer = options.tokenizer;
  tokenizer.special = tokenizer.special.within(shape.vocab);
  SLUICE_RETURN_IF_ERROR(write_tokenizer(queue, tokenizer, options.folder, shape.context_tokens));
  SLUICE_RETURN_IF_ERROR(
      write_model_papers(queue, checkpoint,
                         {.shape = shape,
                          .dtype = options.dtype,
                          .has_tokenizer = tokenizer.kind != TokenizerFiles::Kind::kUnknown,
                          .run_directory = options.run_directory,
                          .folder = options.folder}));
  SLUICE_RETURN_IF_ERROR(
      aio::write_small_file(queue, options.folder + "/config.json", config_text(shape, options)));
  return exported;
}

}  // namespace

Status check_empty(aio::FileSystem& files, const std::string& folder) {
  const auto listed = files.list(folder);
  if (!listed.ok())
    return listed.error().code() == ErrorCode::kNotFound ? Status() : Status(listed.error());
  if (listed->empty()) return {};
  return Error(ErrorCode::kAlreadyExists,
               folder + " is not empty: name a folder that is empty or not there");
}

Result<Exported> export_model(aio::IoQueue& queue, CheckpointReader& checkpoint,
                              const ExportOptions& options) {
  aio::FileSystem& files = queue.backend().files();
  SLUICE_RETURN_IF_ERROR(check_empty(files, options.folder));
  SLUICE_RETURN_IF_ERROR(files.make_directories(options.folder));
  auto exported = write_folder(queue, checkpoint, options);
  if (exported.ok()) return exported;
  const auto left = files.list(options.folder);
  if (left.ok() && left->empty()) {
    const Status removed = files.remove(options.folder);
    if (!removed.ok()) log::warning(removed.error().message());
  }
  return exported;
}

}  // namespace sluice::engine
