#include "engine/exchange/kept_tokenizer.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "aio/bounded_json.h"
#include "aio/log.h"
#include "aio/small_file.h"
#include "engine/checkpoint/run_directory.h"

namespace sluice::engine {
namespace {

using Json = nlohmann::ordered_json;
using Kind = TokenizerFiles::Kind;

constexpr std::string_view kNext = ".new";
constexpr std::string_view kFingerprintName = "fingerprint.json";
constexpr std::uint64_t kMaxFingerprintBytes = 1 << 20;

Status write_fingerprint(aio::IoQueue& queue, const TokenizerFiles& tokenizer,
                         const std::string& folder) {
  std::error_code error;
  const Json json = {{"vocabulary_sha256", tokenizer.fingerprint},
                     {"tokens", tokenizer.tokens},
                     {"source", std::filesystem::absolute(tokenizer.source, error).string()}};
  return aio::write_small_file(queue, folder + "/" + std::string(kFingerprintName),
                               json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

Status read_fingerprint(aio::IoQueue& queue, const std::string& folder, TokenizerFiles& found) {
  const std::string path = folder + "/" + std::string(kFingerprintName);
  SLUICE_ASSIGN_OR_RETURN(const bool there, queue.backend().files().exists(path));
  if (!there) return {};
  SLUICE_ASSIGN_OR_RETURN(const std::string text,
                          aio::read_small_file(queue, path, kMaxFingerprintBytes));
  const Json json = json_or_discarded<Json>(text);
  const Json hash = json.is_object() ? json.value("vocabulary_sha256", Json()) : Json();
  const Json tokens = json.is_object() ? json.value("tokens", Json()) : Json();
  const Json source = json.is_object() ? json.value("source", Json()) : Json();
  if (!hash.is_string() || !tokens.is_number_unsigned() || !source.is_string())
    return Error(ErrorCode::kCorrupt, path + " does not say which tokenizer the run uses");
  found.source = path;
  found.fingerprint = hash.get<std::string>();
  found.tokens = tokens.get<std::uint64_t>();
  found.note += ", and " + source.get<std::string>() + " named it, but its file is missing";
  return {};
}

Result<TokenizerFiles> kept_in(aio::IoQueue& queue, const std::string& folder) {
  SLUICE_ASSIGN_OR_RETURN(TokenizerFiles found, tokenizer_in(queue, folder));
  if (found.kind == Kind::kUnknown) SLUICE_RETURN_IF_ERROR(read_fingerprint(queue, folder, found));
  return found;
}

std::string folder_in(const std::string& directory) { return directory + "/tokenizer"; }

// The folder in which a tokenizer is written.
std::string next_in(const std::string& directory) {
  return folder_in(directory) + std::string(kNext);
}

// If the program ended while one tokenizer replaced another, this is tokenizer.new.
Result<std::string> kept_folder(aio::FileSystem& files, const std::string& directory) {
  SLUICE_ASSIGN_OR_RETURN(const bool there, files.exists(folder_in(directory)));
  SLUICE_ASSIGN_OR_RETURN(const bool next,
                          files.exists(next_in(directory) + "/" + std::string(kTokenizerName)));
  return there || !next ? folder_in(directory) : next_in(directory);
}

bool is_ours(std::string_view name) {
  if (name.ends_with(kNext)) name.remove_suffix(kNext.size());  // name before its rename
  return is_tokenizer_file(name) || name == kFingerprintName;
}

// Removes our files, and the folder if nothing else is in it.
Status remove_files_in(aio::FileSystem& files, const std::string& folder) {
  SLUICE_ASSIGN_OR_RETURN(const aio::PathKind kind, files.kind_of(folder));
  if (kind == aio::PathKind::kLink)
    return Error(ErrorCode::kInvalidArgument,
                 folder + " is a link, and Sluice removes nothing through links");
  const auto names = files.list(folder);
  if (!names.ok() && names.error().code() == ErrorCode::kNotFound) return {};
  if (!names.ok()) return names.error();
  std::size_t left = names->size();
  for (const std::string& name : *names) {
    if (!is_ours(name)) continue;
    SLUICE_RETURN_IF_ERROR(files.remove(std::string(folder).append("/").append(name)));
    --left;
  }
  return left == 0 ? files.remove(folder) : Status();
}

// Sets an existing tokenizer aside first.
Status install(aio::IoQueue& queue, const TokenizerFiles& tokenizer, const KeepTokenizer& keep) {
  aio::FileSystem& files = queue.backend().files();
  const std::string folder = folder_in(keep.directory);
  const std::string next = next_in(keep.directory);
  const std::string step = std::to_string(keep.first_step);
  SLUICE_RETURN_IF_ERROR(remove_files_in(files, next));  // from an interrupted call
  SLUICE_RETURN_IF_ERROR(files.make_directories(next));
  SLUICE_RETURN_IF_ERROR(write_tokenizer(queue, tokenizer, next, keep.context_tokens));
  SLUICE_ASSIGN_OR_RETURN(const std::string aside,
                          aio::unused_name(files, folder + "-before-step-" + step));
  SLUICE_ASSIGN_OR_RETURN(const bool there, files.exists(folder));
  if (there) SLUICE_RETURN_IF_ERROR(files.rename(folder, aside));
  SLUICE_RETURN_IF_ERROR(files.rename(next, folder));
  SLUICE_RETURN_IF_ERROR(files.sync_directory(keep.directory));
  if (there)
    log::warning("from step " + step + " the run's tokenizer is " + tokenizer.description() +
                 "; the previous one is in " + aside);
  return {};
}

// Adds what the stored tokenizer lacks; both must be the same tokenizer.
Status add(aio::IoQueue& queue, const TokenizerFiles& there, const TokenizerFiles& tokenizer,
           const KeepTokenizer& keep) {
  const bool has_file = there.kind == Kind::kUnknown && tokenizer.kind != Kind::kUnknown;
  const bool has_hash = there.fingerprint.empty() && !tokenizer.fingerprint.empty();
  const bool has_special = !tokenizer.special.empty() && !(tokenizer.special == there.special);
  if (!has_file && !has_hash && !has_special) return {};
  const std::string folder = folder_in(keep.directory);
  aio::FileSystem& files = queue.backend().files();
  SLUICE_ASSIGN_OR_RETURN(const bool has_folder, files.exists(folder));
  if (has_file && !has_folder) return install(queue, tokenizer, keep);
  SLUICE_RETURN_IF_ERROR(files.make_directories(folder));
  SLUICE_RETURN_IF_ERROR(files.sync_directory(keep.directory));
  if (has_file) return write_tokenizer(queue, tokenizer, folder, keep.context_tokens);
  if (has_special) SLUICE_RETURN_IF_ERROR(write_special_tokens(queue, tokenizer, folder));
  return has_hash ? write_fingerprint(queue, tokenizer, folder) : Status();
}

}  // namespace

Result<TokenizerFiles> tokenizer_of_run(aio::IoQueue& queue, const std::string& directory) {
  SLUICE_ASSIGN_OR_RETURN(const std::string folder,
                          kept_folder(queue.backend().files(), directory));
  SLUICE_ASSIGN_OR_RETURN(TokenizerFiles kept, kept_in(queue, folder));
  if (kept.kind != Kind::kUnknown) return kept;
  // Older imports stored the tokenizer in the run's directory itself.
  if (!may_hold_old_tokenizer(queue, directory)) return kept;
  SLUICE_ASSIGN_OR_RETURN(TokenizerFiles older, tokenizer_in(queue, directory));
  // A model's folder without a tokenizer still names the tokens that end a text.
  kept.special = kept.special.or_else(older.special);
  if (older.kind == Kind::kUnknown) return kept;
  older.special = kept.special;
  return older;
}

Result<TokenizerFiles> find_tokenizer(aio::IoQueue& queue, const std::string& directory,
                                      const std::vector<std::string>& token_files) {
  TokenizerFiles found;
  if (!directory.empty()) {
    SLUICE_ASSIGN_OR_RETURN(found, tokenizer_of_run(queue, directory));
    if (found.kind != Kind::kUnknown) return found;
  }
  if (token_files.empty()) {
    found.note += (found.note.empty() ? "" : ", and ") +
                  std::string("the configuration names no token files (data.train)");
    return found;
  }
  SLUICE_ASSIGN_OR_RETURN(TokenizerFiles of_tokens,
                          tokenizer_of_tokens(queue, token_files.front()));
  const bool is_other = !found.fingerprint.empty() && !of_tokens.fingerprint.empty() &&
                        found.fingerprint != of_tokens.fingerprint;
  if (!is_other) found.special = found.special.or_else(of_tokens.special);
  if (!is_other && of_tokens.kind != Kind::kUnknown) {
    of_tokens.special = found.special;
    return of_tokens;
  }
  if (found.fingerprint.empty()) {
    found.fingerprint = of_tokens.fingerprint;
    found.tokens = of_tokens.tokens;
    found.source = of_tokens.source;
  }
  found.note += (found.note.empty() ? "" : ", and ") +
                (is_other ? token_files.front() + " belongs to another tokenizer" : of_tokens.note);
  return found;
}

Result<TokenizerFiles> keep_tokenizer(aio::IoQueue& queue, const TokenizerFiles& tokenizer,
                                      const KeepTokenizer& keep) {
  aio::FileSystem& files = queue.backend().files();
  const std::string folder = folder_in(keep.directory);
  SLUICE_ASSIGN_OR_RETURN(const std::string counts, kept_folder(files, keep.directory));
  if (counts != folder) SLUICE_RETURN_IF_ERROR(files.rename(counts, folder));
  SLUICE_ASSIGN_OR_RETURN(TokenizerFiles there, kept_in(queue, folder));
  const bool is_other = !there.fingerprint.empty() && there.fingerprint != tokenizer.fingerprint;
  if (is_other && tokenizer.kind == Kind::kUnknown) {
    log::warning("the run keeps its tokenizer, " + there.description() +
                 ": that of the data cannot replace it (" + tokenizer.note + ")");
    return there;
  }
  SLUICE_RETURN_IF_ERROR(is_other ? install(queue, tokenizer, keep)
                                  : add(queue, there, tokenizer, keep));
  return kept_in(queue, folder);
}

Status remove_kept_tokenizer(aio::FileSystem& files, const std::string& directory) {
  SLUICE_RETURN_IF_ERROR(remove_files_in(files, folder_in(directory)));
  return remove_files_in(files, next_in(directory));
}

}  // namespace sluice::engine
