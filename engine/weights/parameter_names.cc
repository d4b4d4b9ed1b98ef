#include "engine/weights/parameter_names.h"

#include <algorithm>
#include <unordered_map>

#include "engine/weights/quoting.h"

namespace sluice::engine {
namespace {

Error mismatch(const std::string& what) { return Error(ErrorCode::kInvalidArgument, what); }

Status check_shape(const TensorInfo& found, const TensorSpec& wanted) {
  if (found.shape == wanted.shape) return {};
  return mismatch("tensor " + in_quotes(found.name) + " has shape " + shape_text(found.shape) +
                  ", but the model needs " + shape_text(wanted.shape) +
                  ": the file belongs to a model of another size than the configuration's");
}

// What names in the file say about why others are missing. Blocks that were compiled separately
// have the wrapper in the middle of their names.
std::string hint_at_origin(std::span<const TensorInfo> in_file) {
  constexpr std::string_view kWrapper = "._orig_mod.";
  for (const TensorInfo& tensor : in_file) {
    if (tensor.name.find(kWrapper) != std::string::npos)
      return ": it has " + in_quotes(tensor.name) +
             ", the name in a module that torch.compile made: remove \"_orig_mod.\" from the "
             "names, or save the original module";
  }
  return {};
}

}  // namespace

std::string_view ParameterNames::ours(std::string_view name_in_file) const {
  // The prefixes of torch.compile and DistributedDataParallel.
  for (const std::string_view wrapper : {"module.", "_orig_mod.", "module."})
    if (name_in_file.starts_with(wrapper)) name_in_file.remove_prefix(wrapper.size());
  // The part's prefix is its own before transformers 4.52: "language_model.model.".
  for (const std::string_view start : {prefix, part, part.empty() ? part : prefix})
    if (name_in_file.starts_with(start)) name_in_file.remove_prefix(start.size());
  return name_in_file;
}

std::string ParameterNames::exported(std::string_view name) const {
  const bool has_prefix = prefixes_exports && name != head;
  return (has_prefix ? std::string(prefix) : std::string()) + std::string(name);
}

const TensorInfo* find_parameter(const ParameterNames& names, std::span<const TensorInfo> in_file,
                                 std::string_view name) {
  const auto found = std::find_if(in_file.begin(), in_file.end(), [&](const TensorInfo& tensor) {
    return names.ours(tensor.name) == name;
  });
  return found == in_file.end() ? nullptr : &*found;
}

Result<std::vector<std::string>> match_parameters(const ParameterNames& rules,
                                                  std::span<const TensorInfo> in_file,
                                                  std::span<const TensorSpec> wanted) {
  std::unordered_map<std::string_view, const TensorInfo*> found;
  for (const TensorInfo& tensor : in_file) {
    const auto [entry, is_new] = found.emplace(rules.ours(tensor.name), &tensor);
    if (!is_new)
      return mismatch("the file has " + in_quotes(entry->second->name) + " and " +
                      in_quotes(tensor.name) + ", which are the same parameter");
  }
  std::vector<std::string> names;
  for (const TensorSpec& parameter : wanted) {
    const auto entry = found.find(parameter.name);
    if (entry == found.end())
      return mismatch("the file has no tensor " + in_quotes(parameter.name) +
                      ", which the configuration's model needs" + hint_at_origin(in_file));
    SLUICE_RETURN_IF_ERROR(check_shape(*entry->second, parameter));
    if (!is_weight_dtype(entry->second->dtype))
      return mismatch("tensor " + in_quotes(entry->second->name) + " is " +
                      std::string(to_string(entry->second->dtype)) +
                      "; weights are F16, BF16, F32 or F64");
    if (const auto head = found.find(rules.head);
        rules.is_tied && parameter.name == rules.token_embedding && head != found.end()) {
      SLUICE_RETURN_IF_ERROR(check_shape(*head->second, parameter));
      found.erase(head);
    }
    names.push_back(entry->second->name);
    found.erase(parameter.name);
  }
  for (const TensorInfo& tensor : in_file) {
    const std::string_view name = rules.ours(tensor.name);
    if (found.contains(name) && !(rules.is_buffer != nullptr && rules.is_buffer(name)))
      return mismatch("the file has a tensor " + in_quotes(tensor.name) +
                      ", which the configuration's model does not have");
  }
  return names;
}

}  // namespace sluice::engine
