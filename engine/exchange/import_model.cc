#include "engine/exchange/import_model.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "aio/small_file.h"
#include "engine/checkpoint/checkpoint_names.h"
#include "engine/checkpoint/checkpoint_writer.h"
#include "engine/checkpoint/run_directory.h"
#include "engine/config/resolve.h"
#include "engine/exchange/adapter_weights.h"
#include "engine/exchange/base_model.h"
#include "engine/exchange/described_model.h"
#include "engine/exchange/export_model.h"
#include "engine/exchange/kept_tokenizer.h"
#include "engine/exchange/model_weights.h"
#include "engine/exchange/stored_shape.h"
#include "engine/families/families.h"

namespace sluice::engine {
namespace {

constexpr std::uint64_t kElementsAtOnce = std::uint64_t{1} << 20;

Result<HuggingFaceModel> read_config(aio::IoQueue& queue, const std::string& folder) {
  SLUICE_RETURN_IF_ERROR(check_is_no_adapter(queue.backend().files(), folder));
  const std::string path = folder + "/config.json";
  const auto text = aio::read_small_file(queue, path, kMaxModelConfigBytes);
  if (!text.ok() && text.error().code() == ErrorCode::kNotFound)
    return Error(ErrorCode::kNotFound,
                 "there is no " + path +
                     ": name the folder of a model as transformers' save_pretrained() writes it" +
                     download_hint(folder));
  if (!text.ok() && text.error().error_number() == ENOTDIR)
    return Error(
        ErrorCode::kInvalidArgument,
        folder + " is a file: name its folder, which must also contain the model's config.json");
  if (!text.ok()) return text.error();
  auto config = read_hugging_face_config(*text);
  if (!config.ok()) return std::move(config).error().with_context(path);
  return config;
}

// Everything but the shape is for the user to change with --set.
Result<config::Config> run_config(const ModelShape& shape) {
  nlohmann::json model = {
      {"preset", "custom"},
      {"family", shape.family},
      {"layers", shape.layers},
      {"hidden", shape.hidden},
      {"heads", shape.heads},
      {"context", shape.context_tokens},
      {"vocab", shape.vocab},
      {"dropout", shape.dropout},
      {"ffn_multiplier", static_cast<double>(shape.ffn()) / static_cast<double>(shape.hidden)}};
  for (const ShapeNumber& number : family_of(shape).numbers()) {
    const double value = shape.numbers.at(std::string(number.name()));
    auto& written = model[std::string(number.name())];
    if (number.choices.empty())
      written = value;
    else
      written = number.text(value);
  }
  for (const auto& [name, values] : shape.lists) model[name] = values;
  const nlohmann::json run = {
      {"train_micro_batch_size_per_gpu", 1},
      {"gradient_clipping", 1.0},
      {"bf16", {{"enabled", true}}},
      {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 5e-5}, {"weight_decay", 0.0}}}}},
      {"zero_optimization",
       {{"stage", 3},
        {"offload_param", {{"device", "cpu"}}},
        {"offload_optimizer", {{"device", "cpu"}}}}},
      {"model", std::move(model)}};
  config::Sources sources;
  sources.run_file = config::Source{.name = "config.json", .text = run.dump()};
  SLUICE_ASSIGN_OR_RETURN(config::Resolved resolved, config::resolve(sources));
  if (resolved.config.model.ffn_hidden() != shape.ffn())
    return Error(ErrorCode::kInvalidArgument,
                 "a feed-forward width of " + std::to_string(shape.ffn()) +
                     " cannot be written as a multiple of hidden " + std::to_string(shape.hidden));
  return resolved.config;
}

Status copy_weights(const ModelWeights& weights, const ImportOptions& options,
                    CheckpointWriter& writer) {
  const auto& wanted = weights.parameters;
  std::uint64_t total = 0, done = 0;
  for (const std::string& name : weights.names) total += weights.reader->find(name)->elements;
  const std::vector<float> zeros(kElementsAtOnce);
  std::vector<float> masters;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::uint64_t elements = weights.reader->find(weights.names[i])->elements;
    for (std::uint64_t first = 0; first < elements; first += kElementsAtOnce) {
      masters.resize(std::min(kElementsAtOnce, elements - first));
      SLUICE_RETURN_IF_ERROR(weights.reader->read_finite(weights.names[i], first, masters));
      const auto moments = std::span(zeros).first(masters.size());
      SLUICE_RETURN_IF_ERROR(writer.append(
          wanted[i].name, {.first_element = first, .fields = {masters, moments, moments}}));
      done += masters.size();
      if (options.progress) options.progress(done, total);
    }
  }
  return {};
}

std::vector<std::string> notes_of(const HuggingFaceModel& model, const TokenizerFiles& tokenizer) {
  std::vector<std::string> notes = model.notes;
  if (tokenizer.kind == TokenizerFiles::Kind::kUnknown)
    notes.push_back(tokenizer.note +
                    ": sluice generate needs --tokenizer FILE, and sluice export writes no "
                    "tokenizer without it");
  return notes;
}

}  // namespace

Result<Imported> import_model(aio::IoQueue& queue, const ImportOptions& options) {
  aio::FileSystem& files = queue.backend().files();
  SLUICE_ASSIGN_OR_RETURN(const HuggingFaceModel model, read_config(queue, options.from));
  const ModelShape& shape = model.shape;
  SLUICE_ASSIGN_OR_RETURN(TokenizerFiles tokenizer, tokenizer_in(queue, options.from));
  tokenizer.special = tokenizer.special.within(shape.vocab);
  SLUICE_RETURN_IF_ERROR(validate(shape));
  SLUICE_ASSIGN_OR_RETURN(const config::Config config, run_config(shape));
  SLUICE_ASSIGN_OR_RETURN(const bool unused, is_unused_run_directory(files, options.directory));
  if (!unused) SLUICE_RETURN_IF_ERROR(check_empty(files, options.directory));
  SLUICE_ASSIGN_OR_RETURN(const ModelWeights weights,
                          open_model_weights(queue, options.from, shape, HeadCheck::kWhole));
  const std::string checkpoints = options.directory + "/checkpoints";
  SLUICE_RETURN_IF_ERROR(files.make_directories(checkpoints));
  SLUICE_RETURN_IF_ERROR(mark_run_directory(queue, options.directory));

  Imported imported{.checkpoint = checkpoints + "/" + checkpoint_name(0),
                    .tokenizer = tokenizer.kind != TokenizerFiles::Kind::kUnknown,
                    .notes = notes_of(model, tokenizer)};
  SLUICE_ASSIGN_OR_RETURN(
      const auto writer,
      CheckpointWriter::begin(queue, imported.checkpoint, parameter_specs(shape, DType::kF32), {}));
  SLUICE_RETURN_IF_ERROR(copy_weights(weights, options, *writer));
  const std::string text = config::to_json(config);
  CheckpointState state;
  state.run.precision = std::string(kImportedPrecision);
  store_shape(shape, state.run);
  state.configuration = text;
  state.program_version = SLUICE_VERSION;
  SLUICE_RETURN_IF_ERROR(writer->commit(state));
  SLUICE_RETURN_IF_ERROR(
      keep_tokenizer(queue, tokenizer,
                     {.directory = options.directory, .context_tokens = shape.context_tokens})
          .status());
  SLUICE_ASSIGN_OR_RETURN(const BaseModel base, base_model_of(queue, options.from));
  SLUICE_RETURN_IF_ERROR(keep_base_model(queue, base, options.directory));
  SLUICE_RETURN_IF_ERROR(
      aio::write_small_file(queue, options.directory + "/config.json", text + "\n"));
  for (const TensorSpec& spec : parameter_specs(shape, DType::kF32)) {
    std::uint64_t elements = 1;
    for (const std::uint64_t size : spec.shape) elements *= size;
    imported.parameters += elements;
  }
  return imported;
}

}  // namespace sluice::engine
