#include "engine/exchange/tokenizer_files.h"

#include <nlohmann/json.hpp>

#include "aio/small_file.h"
#include "engine/data/token_sidecar.h"
#include "engine/exchange/byte_tokenizer.h"

namespace sluice::engine {
namespace {

using Json = nlohmann::ordered_json;
using Kind = TokenizerFiles::Kind;

constexpr std::uint64_t kMaxTokenizerBytes = std::uint64_t{256} << 20;
constexpr const char* kConfigName = "tokenizer_config.json";
// What belongs to a tokenizer in a Hugging Face folder of the GPT-2 family.
constexpr const char* kNames[] = {"tokenizer.json",    kConfigName,  "special_tokens_map.json",
                                  "added_tokens.json", "vocab.json", "merges.txt"};

std::string parent_folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

Result<Json> read_json(aio::IoQueue& queue, const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text,
                          aio::read_small_file(queue, path, kMaxTokenizerBytes));
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return Error(ErrorCode::kCorrupt, path + " is no JSON object");
  return json;
}

// Of a special token in tokenizer.json.
Json added_token(const Json& tokenizer, const char* key, const Json& value) {
  const auto tokens = tokenizer.find("added_tokens");
  if (tokens == tokenizer.end() || !tokens->is_array()) return {};
  for (const Json& token : *tokens)
    if (token.is_object() && token.value(key, Json()) == value) return token;
  return {};
}

// What tokenizer_config.json calls the end of a text, as tokenizer.json numbers it.
Result<std::optional<std::int64_t>> configured_end(aio::IoQueue& queue, const std::string& folder) {
  std::optional<std::int64_t> none;
  const std::string config_path = folder + "/" + kConfigName;
  SLUICE_ASSIGN_OR_RETURN(const bool there, queue.backend().files().exists(config_path));
  if (!there) return none;
  SLUICE_ASSIGN_OR_RETURN(const Json config, read_json(queue, config_path));
  Json name = config.value("eos_token", Json());
  if (name.is_object()) name = name.value("content", Json());
  if (!name.is_string()) return none;
  SLUICE_ASSIGN_OR_RETURN(const Json tokenizer,
                          read_json(queue, folder + "/" + std::string(kTokenizerName)));
  const Json token = added_token(tokenizer, "content", name);
  if (!token.is_object() || !token.value("id", Json()).is_number_integer()) return none;
  return std::optional(token.at("id").get<std::int64_t>());
}

Result<TokenizerFiles> beside(aio::IoQueue& queue, const std::string& token_file) {
  TokenizerFiles found;
  const std::string sidecar_path = token_file + ".json";
  aio::FileSystem& files = queue.backend().files();
  SLUICE_ASSIGN_OR_RETURN(const bool there, files.exists(sidecar_path));
  if (!there) {
    found.note = "there is no " + sidecar_path + ", which would say what made the tokens";
    return found;
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string text,
                          aio::read_small_file(queue, sidecar_path, data::kMaxSidecarBytes));
  auto sidecar = data::parse_token_sidecar(text);
  if (!sidecar.ok()) return std::move(sidecar).error().with_context(sidecar_path);
  found.end_of_text = sidecar->end_of_text;
  if (sidecar->tokenizer == "bytes") {
    found.kind = Kind::kBytes;
    return found;
  }
  found.folder = parent_folder_of(token_file);
  SLUICE_ASSIGN_OR_RETURN(const bool has_json, files.exists(found.json_path()));
  if (has_json)
    found.kind = Kind::kFile;
  else
    found.note = "there is no " + found.json_path();
  return found;
}

// For a tokenizer.json that came without one.
Result<std::string> tokenizer_config(aio::IoQueue& queue, const TokenizerFiles& tokenizer,
                                     std::int64_t context_tokens) {
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"model_max_length", context_tokens},
                 {"clean_up_tokenization_spaces", false}};
  Json name;
  if (tokenizer.kind == Kind::kBytes) name = kEndOfTextName;
  if (tokenizer.kind == Kind::kFile && tokenizer.end_of_text) {
    SLUICE_ASSIGN_OR_RETURN(const Json json, read_json(queue, tokenizer.json_path()));
    const Json token = added_token(json, "id", *tokenizer.end_of_text);
    if (token.is_object()) name = token.value("content", Json());
  }
  if (name.is_string()) config["bos_token"] = config["eos_token"] = name;
  return config.dump(2) + "\n";
}

}  // namespace

Result<TokenizerFiles> find_tokenizer(aio::IoQueue& queue, const std::string& run_directory,
                                      const std::vector<std::string>& token_files) {
  TokenizerFiles found;
  if (!run_directory.empty()) {
    found.folder = run_directory;
    SLUICE_ASSIGN_OR_RETURN(const bool there, queue.backend().files().exists(found.json_path()));
    if (there) {
      found.kind = Kind::kFile;
      SLUICE_ASSIGN_OR_RETURN(found.end_of_text, configured_end(queue, run_directory));
      return found;
    }
  }
  if (!token_files.empty()) return beside(queue, token_files.front());
  found.note = "the configuration names no token files (data.train)";
  return found;
}

Result<bool> copy_tokenizer(aio::IoQueue& queue, const std::string& from, const std::string& to) {
  aio::FileSystem& files = queue.backend().files();
  SLUICE_ASSIGN_OR_RETURN(const bool has_json,
                          files.exists(from + "/" + std::string(kTokenizerName)));
  if (!has_json) return false;
  for (const char* name : kNames) {
    const std::string path = from + "/" + name;
    SLUICE_ASSIGN_OR_RETURN(const bool there, files.exists(path));
    if (!there) continue;
    SLUICE_ASSIGN_OR_RETURN(const std::string text,
                            aio::read_small_file(queue, path, kMaxTokenizerBytes));
    SLUICE_RETURN_IF_ERROR(aio::write_small_file(queue, to + "/" + name, text));
  }
  return true;
}

Status write_tokenizer(aio::IoQueue& queue, const TokenizerFiles& tokenizer,
                       const std::string& folder, std::int64_t context_tokens) {
  if (tokenizer.kind == Kind::kUnknown) return {};
  if (tokenizer.kind == Kind::kFile) {
    SLUICE_ASSIGN_OR_RETURN(const bool copied, copy_tokenizer(queue, tokenizer.folder, folder));
    if (!copied) return Error(ErrorCode::kNotFound, "there is no " + tokenizer.json_path());
  } else {
    SLUICE_RETURN_IF_ERROR(aio::write_small_file(queue, folder + "/" + std::string(kTokenizerName),
                                                 byte_tokenizer_json()));
  }
  const std::string config_path = folder + "/" + kConfigName;
  SLUICE_ASSIGN_OR_RETURN(const bool there, queue.backend().files().exists(config_path));
  if (there) return {};
  SLUICE_ASSIGN_OR_RETURN(const std::string config,
                          tokenizer_config(queue, tokenizer, context_tokens));
  return aio::write_small_file(queue, config_path, config);
}

}  // namespace sluice::engine
