#include "bench/model_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "aio/machine_info.h"
#include "aio/units.h"
#include "engine/families/families.h"
#include "tools/support/command_line.h"

namespace sluice::bench {
namespace {

constexpr std::int64_t kVocabMultiple = 128;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;

constexpr const char* kDescription =
    "Times one transformer block of each kind, the head and the embedding of a model "
    "separately,\nwithout any offloading: the compute time of a micro-batch. Activation memory is "
    "the allocator's\npeak during a call, shown with the planner's estimate.";

constexpr const char* kExamples =
    "TFLOP/s count a multiply-add as two operations, and only the half of attention that is "
    "not\nmasked. The last rows are a whole model's forward and backward: all blocks, the head and "
    "the\nembedding.\n\nExamples:\n  model_bench --model gpt2-xl --micro-batch 8 --tokens 1024\n  "
    "model_bench --model gpt2-xl --dropout 0 --deterministic --json out.json\n  model_bench "
    "--hidden 256 --heads 4 --layers 2 --tokens 128 --micro-batch 1 --device cpu\n\nExit codes: 0 "
    "done; 1 a bug; 2 a mistake in the options.";

// An empty optional: not given.
struct ModelArguments {
  std::optional<std::string> model, layers, hidden, heads, micro_batch, tokens, dtype, dropout,
      device, runs, threads, json;
  bool deterministic = false;
};

Error wrong(const char* option, const std::string& value, const std::string& allowed) {
  return Error(ErrorCode::kInvalidArgument,
               std::string(option) + " is \"" + value + "\"; it must be " + allowed);
}

struct Range {
  std::int64_t smallest = 1;
  std::int64_t largest = 1;
};

Result<std::int64_t> count_of(const char* option, const std::string& text, const Range& range) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < range.smallest || value > range.largest)
    return wrong(option, text,
                 "a whole number from " + std::to_string(range.smallest) + " to " +
                     std::to_string(range.largest));
  return value;
}

Result<engine::ModelShape> shape_of(const ModelArguments& arguments) {
  const std::string name = arguments.model.value_or("gpt2-xl");
  std::optional<engine::ModelShape> shape = engine::preset_shape(name);
  if (!shape) return wrong("--model", name, "a preset of the configuration such as gpt2-xl");
  const std::pair<const char*, std::pair<const std::optional<std::string>&, std::int64_t*>>
      numbers[] = {{"--layers", {arguments.layers, &shape->layers}},
                   {"--hidden", {arguments.hidden, &shape->hidden}},
                   {"--heads", {arguments.heads, &shape->heads}}};
  for (const auto& [option, it] : numbers) {
    if (!it.first) continue;
    SLUICE_ASSIGN_OR_RETURN(*it.second, count_of(option, *it.first, {.largest = 1 << 20}));
  }
  if (arguments.dropout) {
    const std::string& text = *arguments.dropout;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, shape->dropout);
    if (error != std::errc() || stop != end || !(shape->dropout >= 0 && shape->dropout < 1))
      return wrong("--dropout", text, "a number from 0 to below 1");
  }
  return *shape;
}

Status parse_type(const ModelArguments& arguments, ModelBenchOptions& options) {
  options.dtype_name = arguments.dtype.value_or("bf16");
  options.pass.number_bytes = 2;
  if (options.dtype_name == "bf16") {
    options.dtype = ActivationType::kBf16;
  } else if (options.dtype_name == "fp16") {
    options.dtype = ActivationType::kFp16;
  } else if (options.dtype_name == "fp32") {
    options.dtype = ActivationType::kFp32;
    options.pass.number_bytes = 4;
  } else {
    return wrong("--dtype", options.dtype_name, "bf16, fp16 or fp32");
  }
  return {};
}

Result<ModelBenchOptions> parse(const ModelArguments& arguments) {
  ModelBenchOptions options;
  SLUICE_ASSIGN_OR_RETURN(options.shape, shape_of(arguments));
  options.padded_vocab = align_up(options.shape.vocab, kVocabMultiple);
  SLUICE_ASSIGN_OR_RETURN(
      options.pass.tokens,
      count_of("--tokens", arguments.tokens.value_or("1024"), {.largest = kMostTokens}));
  options.shape.context_tokens = std::max(options.shape.context_tokens, options.pass.tokens);
  SLUICE_RETURN_IF_ERROR(engine::validate(options.shape));
  SLUICE_ASSIGN_OR_RETURN(
      options.pass.micro_batch,
      count_of("--micro-batch", arguments.micro_batch.value_or("8"), {.largest = kMostTokens}));
  SLUICE_RETURN_IF_ERROR(parse_type(arguments, options));

  const std::string device = arguments.device.value_or("cuda");
  if (device != "cuda" && device != "cpu") return wrong("--device", device, "cuda or cpu");
  options.cuda = device == "cuda";
  options.deterministic = arguments.deterministic;

  SLUICE_ASSIGN_OR_RETURN(const std::int64_t runs,
                          count_of("--runs", arguments.runs.value_or("11"), {.largest = 10000}));
  options.runs = static_cast<int>(runs);
  options.threads = aio::machine_info().cores;
  if (arguments.threads) {
    SLUICE_ASSIGN_OR_RETURN(const std::int64_t threads,
                            count_of("--threads", *arguments.threads, {.largest = 1024}));
    options.threads = static_cast<int>(threads);
  }
  options.json = arguments.json.value_or("");
  if (arguments.json && options.json.empty())
    return wrong("--json", "", "a file to write, or - for standard output");
  return options;
}

}  // namespace

engine::ModelLayout layout_of(const ModelBenchOptions& options) {
  return engine::model_layout({.shape = options.shape, .padded_vocab = options.padded_vocab});
}

Result<std::optional<ModelBenchOptions>> parse_model_command_line(int argc,
                                                                  const char* const* argv) {
  ModelArguments to;
  CLI::App app(kDescription, "model_bench");
  app.footer(kExamples);
  // Every value is parsed as text, since parse() gives better errors than CLI11.
  const auto add = [&app](const char* name, std::optional<std::string>& value, const char* kind,
                          const char* help) {
    app.add_option(name, value, help)->type_name(kind)->allow_extra_args(false);
  };
  add("--model", to.model, "NAME", "a preset: gpt2-small to the largest [gpt2-xl]");
  add("--layers", to.layers, "N", "instead of the preset's");
  add("--hidden", to.hidden, "N", "instead of the preset's");
  add("--heads", to.heads, "N", "instead of the preset's");
  add("--dropout", to.dropout, "P", "instead of the preset's");
  add("--micro-batch", to.micro_batch, "N", "sequences per call [8]");
  add("--tokens", to.tokens, "N", "tokens per sequence [1024]");
  add("--dtype", to.dtype, "TYPE", "bf16, fp16 or fp32 [bf16]");
  app.add_flag("--deterministic", to.deterministic, "the same bits in every run");
  add("--device", to.device, "NAME", "cuda or cpu [cuda]");
  add("--threads", to.threads, "N", "CPU threads [the cores this process may use]");
  add("--runs", to.runs, "N", "measurements of each call, of which medians are shown [11]");
  add("--json", to.json, "FILE", "write all numbers to this file; -: standard output");
  SLUICE_ASSIGN_OR_RETURN(const bool given, tools::parse_words(app, argc, argv));
  if (!given) return std::optional<ModelBenchOptions>();
  SLUICE_ASSIGN_OR_RETURN(ModelBenchOptions options, parse(to));
  return std::optional<ModelBenchOptions>(std::move(options));
}

}  // namespace sluice::bench
