#include "engine/exchange/generation_config.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "aio/bounded_json.h"
#include "aio/small_file.h"
#include "engine/weights/special_tokens.h"

namespace sluice::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFromModel = "_from_model_config";
constexpr std::array<std::string_view, 4> kNotTaken = {kFromModel, "bos_token_id", "eos_token_id",
                                                       "pad_token_id"};

}  // namespace

Status complete_generation_config(aio::IoQueue& queue, const BaseModel& base,
                                  const std::string& folder) {
  const std::string path = folder + "/" + std::string(kGenerationConfigName);
  SLUICE_ASSIGN_OR_RETURN(const bool there, queue.backend().files().exists(path));
  Json json = Json::object();
  if (there) {
    SLUICE_ASSIGN_OR_RETURN(const std::string text,
                            aio::read_small_file(queue, path, kMaxGenerationConfigBytes));
    json = json_or_discarded<Json>(text);
    if (!json.is_object()) return Error(ErrorCode::kCorrupt, path + " is not a JSON object");
  }
  const Json settings = json_or_discarded<Json>(base.generation_config);
  const std::size_t before = json.size();
  if (settings.is_object()) {
    for (const auto& [key, value] : settings.items())
      if (std::find(kNotTaken.begin(), kNotTaken.end(), key) == kNotTaken.end() &&
          !json.contains(key))
        json[key] = value;
  }
  if (json.empty()) json[kFromModel] = true;
  if (there && json.size() == before) return {};
  return aio::write_small_file(queue, path, json.dump(2) + "\n");
}

}  // namespace sluice::engine
