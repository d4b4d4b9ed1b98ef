#include "engine/checkpoint/checkpoint_manifest.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "aio/small_file.h"
#include "aio/units.h"
#include "engine/checkpoint/checkpoint_names.h"
#include "engine/checkpoint/manifest_parts.h"
#include "engine/weights/quoting.h"
#include "engine/weights/safetensors_index.h"
#include "swap/chunk_hash.h"
#include "swap/sealed_json.h"

namespace sluice::engine {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "sluice-checkpoint";
constexpr std::int64_t kVersion = 9;          // before 9, a version stood for the set of keys
constexpr const char* kFirstFamily = "gpt2";  // of checkpoints that name no family
// Features that a reader must support to read a checkpoint correctly.
constexpr std::array<std::string_view, 8> kFeatures = {
    "adapters", "client", "evaluations", "lists", "moments", "nf4", "parts", "store"};
constexpr std::int64_t kMaxWorldSize = 1 << 20;
constexpr std::uint64_t kHashDomain = 0x736c7563'636b7074;  // a store's id has no such place
constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{1} << 28;
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 50;
constexpr std::size_t kHexDigits = 16;

Error corrupt(std::string what) { return Error(ErrorCode::kCorrupt, std::move(what)); }
Error edited() {
  return corrupt("it is not in the form that Sluice writes (damaged, or edited by hand)");
}

// ---- to text ------------------------------------------------------------------------------------

json finite_or_null(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? json(*value) : json();
}

json to_json(const StoredPosition& position) {
  const StoredLossScale& scale = position.loss_scale;
  return {{"global_step", position.global_step},
          {"applied_step", position.applied_step},
          {"samples_drawn", position.samples_drawn},
          {"skipped_in_a_row", position.skipped_in_a_row},
          {"loss_scale",
           {{"scale", scale.scale},
            {"steps", scale.steps},
            {"last_overflow_step", scale.last_overflow_step},
            {"hysteresis_left", scale.hysteresis_left}}}};
}

json to_json(const StoredEvaluations& evaluations) {
  return {{"lowest_loss", finite_or_null(evaluations.lowest_loss)},
          {"lowest_step", evaluations.lowest_step},
          {"without_improvement", evaluations.without_improvement}};
}

bool has_nf4(const std::optional<StoredAdapters>& adapters) {
  return adapters && adapters->base_bits == 4;
}

// The features of kFeatures that the manifest uses.
json features_of(const CheckpointManifest& manifest) {
  const std::array<bool, kFeatures.size()> has = {manifest.state.run.adapters.has_value(),
                                                  !manifest.state.client.empty(),
                                                  manifest.state.evaluations.has_value(),
                                                  !manifest.state.run.family_lists.empty(),
                                                  manifest.moments != DType::kF32,
                                                  has_nf4(manifest.state.run.adapters),
                                                  manifest.in_parts(),
                                                  manifest.records.has_value()};
  json names = json::array();
  for (std::size_t i = 0; i < has.size(); ++i)
    if (has[i]) names.push_back(kFeatures[i]);
  return names;
}

json to_json(const StoredRun& run) {
  json text = {
      {"seed", run.seed},
      {"data_order", run.data_order},
      {"precision", run.precision},
      {"cpu_threads", run.cpu_threads},
      {"model", run.model},
      {"dropout", run.dropout},
      {"sums",
       {{"by_use", run.sums.by_use}, {"lanes", run.sums.lanes}, {"rounds", run.sums.rounds}}},
      {"family", run.family},
      {"family_numbers", run.family_numbers}};
  if (!run.family_lists.empty()) text["family_lists"] = run.family_lists;
  if (run.adapters) {
    text["adapters"] = {{"rank", run.adapters->rank},
                        {"alpha", run.adapters->alpha},
                        {"rank_stabilised", run.adapters->rank_stabilised},
                        {"dropout", run.adapters->dropout},
                        {"base_bits", run.adapters->base_bits},
                        {"targets", run.adapters->targets},
                        {"base", run.adapters->base},
                        {"base_sample", run.adapters->base_sample}};
    if (has_nf4(run.adapters)) text["adapters"]["double_quant"] = run.adapters->double_quant;
  }
  return text;
}

json to_json(const StoredFile& file) {
  std::string chunks;
  chunks.reserve(file.chunks.size() * kHexDigits);
  for (const std::uint64_t hash : file.chunks) chunks += swap::to_hex(hash);
  return {{"name", file.name}, {"bytes", file.bytes}, {"xxh3_64", std::move(chunks)}};
}

json to_json(const std::vector<StoredFile>& files) {
  json text = json::array();
  for (const StoredFile& file : files) text.push_back(to_json(file));
  return text;
}

// ---- from text: a value of the wrong type throws json::exception --------------------------------

std::optional<double> optional_number(const json& value) {
  if (value.is_null()) return std::nullopt;
  return value.get<double>();
}

StoredPosition position_from_json(const json& content) {
  const json& scale = content.at("loss_scale");
  return {.global_step = content.at("global_step").get<std::int64_t>(),
          .applied_step = content.at("applied_step").get<std::int64_t>(),
          .samples_drawn = content.at("samples_drawn").get<std::uint64_t>(),
          .skipped_in_a_row = content.value("skipped_in_a_row", std::int64_t{0}),
          .loss_scale = {.scale = scale.at("scale").get<double>(),
                         .steps = scale.at("steps").get<std::int64_t>(),
                         .last_overflow_step = scale.at("last_overflow_step").get<std::int64_t>(),
                         .hysteresis_left = scale.at("hysteresis_left").get<int>()}};
}

std::optional<StoredEvaluations> evaluations_from_json(const json& content) {
  const auto found = content.find("evaluations");
  if (found == content.end()) return std::nullopt;
  return StoredEvaluations{
      .lowest_loss = optional_number(found->at("lowest_loss")),
      .lowest_step = found->at("lowest_step").get<std::int64_t>(),
      .without_improvement = found->at("without_improvement").get<std::int64_t>()};
}

std::optional<StoredAdapters> adapters_from_json(const json& run) {
  const auto found = run.find("adapters");
  if (found == run.end()) return std::nullopt;
  return StoredAdapters{.rank = found->at("rank").get<std::int64_t>(),
                        .alpha = found->at("alpha").get<double>(),
                        .rank_stabilised = found->at("rank_stabilised").get<bool>(),
                        .dropout = found->value("dropout", 0.0),
                        .base_bits = found->value("base_bits", StoredAdapters{}.base_bits),
                        .double_quant = found->value("double_quant", false),
                        .targets = found->at("targets").get<std::vector<std::string>>(),
                        .base = found->at("base").get<std::string>(),
                        .base_sample = found->value("base_sample", std::string())};
}

SumsOfRun sums_from_json(const json& run) {
  const auto found = run.find("sums");
  if (found == run.end()) return {};
  return {.by_use = found->at("by_use").get<bool>(),
          .lanes = found->at("lanes").get<std::int64_t>(),
          .rounds = found->at("rounds").get<std::int64_t>()};
}

StoredRun run_from_json(const json& content) {
  return {
      .seed = content.at("seed").get<std::uint64_t>(),
      .data_order = content.at("data_order").get<std::string>(),
      .precision = content.at("precision").get<std::string>(),
      .cpu_threads = content.at("cpu_threads").get<int>(),
      .model = content.at("model").get<std::map<std::string, std::int64_t>>(),
      .dropout = content.at("dropout").get<double>(),
      .sums = sums_from_json(content),
      .family = content.value("family", std::string(kFirstFamily)),
      .family_numbers = content.value("family_numbers", std::map<std::string, double>()),
      .family_lists = content.value("family_lists", std::map<std::string, std::vector<double>>()),
      .adapters = adapters_from_json(content)};
}

Result<StoredFile> file_from_json(const json& content, std::uint64_t chunk_bytes) {
  StoredFile file{.name = content.at("name").get<std::string>(),
                  .bytes = content.at("bytes").get<std::uint64_t>()};
  const auto& hashes = content.at("xxh3_64").get_ref<const std::string&>();
  if (file.bytes == 0 || file.bytes > kMaxFileBytes)
    return corrupt("it says that " + file.name + " has " + std::to_string(file.bytes) + " bytes");
  const std::uint64_t count = (file.bytes - 1) / chunk_bytes + 1;
  if (hashes.size() != count * kHexDigits)
    return corrupt("its checksums for " + file.name + " do not fit " + std::to_string(count) +
                   " chunks");
  file.chunks.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    SLUICE_ASSIGN_OR_RETURN(const std::uint64_t hash,
                            swap::parse_hex(hashes.substr(i * kHexDigits, kHexDigits)));
    file.chunks.push_back(hash);
  }
  return file;
}

Result<DType> moments_from_json(const json& content) {
  const auto found = content.find("moments");
  if (found == content.end()) return DType::kF32;
  const auto name = found->get<std::string>();
  if (name == to_string(DType::kBF16)) return DType::kBF16;
  return corrupt("it says that its moments are " + name + ", but a manifest may only say BF16");
}

Status check_position(const StoredPosition& position) {
  const bool possible = position.global_step >= 0 && position.applied_step >= 0 &&
                        position.applied_step <= position.global_step &&
                        position.skipped_in_a_row >= 0 &&
                        position.skipped_in_a_row <= position.global_step - position.applied_step &&
                        position.loss_scale.steps >= 0 && position.loss_scale.scale > 0;
  return possible ? Status() : corrupt("its step and loss scale are impossible");
}

Status check_sums(const SumsOfRun& sums) {
  if (sums.lanes > 0 && sums.rounds > 0) return {};
  return corrupt("it says that gradients are accumulated in " + std::to_string(sums.lanes) +
                 " lanes and " + std::to_string(sums.rounds) + " rounds");
}

Status check_evaluations(const CheckpointState& state) {
  if (!state.evaluations) return {};
  const StoredEvaluations& made = *state.evaluations;
  const bool possible = made.lowest_step >= 0 && made.lowest_step <= state.position.global_step &&
                        made.without_improvement >= 0;
  return possible ? Status() : corrupt("its evaluations are impossible");
}

// The names and their order are those that the writer uses.
Status check_files(const CheckpointManifest& manifest) {
  const std::vector<StoredFile>& files = manifest.files;
  const std::size_t shards = manifest.shards();
  const std::size_t others = manifest.in_parts() ? 0 : 1;  // the index
  if ((shards == 0 && !manifest.records) || shards > kMaxShards ||
      files.size() % offload::kStateFields.size() != others)
    return corrupt("it lists " + std::to_string(files.size()) +
                   " files, a number that no checkpoint has");
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string expected =
        i == shards * offload::kStateFields.size()
            ? std::string(kWeightIndexName)
            : shard_name(offload::kStateFields[i / shards], i % shards, shards);
    if (files[i].name != expected) return corrupt("it lists another file in place of " + expected);
  }
  return {};
}

// "; use the version of sluice that wrote it, 0.3.0, or a newer one". This version cannot tell
// where a newer one stores that key.
std::string use_its_version(const json& content) {
  const auto version = content.find("program_version");
  const bool known = version != content.end() && version->is_string();
  return "; use the version of sluice that wrote it" +
         (known ? ", " + version->get<std::string>() + "," : std::string()) + " or a newer one";
}

Status check_world(const json& content) {
  const auto ranks = content.at("world_size").get<std::int64_t>();
  if (ranks < 1 || ranks > kMaxWorldSize)
    return corrupt("it is of " + std::to_string(ranks) + " ranks, which is impossible");
  const bool in_parts = content.contains("tensors") && content.contains("pieces");
  if (content.contains("store")) {
    if (in_parts && ranks == 1) return {};
    return corrupt("it is of " + std::to_string(ranks) +
                   " ranks and has state in a store, but does not say how they share it");
  }
  if (in_parts == (ranks > 1)) return {};
  return corrupt("it is of " + std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks") +
                 ", but it " + (in_parts ? "says" : "does not say") +
                 " what each rank has written");
}

// Checks that this program can read it. Features of a later program are not damage.
Status check_format(const json& content) {
  if (content.at("format").get<std::string>() != kFormat)
    return corrupt("it is not the manifest of a checkpoint");
  const auto version = content.at("version").get<std::int64_t>();
  if (version < 1)
    return corrupt("it is of format version " + content.at("version").dump() +
                   ", which does not exist");
  if (version > kVersion)
    return Error(ErrorCode::kNewerVersion, "it is of format version " + std::to_string(version) +
                                               ", but this program reads only versions up to " +
                                               std::to_string(kVersion) + use_its_version(content));
  if (version == kVersion) {
    for (const json& feature : content.at("features")) {
      const auto name = feature.get<std::string>();
      if (std::ranges::find(kFeatures, name) == kFeatures.end())
        return Error(ErrorCode::kNewerVersion, "it needs " + in_quotes(name) +
                                                   ", which this version does not support" +
                                                   use_its_version(content));
    }
  }
  return check_world(content);
}

Result<CheckpointManifest> manifest_from_json(const json& content) {
  SLUICE_RETURN_IF_ERROR(check_format(content));
  CheckpointManifest manifest;
  manifest.state = {.position = position_from_json(content.at("train")),
                    .run = run_from_json(content.at("run")),
                    .loss = optional_number(content.at("loss")),
                    .validation_loss = optional_number(content.at("validation_loss")),
                    .evaluations = evaluations_from_json(content),
                    .configuration = content.at("configuration").get<std::string>(),
                    .client = content.value("client", std::string()),
                    .program_version = content.at("program_version").get<std::string>()};
  SLUICE_RETURN_IF_ERROR(check_position(manifest.state.position));
  SLUICE_RETURN_IF_ERROR(check_sums(manifest.state.run.sums));
  SLUICE_RETURN_IF_ERROR(check_evaluations(manifest.state));
  manifest.parameters = content.at("parameters").get<std::uint64_t>();
  manifest.elements = content.at("elements").get<std::uint64_t>();
  SLUICE_ASSIGN_OR_RETURN(manifest.moments, moments_from_json(content));
  manifest.chunk_bytes = content.at("chunk_bytes").get<std::uint64_t>();
  if (manifest.chunk_bytes < kMinChunkBytes || manifest.chunk_bytes > kMaxChunkBytes ||
      manifest.chunk_bytes % kMinChunkBytes != 0)
    return corrupt("its chunks have " + std::to_string(manifest.chunk_bytes) +
                   " bytes, which is not a multiple of 4096 up to 64M");
  for (const json& entry : content.at("files")) {
    SLUICE_ASSIGN_OR_RETURN(StoredFile file, file_from_json(entry, manifest.chunk_bytes));
    manifest.files.push_back(std::move(file));
  }
  manifest.world = content.at("world_size").get<int>();
  SLUICE_RETURN_IF_ERROR(parts_from_json(content, manifest));
  SLUICE_RETURN_IF_ERROR(check_files(manifest));
  if (manifest.in_parts()) SLUICE_RETURN_IF_ERROR(check_parts(manifest));
  return manifest;
}

}  // namespace

std::uint64_t CheckpointManifest::total_bytes() const {
  std::uint64_t total = 0;
  for (const StoredFile& file : files) total += file.bytes;
  return total + (records ? records->total_bytes() : 0);
}

std::uint64_t checkpoint_hash(std::span<const std::byte> bytes, const CheckpointChunk& place) {
  return swap::chunk_hash(bytes, {.store_id = kHashDomain,
                                  .record = place.file,
                                  .generation = 0,
                                  .offset_bytes = place.offset_bytes});
}

std::string to_text(const CheckpointManifest& manifest) {
  json content = {{"format", kFormat},
                  {"version", kVersion},
                  {"features", features_of(manifest)},
                  {"world_size", manifest.world},
                  {"program_version", manifest.state.program_version},
                  {"train", to_json(manifest.state.position)},
                  {"run", to_json(manifest.state.run)},
                  {"loss", finite_or_null(manifest.state.loss)},
                  {"validation_loss", finite_or_null(manifest.state.validation_loss)},
                  {"configuration", manifest.state.configuration},
                  {"parameters", manifest.parameters},
                  {"elements", manifest.elements},
                  {"chunk_bytes", manifest.chunk_bytes},
                  {"files", to_json(manifest.files)}};
  if (!manifest.state.client.empty()) content["client"] = manifest.state.client;
  if (manifest.state.evaluations) content["evaluations"] = to_json(*manifest.state.evaluations);
  if (manifest.moments != DType::kF32) content["moments"] = to_string(manifest.moments);
  if (manifest.in_parts()) parts_to_json(manifest, content);
  return swap::to_sealed_text(content);
}

Status check_manifest_room(const CheckpointState& state, std::span<const TensorSpec> parameters,
                           std::size_t records) {
  constexpr std::uint64_t kBytesOfTensor = 512;  // shape and, with several ranks, pieces
  constexpr std::uint64_t kBytesOfRecord =
      512;  // its place, and the pieces that begin or end in it
  CheckpointManifest manifest{.state = state};
  std::uint64_t others = json(state.client).dump().size() + records * kBytesOfRecord;
  manifest.state.client.clear();
  for (const TensorSpec& tensor : parameters) {
    std::uint64_t elements = 1;
    for (const std::int64_t size : tensor.shape) elements *= static_cast<std::uint64_t>(size);
    manifest.elements += elements;
    others += kBytesOfTensor + 2 * tensor.name.size();
  }
  StoredFile all{.name = "state",
                 .bytes = offload::kStateFields.size() * sizeof(float) * manifest.elements};
  all.chunks.assign(all.bytes / manifest.chunk_bytes + 1, ~std::uint64_t{0});
  manifest.files.push_back(std::move(all));
  const std::uint64_t bytes = to_text(manifest).size() + others;
  if (bytes <= kMaxManifestBytes) return {};
  return Error(
      ErrorCode::kInvalidArgument,
      "client_state is too large: the checkpoint's manifest would have " + format_bytes(bytes) +
          ", but at most " + format_bytes(kMaxManifestBytes) +
          " are possible. Keep large data in a separate file, and its path in client_state");
}

Result<CheckpointManifest> parse_checkpoint_manifest(std::string_view text) {
  SLUICE_ASSIGN_OR_RETURN(const json content, swap::parse_sealed_text(text));
  try {
    if (swap::to_sealed_text(content) != text) return edited();
    auto manifest = manifest_from_json(content);
    const bool is_ours = content.at("version").get<std::int64_t>() == kVersion;
    if (manifest.ok() && is_ours && to_text(*manifest) != text) return edited();
    return manifest;
  } catch (const json::exception& wrong) {
    return corrupt(std::string("its content is not valid: ") + wrong.what());
  }
}

Result<CheckpointManifest> read_checkpoint_manifest(aio::IoQueue& queue,
                                                    const std::string& folder) {
  const std::string path = folder + "/" + std::string(kManifestName);
  const auto text = aio::read_small_file(queue, path, kMaxManifestBytes);
  if (!text.ok()) {
    if (text.error().code() == ErrorCode::kNotFound)
      return Error(ErrorCode::kNotFound,
                   "there is no " + path + ": no checkpoint was completed there");
    if (text.error().code() == ErrorCode::kInvalidArgument) return corrupt(text.error().message());
    return text.error();
  }
  auto manifest = parse_checkpoint_manifest(*text);
  if (!manifest.ok()) return std::move(manifest).error().with_context(path);
  return manifest;
}

}  // namespace sluice::engine
