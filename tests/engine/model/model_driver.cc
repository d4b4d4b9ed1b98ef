// Forward and backward passes of models, for the tests that compare them with transformers: reads
// parameters and tokens from files, and writes logits, loss and gradients to files.
//
// Each line of its input is a command, whose words have tabs between them. It prints "done" after
// each, and ends with 1 after one that failed.
//
//   layout key=value...   prints "name dimension..." of every parameter, in file order
//   run key=value...
//
// The model is the one of config=FILE, a Hugging Face config.json, or of the keys of a GPT-2. With
// rank=4 alpha=8 targets=q_proj,v_proj (and rank_stabilised=1) it is frozen and has adapters.
//
// A file of parameters has every parameter in the order of `layout` (unit by unit, adapters after
// the model's own), without gaps, fp32, row by row. A file of tokens has int64,
// batch * (tokens + 1); each row has its sequence and the target of its last position. Output:
// logits [batch, tokens, vocab], the mean loss with the balance loss of experts, the gradients of
// all trained parameters; fp32, or float64 with dtype=fp64. The key documents=0,5;0 says where the
// documents of each row begin.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/families/families.h"
#include "engine/model/model.h"
#include "tests/engine/model/whole_model.h"

namespace sluice::engine {
namespace {

using Options = std::map<std::string, std::string>;

std::int64_t number(const Options& options, const std::string& key) {
  return std::stoll(options.at(key));
}

ModelShape shape_in(const std::string& path) {
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto model = read_hugging_face_config(text);
  if (!model.ok()) throw std::invalid_argument(model.error().message());
  return model->shape;
}

LoraRecipe recipe_of(const Options& options) {
  LoraRecipe recipe{.rank = number(options, "rank"),
                    .alpha = std::stod(options.at("alpha")),
                    .rank_stabilised = options.at("rank_stabilised") == "1",
                    .targets = {}};
  std::stringstream names(options.at("targets"));
  for (std::string name; std::getline(names, name, ',');) recipe.targets.push_back(name);
  return recipe;
}

ModelOptions model_options(const Options& options) {
  if (options.contains("config"))
    return {.shape = shape_in(options.at("config")),
            .padded_vocab = number(options, "padded_vocab"),
            .chunk_rows = number(options, "chunk_rows"),
            .lora = recipe_of(options)};
  return {.shape = {.layers = number(options, "layers"),
                    .hidden = number(options, "hidden"),
                    .heads = number(options, "heads"),
                    .context_tokens = number(options, "context"),
                    .vocab = number(options, "vocab"),
                    .ffn_hidden = number(options, "ffn")},
          .padded_vocab = number(options, "padded_vocab"),
          .chunk_rows = number(options, "chunk_rows")};
}

at::ScalarType dtype_of(const std::string& name) {
  if (name == "fp32") return at::kFloat;
  if (name == "bf16") return at::kBFloat16;
  if (name == "fp16") return at::kHalf;
  if (name == "fp64") return at::kDouble;
  throw std::invalid_argument("dtype is " + name);
}

at::Tensor read_tensor(std::ifstream& file, const std::vector<std::int64_t>& shape,
                       at::ScalarType dtype) {
  at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(dtype));
  file.read(static_cast<char*>(tensor.mutable_data_ptr()),
            static_cast<std::streamsize>(tensor.nbytes()));
  if (!file) throw std::runtime_error("an input file is too short");
  return tensor;
}

void write_tensor(std::ofstream& file, const at::Tensor& tensor, at::ScalarType dtype) {
  const at::Tensor values = tensor.to(at::kCPU, dtype).contiguous();
  file.write(static_cast<const char*>(values.const_data_ptr()),
             static_cast<std::streamsize>(values.nbytes()));
}

// nullopt: no documents.
std::optional<Documents> documents_of(const std::string& text, std::int64_t rows,
                                      std::int64_t tokens) {
  if (text.empty()) return std::nullopt;
  std::vector<std::int64_t> positions;
  std::vector<std::int32_t> starts;
  Documents documents;
  std::stringstream by_row(text);
  std::string of_row;
  for (std::int64_t row = 0; row < rows; ++row) {
    if (!std::getline(by_row, of_row, ';')) throw std::invalid_argument("documents of a row");
    std::stringstream begins(of_row);
    std::vector<std::int64_t> firsts;
    for (std::string begin; std::getline(begins, begin, ',');) firsts.push_back(std::stoll(begin));
    firsts.push_back(tokens);
    for (std::size_t i = 0; i + 1 < firsts.size(); ++i) {
      const std::int64_t length = firsts[i + 1] - firsts[i];
      starts.push_back(static_cast<std::int32_t>(row * tokens + firsts[i]));
      for (std::int64_t at = 0; at < length; ++at) positions.push_back(at);
      documents.longest = std::max(documents.longest, length);
      documents.lengths.push_back(length);
    }
  }
  starts.push_back(static_cast<std::int32_t>(rows * tokens));
  documents.positions = at::tensor(positions, at::kLong).view({rows, tokens});
  documents.starts = at::tensor(starts, at::kInt);
  return documents;
}

void print_layout(const Options& options) {
  const WholeModel model(model_options(options), at::TensorOptions().dtype(at::kHalf));
  model.for_each_parameter(
      [](const ParameterSpec& spec, const at::Tensor& /*view*/, const at::Tensor& /*gradient*/) {
        std::printf("%s", spec.name.c_str());
        for (const std::int64_t size : spec.shape)
          std::printf(" %lld", static_cast<long long>(size));
        std::printf("\n");
      });
}

void run(const Options& options) {
  WholeModel model(model_options(options),
                   at::TensorOptions().dtype(dtype_of(options.at("dtype"))));
  std::ifstream weights(options.at("weights"), std::ios::binary);
  model.for_each_parameter(
      [&](const ParameterSpec& spec, const at::Tensor& view, const at::Tensor& /*gradient*/) {
        view.copy_(read_tensor(weights, spec.shape, at::kFloat));
      });
  std::ifstream token_file(options.at("tokens"), std::ios::binary);
  const std::int64_t tokens = number(options, "tokens_per_row");
  const at::Tensor rows =
      read_tensor(token_file, {number(options, "batch"), tokens + 1}, at::kLong);
  const at::Tensor input = rows.narrow(1, 0, tokens).contiguous();
  const at::Tensor targets = rows.narrow(1, 1, tokens).contiguous();

  std::ofstream out(options.at("out"), std::ios::binary);
  const at::ScalarType written = options.at("dtype") == "fp64" ? at::kDouble : at::kFloat;
  const auto documents = documents_of(options.at("documents"), input.size(0), tokens);
  PassContext context;
  context.documents = documents ? &*documents : nullptr;
  write_tensor(out, model.logits(context, input, tokens), written);
  const double grad_scale = 1 / static_cast<double>(input.numel());
  const double balance = balance_coefficient(model.model().shape());
  ExpertLoad load(model.model().layout(), {.coefficient = balance}, at::kCPU);
  at::Tensor loss = model.forward_backward(context, input, targets, grad_scale,
                                           options.at("recompute") == "1", &load);
  loss = loss.mul(grad_scale);
  for (const at::Tensor& of_load : load.balance_losses()) loss.add_(of_load.mul(balance));
  write_tensor(out, loss, written);
  model.for_each_parameter(
      [&](const ParameterSpec& /*spec*/, const at::Tensor& /*view*/, const at::Tensor& gradient) {
        if (gradient.defined()) write_tensor(out, gradient, written);
      });
  if (!out.flush()) throw std::runtime_error("the output could not be written");
}

void obey(const std::string& line) {
  std::vector<std::string> arguments;
  std::stringstream words(line);
  for (std::string word; std::getline(words, word, '\t');) arguments.push_back(word);
  if (arguments.empty()) throw std::invalid_argument("layout or run is missing");
  Options options = {
      {"ffn", "0"},     {"padded_vocab", "0"}, {"chunk_rows", "0"},      {"recompute", "0"},
      {"rank", "0"},    {"alpha", "0"},        {"rank_stabilised", "0"}, {"targets", ""},
      {"documents", ""}};
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const std::size_t equals = arguments[i].find('=');
    if (equals == std::string::npos) throw std::invalid_argument("not key=value: " + arguments[i]);
    options[arguments[i].substr(0, equals)] = arguments[i].substr(equals + 1);
  }
  if (arguments[0] == "layout") {
    print_layout(options);
  } else if (arguments[0] == "run") {
    run(options);
  } else {
    throw std::invalid_argument("unknown command " + arguments[0]);
  }
  std::puts("done");
  std::fflush(stdout);
}

}  // namespace
}  // namespace sluice::engine

int main() {
  try {
    for (std::string line; std::getline(std::cin, line);) sluice::engine::obey(line);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "model_driver: %s\n", error.what());
    return 1;
  }
}
