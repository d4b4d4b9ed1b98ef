#include "engine/weights/gpt2_names.h"

#include <algorithm>
#include <unordered_map>

#include "engine/weights/quoting.h"

namespace sluice::engine {
namespace {

constexpr std::string_view kPrefix = "transformer.";

Error mismatch(const std::string& what) { return Error(ErrorCode::kInvalidArgument, what); }

Status check_shape(const TensorInfo& found, const TensorSpec& wanted) {
  if (found.shape == wanted.shape) return {};
  return mismatch("tensor " + in_quotes(found.name) + " has shape " + shape_text(found.shape) +
                  ", and the model wants " + shape_text(wanted.shape) +
                  ": the file is of another size than the configuration's model");
}

}  // namespace

std::vector<TensorSpec> gpt2_parameters(const Gpt2Shape& shape, DType dtype) {
  const std::uint64_t hidden = shape.hidden;
  std::vector<TensorSpec> parameters;
  const auto add = [&](const std::string& name, std::vector<std::uint64_t> lengths) {
    parameters.push_back({name, dtype, std::move(lengths)});
  };
  const auto add_pair = [&](const std::string& name, std::vector<std::uint64_t> weight) {
    const std::uint64_t out = weight.back();
    add(name + ".weight", std::move(weight));
    add(name + ".bias", {out});
  };
  add(std::string(kGpt2TokenEmbedding), {shape.vocabulary, hidden});
  add("wpe.weight", {shape.context, hidden});
  for (std::uint64_t layer = 0; layer < shape.layers; ++layer) {
    const std::string block = "h." + std::to_string(layer) + ".";
    add_pair(block + "ln_1", {hidden});
    add_pair(block + "attn.c_attn", {hidden, 3 * hidden});
    add_pair(block + "attn.c_proj", {hidden, hidden});
    add_pair(block + "ln_2", {hidden});
    add_pair(block + "mlp.c_fc", {hidden, 4 * hidden});
    add_pair(block + "mlp.c_proj", {4 * hidden, hidden});
  }
  add_pair("ln_f", {hidden});
  return parameters;
}

std::string_view gpt2_parameter_name(std::string_view name_in_file) {
  if (name_in_file.starts_with(kPrefix)) name_in_file.remove_prefix(kPrefix.size());
  return name_in_file;
}

bool is_gpt2_mask(std::string_view name) {
  return name.starts_with("h.") &&
         (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"));
}

const TensorInfo* find_gpt2_tensor(std::span<const TensorInfo> in_file, std::string_view name) {
  const auto found = std::find_if(in_file.begin(), in_file.end(), [&](const TensorInfo& tensor) {
    return gpt2_parameter_name(tensor.name) == name;
  });
  return found == in_file.end() ? nullptr : &*found;
}

Result<std::vector<std::string>> match_gpt2_parameters(std::span<const TensorInfo> in_file,
                                                       std::span<const TensorSpec> wanted) {
  std::unordered_map<std::string_view, const TensorInfo*> found;
  for (const TensorInfo& tensor : in_file) {
    const auto [entry, is_new] = found.emplace(gpt2_parameter_name(tensor.name), &tensor);
    if (!is_new)
      return mismatch("the file has " + in_quotes(entry->second->name) + " and " +
                      in_quotes(tensor.name) + ", which are one parameter");
  }
  std::vector<std::string> names;
  for (const TensorSpec& parameter : wanted) {
    const auto entry = found.find(parameter.name);
    if (entry == found.end())
      return mismatch("the file has no tensor " + in_quotes(parameter.name) +
                      ", which the configuration's model needs");
    SLUICE_RETURN_IF_ERROR(check_shape(*entry->second, parameter));
    if (!is_weight_dtype(entry->second->dtype))
      return mismatch("tensor " + in_quotes(entry->second->name) + " is " +
                      std::string(to_string(entry->second->dtype)) +
                      "; weights are F16, BF16, F32 or F64");
    if (const auto head = found.find(kGpt2Head);
        parameter.name == kGpt2TokenEmbedding && head != found.end()) {
      SLUICE_RETURN_IF_ERROR(check_shape(*head->second, parameter));
      found.erase(head);
    }
    names.push_back(entry->second->name);
    found.erase(parameter.name);
  }
  for (const TensorInfo& tensor : in_file) {
    const std::string_view name = gpt2_parameter_name(tensor.name);
    if (found.contains(name) && !is_gpt2_mask(name))
      return mismatch("the file has a tensor " + in_quotes(tensor.name) +
                      ", which the configuration's model has not");
  }
  return names;
}

}  // namespace sluice::engine
