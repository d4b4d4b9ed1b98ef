#include "engine/exchange/export_model.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "aio/executor.h"
#include "aio/log.h"
#include "aio/result.h"
#include "aio/small_file.h"
#include "engine/checkpoint/checkpoint_reader.h"
#include "engine/exchange/adapter_weights.h"
#include "engine/exchange/base_fingerprint.h"
#include "engine/exchange/model_card.h"
#include "engine/exchange/model_weights.h"
#include "engine/exchange/stored_shape.h"
#include "engine/families/families.h"
#include "engine/model/lora_recipe.h"
#include "engine/weights/safetensors_writer.h"
#include "engine/weights/stacked_writer.h"

namespace sluice::engine {
namespace {

struct MergedWeights {
  const ModelShape& shape;
  ModelWeights& base;
  ExpectedBase asked;  // its path
  CheckpointReader& adapters;
  LoraRecipe recipe;
  aio::Executor& executor;
};

using TakeValues = std::function<Status(const std::string& parameter, std::span<const float>)>;

constexpr std::uint64_t kMergedAtOnce = std::uint64_t{1} << 22;
constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kNameA = ".lora_A.weight";

// The adapter of one matrix [rows, columns].
struct WholeAdapter {
  std::vector<float> a;  // [rank, columns]
  std::vector<float> b;  // [rows, rank]
};

// Adapters of experts, as they are stored: those of all experts of a block in two matrices.
class ExpertMerger {
 public:
  ExpertMerger(const ModelShape& shape, const LoraRecipe& recipe, CheckpointReader& checkpoint)
      : names_(family_of(shape).parameter_names(shape)),
        experts_(static_cast<std::uint64_t>(
            shape.numbers.contains("experts") ? shape.numbers.at("experts") : 0)),
        recipe_(recipe),
        checkpoint_(checkpoint) {}

  // The adapter of an expert's matrix; nothing for another parameter.
  Result<std::optional<WholeAdapter>> find(const TensorSpec& matrix) {
    if (!recipe_.adapts_experts()) return std::optional<WholeAdapter>();
    for (const ExpertStack& stack : names_.stacks) {
      const std::size_t at = matrix.name.find("." + std::string(stack.experts) + ".");
      if (at == std::string::npos) continue;
      const std::string block = matrix.name.substr(0, at + 1);
      const auto number = std::string_view(matrix.name).substr(at + stack.experts.size() + 2);
      std::uint64_t expert = 0;  // unless it is a tensor of all experts, such as their biases
      if (std::from_chars(number.begin(), number.end(), expert).ec != std::errc()) continue;
      for (std::uint64_t part = 0; part < stack.count(); ++part)
        if (stack.parameter(block, expert, part) == matrix.name)
          return read(block, stack, expert, part, matrix);
    }
    return std::optional<WholeAdapter>();
  }

 private:
  Result<std::optional<WholeAdapter>> read(const std::string& block, const ExpertStack& stack,
                                           std::uint64_t expert, std::uint64_t part,
                                           const TensorSpec& matrix) {
    const auto rank = static_cast<std::uint64_t>(recipe_.rank);
    // PEFT's names: the adapter of down wraps that of gate and up.
    const std::string module = block + "mlp.experts" + (stack.count() == 2 ? ".base_layer" : "");
    WholeAdapter adapter;
    adapter.a.resize(rank * matrix.shape[1]);
    SLUICE_RETURN_IF_ERROR(
        checkpoint_.read_master(module + ".lora_A.weight", expert * adapter.a.size(), adapter.a));
    const std::uint64_t rows = stack.count() * matrix.shape[0];
    if (module != module_) {  // one after the other, as the base has them
      b_.resize(rows * rank * experts_);
      SLUICE_RETURN_IF_ERROR(checkpoint_.read_master(module + ".lora_B.weight", 0, b_));
      module_ = module;
    }
    adapter.b.resize(matrix.shape[0] * rank);
    const bool in_turn = stack.order == ExpertStack::Order::kInTurn;
    for (std::uint64_t row = 0; row < matrix.shape[0]; ++row) {
      const std::uint64_t joined =
          in_turn ? row * stack.count() + part : part * matrix.shape[0] + row;
      for (std::uint64_t k = 0; k < rank; ++k)
        adapter.b[row * rank + k] = b_[(joined * rank + k) * experts_ + expert];
    }
    return std::optional(std::move(adapter));
  }

  const ParameterNames& names_;
  const std::uint64_t experts_;
  const LoraRecipe& recipe_;
  CheckpointReader& checkpoint_;
  std::string module_;    // of b_
  std::vector<float> b_;  // of all experts, as stored
};

Result<WholeAdapter> read_adapter(CheckpointReader& checkpoint, const std::string& module,
                                  const TensorSpec& matrix, std::uint64_t rank) {
  WholeAdapter adapter;
  adapter.a.resize(rank * matrix.shape[1]);
  adapter.b.resize(matrix.shape[0] * rank);
  SLUICE_RETURN_IF_ERROR(checkpoint.read_master(module + std::string(kNameA), 0, adapter.a));
  SLUICE_RETURN_IF_ERROR(checkpoint.read_master(module + ".lora_B.weight", 0, adapter.b));
  return adapter;
}

// Adds one row of the product to `row`.
void add_row(const WholeAdapter& adapter, std::uint64_t index, std::uint64_t rank, float scale,
             std::span<float> row, std::span<float> sum) {
  std::fill(sum.begin(), sum.end(), 0.0F);
  for (std::uint64_t k = 0; k < rank; ++k) {
    const float factor = adapter.b[index * rank + k];
    const float* const a = adapter.a.data() + k * row.size();
    for (std::size_t i = 0; i < row.size(); ++i) sum[i] += factor * a[i];
  }
  for (std::size_t i = 0; i < row.size(); ++i) row[i] += scale * sum[i];
}

void add_rows(const MergedWeights& merged, const WholeAdapter& adapter, std::uint64_t first_row,
              std::uint64_t columns, std::span<float> values) {
  const auto rank = static_cast<std::uint64_t>(merged.recipe.rank);
  const auto scale = static_cast<float>(merged.recipe.scale());
  const std::uint64_t rows = values.size() / columns;
  const auto pieces = std::min(static_cast<std::uint64_t>(merged.executor.threads()),
                               std::max(rows, std::uint64_t{1}));
  merged.executor.run(static_cast<int>(pieces), [&](int piece) {
    const auto index = static_cast<std::uint64_t>(piece);
    std::vector<float> sum(columns);
    for (std::uint64_t row = rows * index / pieces; row < rows * (index + 1) / pieces; ++row)
      add_row(adapter, first_row + row, rank, scale, values.subspan(row * columns, columns), sum);
  });
}

// The base with its adapters added, W + scale * B A in fp32: every parameter in order, range by
// range. At the end: kInvalidArgument if the fingerprint of the base is not that of the adapters'
// base.
Status merge_weights(const MergedWeights& merged, const TakeValues& take) {
  BaseFingerprint fingerprint;
  ExpertMerger experts(merged.shape, merged.recipe, merged.adapters);
  std::vector<float> values;
  for (std::size_t i = 0; i < merged.base.parameters.size(); ++i) {
    const TensorSpec& spec = merged.base.parameters[i];
    const std::string& in_file = merged.base.names[i];
    const std::uint64_t elements = merged.base.reader->find(in_file)->elements;
    const std::string module = spec.name.substr(0, spec.name.size() - kWeight.size());
    SLUICE_ASSIGN_OR_RETURN(std::optional<WholeAdapter> adapter, experts.find(spec));
    const bool is_adapted = spec.name.ends_with(kWeight) &&
                            merged.adapters.find(module + std::string(kNameA)) != nullptr;
    if (!adapter && is_adapted) {
      SLUICE_ASSIGN_OR_RETURN(adapter,
                              read_adapter(merged.adapters, module, spec,
                                           static_cast<std::uint64_t>(merged.recipe.rank)));
    }
    std::uint64_t at_once = kMergedAtOnce;
    if (adapter) {  // whole rows
      at_once = std::max(at_once / spec.shape[1], std::uint64_t{1}) * spec.shape[1];
    }
    for (std::uint64_t first = 0; first < elements; first += at_once) {
      values.resize(std::min(at_once, elements - first));
      SLUICE_RETURN_IF_ERROR(merged.base.reader->read(in_file, first, values));
      fingerprint.add(elements, first, values);
      if (adapter) add_rows(merged, *adapter, first / spec.shape[1], spec.shape[1], values);
      SLUICE_RETURN_IF_ERROR(take(spec.name, values));
    }
  }
  const auto& stored = merged.adapters.state().run.adapters;
  return stored && stored->base == fingerprint.all() ? Status() : other_base(merged.asked);
}

constexpr std::uint64_t kElementsAtOnce = std::uint64_t{1} << 20;
constexpr std::string_view kModelConfigName = "config.json";
constexpr std::string_view kWeightsEnding = ".safetensors";
constexpr std::string_view kFresh = ".new";  // suffix of write_small_file() and SafetensorsWriter

std::string config_text(const ModelShape& shape, const ExportOptions& options) {
  return family_of(shape).write_config({.shape = shape,
                                        .special = options.tokenizer.special.within(shape.vocab),
                                        .dtype = options.dtype,
                                        .notes = {}});
}

Result<ModelOptions> stored_options(const CheckpointReader& checkpoint) {
  ModelOptions model;
  SLUICE_ASSIGN_OR_RETURN(model.shape, stored_shape(checkpoint.state().run));
  SLUICE_ASSIGN_OR_RETURN(model.lora, stored_recipe(checkpoint.state().run, model.shape));
  return model;
}

Status check_parameters(const CheckpointReader& checkpoint, const ModelOptions& model) {
  const std::vector<TensorSpec> wanted = parameter_specs(model_layout(model), DType::kF32);
  const auto same = [](const TensorInfo& stored, const TensorSpec& spec) {
    return static_cast<const TensorSpec&>(stored) == spec;
  };
  const auto stored = checkpoint.parameters();
  if (std::equal(stored.begin(), stored.end(), wanted.begin(), wanted.end(), same)) return {};
  return Error(ErrorCode::kCorrupt,
               "the checkpoint's parameters do not match the model that it names");
}

// Maps a parameter to its name in the files.
using NameInFiles = std::function<std::string(const std::string& parameter)>;

Result<std::unique_ptr<SafetensorsWriter>> make_writer(aio::IoQueue& queue, const std::string& path,
                                                       std::vector<TensorSpec> tensors,
                                                       const ExportOptions& options,
                                                       const NameInFiles& name) {
  SafetensorsWriter::Options files;
  files.path = path;
  files.max_shard_bytes = options.max_shard_bytes;
  for (TensorSpec& tensor : tensors) {
    tensor.name = name(tensor.name);
    tensor.dtype = options.dtype;
  }
  return SafetensorsWriter::create(queue, files, std::move(tensors));
}

Result<std::unique_ptr<StackedWriter>> make_model_writer(aio::IoQueue& queue,
                                                         const ModelShape& shape,
                                                         const ExportOptions& options) {
  SafetensorsWriter::Options files;
  files.path = options.folder + "/model.safetensors";
  files.max_shard_bytes = options.max_shard_bytes;
  return StackedWriter::create(queue, files, parameter_specs(shape, options.dtype),
                               family_of(shape).parameter_names(shape));
}

template <typename Writer>
Result<Exported> written(Writer& writer) {
  SLUICE_RETURN_IF_ERROR(writer.finish());
  return Exported{.bytes = writer.total_bytes(), .files = writer.paths().size()};
}

// Takes the checkpoint's tensors one after another.
Status read_stored(CheckpointReader& checkpoint, const ExportOptions& options,
                   const TakeValues& take) {
  std::vector<float> values;
  std::uint64_t done = 0;
  for (const TensorInfo& parameter : checkpoint.parameters()) {
    for (std::uint64_t first = 0; first < parameter.elements; first += kElementsAtOnce) {
      values.resize(std::min(kElementsAtOnce, parameter.elements - first));
      SLUICE_RETURN_IF_ERROR(checkpoint.read_master(parameter.name, first, values));
      SLUICE_RETURN_IF_ERROR(take(parameter.name, values));
      done += values.size();
      if (options.progress) options.progress(done, checkpoint.manifest().elements);
    }
  }
  return {};
}

// Opens the base; an error if a sample of its values is not that of the adapters' base.
Result<ModelWeights> open_base(aio::IoQueue& queue, const StoredRun& stored,
                               const ModelShape& shape, const ExpectedBase& asked) {
  auto opened = open_model_weights(queue, asked.path, shape, HeadCheck::kBeginning);
  if (!opened.ok() && opened.error().code() == ErrorCode::kNotFound)
    return Error(ErrorCode::kNotFound, "the base weights of the adapters are no longer in " +
                                           asked.path + ": name their folder with --base");
  if (!opened.ok()) return std::move(opened).error().with_context("the adapters' base");
  SLUICE_RETURN_IF_ERROR(check_base_sample(*opened, stored, asked));
  return open_model_weights(queue, asked.path, shape, HeadCheck::kWhole);
}

Result<Exported> write_merged(aio::IoQueue& queue, CheckpointReader& checkpoint,
                              const ModelOptions& model, const ExportOptions& options) {
  const ExpectedBase asked{.path = options.base, .advice = "name the right ones with --base"};
  SLUICE_ASSIGN_OR_RETURN(ModelWeights base,
                          open_base(queue, checkpoint.state().run, model.shape, asked));
  SLUICE_ASSIGN_OR_RETURN(
      const auto executor,
      aio::make_executor(static_cast<int>(std::max(std::thread::hardware_concurrency(), 1U))));
  SLUICE_ASSIGN_OR_RETURN(const auto writer, make_model_writer(queue, model.shape, options));
  const std::uint64_t total = model_layout(model).parameter_elements();
  std::uint64_t done = 0;
  const auto take = [&](const std::string& parameter, std::span<const float> values) -> Status {
    SLUICE_RETURN_IF_ERROR(writer->append(parameter, values));
    done += values.size();
    if (options.progress) options.progress(done, total);
    return {};
  };
  SLUICE_RETURN_IF_ERROR(merge_weights({.shape = model.shape,
                                        .base = base,
                                        .asked = asked,
                                        .adapters = checkpoint,
                                        .recipe = model.lora,
                                        .executor = *executor},
                                       take));
  return written(*writer);
}

Result<Exported> write_adapters(aio::IoQueue& queue, CheckpointReader& checkpoint,
                                const ModelOptions& model, ExportOptions options) {
  options.max_shard_bytes = 0;  // PEFT reads one file
  const NameInFiles name = [&](const std::string& parameter) {
    return peft_name(model.shape, parameter);
  };
  SLUICE_ASSIGN_OR_RETURN(
      const auto writer,
      make_writer(queue, options.folder + "/" + std::string(kPeftWeightsName),
                  parameter_specs(model_layout(model), options.dtype), options, name));
  SLUICE_RETURN_IF_ERROR(read_stored(
      checkpoint, options, [&](const std::string& parameter, std::span<const float> values) {
        return writer->append(name(parameter), values);
      }));
  return written(*writer);
}

// Writes the file that makes the folder loadable as a model or an adapter.
Status write_last(aio::IoQueue& queue, const ModelOptions& model, const ExportOptions& options) {
  if (!model.lora.exists() || options.merged)
    return aio::write_small_file(queue, options.folder + "/" + std::string(kModelConfigName),
                                 config_text(model.shape, options));
  SLUICE_ASSIGN_OR_RETURN(BaseModel base,
                          base_model_of_run(queue, options.run_directory, options.base));
  if (!options.base_name.empty()) base = {.name = options.base_name};
  // The base's name, not a path of this machine: adapters are shared.
  return aio::write_small_file(
      queue, options.folder + "/" + std::string(kPeftConfigName),
      peft_config_text({.recipe = model.lora, .base = base.name, .base_revision = base.revision}));
}

Result<Exported> write_weights(aio::IoQueue& queue, CheckpointReader& checkpoint,
                               const ModelOptions& model, const ExportOptions& options) {
  if (model.lora.exists())
    return options.merged ? write_merged(queue, checkpoint, model, options)
                          : write_adapters(queue, checkpoint, model, options);
  SLUICE_ASSIGN_OR_RETURN(const auto writer, make_model_writer(queue, model.shape, options));
  SLUICE_RETURN_IF_ERROR(read_stored(
      checkpoint, options, [&](const std::string& parameter, std::span<const float> values) {
        return writer->append(parameter, values);
      }));
  return written(*writer);
}

Result<Exported> write_folder(aio::IoQueue& queue, CheckpointReader& checkpoint,
                              const ExportOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(const ModelOptions model, stored_options(checkpoint));
  const ModelShape& shape = model.shape;
  SLUICE_RETURN_IF_ERROR(check_parameters(checkpoint, model));
  if (options.merged && !model.lora.exists())
    return Error(ErrorCode::kInvalidArgument,
                 "the checkpoint contains a whole model, so there is nothing to merge");
  SLUICE_ASSIGN_OR_RETURN(const Exported exported,
                          write_weights(queue, checkpoint, model, options));
  TokenizerFiles tokenizer = options.tokenizer;
  tokenizer.special = tokenizer.special.within(shape.vocab);
  SLUICE_RETURN_IF_ERROR(write_tokenizer(queue, tokenizer, options.folder, shape.context_tokens));
  SLUICE_RETURN_IF_ERROR(
      write_model_papers(queue, checkpoint,
                         {.shape = shape,
                          .lora = model.lora,
                          .merged = options.merged,
                          .dtype = options.dtype,
                          .has_tokenizer = tokenizer.kind != TokenizerFiles::Kind::kUnknown,
                          .base_name = options.base_name,
                          .run_directory = options.run_directory,
                          .folder = options.folder}));
  SLUICE_RETURN_IF_ERROR(write_last(queue, model, options));
  return exported;
}

// Whether an export writes files of that name, also with ".new" while they are incomplete.
bool is_of_an_export(std::string name) {
  if (name.ends_with(kFresh)) name.resize(name.size() - kFresh.size());
  return name == kModelConfigName || name == kPeftConfigName || name == "README.md" ||
         name.ends_with(kWeightsEnding) || name.ends_with(".safetensors.index.json") ||
         is_tokenizer_file(name);
}

// Cleans up a failed export in a folder that was empty before. The files that make it loadable go
// first.
Status remove_export(aio::FileSystem& files, const std::string& folder) {
  SLUICE_ASSIGN_OR_RETURN(std::vector<std::string> names, files.list(folder));
  std::stable_partition(names.begin(), names.end(), [](const std::string& name) {
    return name == kModelConfigName || name == kPeftConfigName;
  });
  bool all = true;
  for (const std::string& name : names) {
    all = all && is_of_an_export(name);
    if (!is_of_an_export(name)) continue;
    std::string path = folder;
    SLUICE_RETURN_IF_ERROR(files.remove(path.append("/").append(name)));
  }
  return all ? files.remove(folder) : Status();
}

// The first name of weights that are incomplete, or that have no file next to them that describes
// them.
std::optional<std::string> left_by_an_export(const std::vector<std::string>& names) {
  const bool counts = std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return name == kModelConfigName || name == kPeftConfigName;
  });
  for (const std::string& name : names)
    if (is_of_an_export(name) &&
        (name.ends_with(kFresh) || (!counts && name.ends_with(kWeightsEnding))))
      return name;
  return std::nullopt;
}

}  // namespace

Status check_empty(aio::FileSystem& files, const std::string& folder) {
  const auto listed = files.list(folder);
  if (!listed.ok())
    return listed.error().code() == ErrorCode::kNotFound ? Status() : Status(listed.error());
  if (listed->empty()) return {};
  if (const auto left = left_by_an_export(*listed))
    return Error(ErrorCode::kAlreadyExists,
                 folder + " is not empty: it contains " + *left +
                     " of an export that is still running or was interrupted. If it was "
                     "interrupted, remove the folder, or name another one");
  return Error(ErrorCode::kAlreadyExists, folder + " is not empty: name a new or an empty folder");
}

Result<Exported> export_model(aio::IoQueue& queue, CheckpointReader& checkpoint,
                              const ExportOptions& options) {
  aio::FileSystem& files = queue.backend().files();
  SLUICE_RETURN_IF_ERROR(check_empty(files, options.folder));
  SLUICE_RETURN_IF_ERROR(files.make_directories(options.folder));
  auto exported = write_folder(queue, checkpoint, options);
  if (exported.ok()) return exported;
  const Status removed = remove_export(files, options.folder);
  if (!removed.ok()) log::warning(removed.error().message());
  return exported;
}

}  // namespace sluice::engine
