#include "swap/store_manifest.h"

#include <span>
#include <utility>

#include "aio/small_file.h"
#include "swap/sealed_json.h"
#include "swap/store_files.h"

namespace sluice::swap {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "sluice-state-store";
constexpr std::int64_t kVersion = 1;
// Larger files are not manifests of ours.
constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{1} << 28;

Error corrupt(std::string what) { return Error(ErrorCode::kCorrupt, std::move(what)); }

Error not_as_it_should_be(const json::exception& wrong) {
  return corrupt(std::string("its content is not as it should be: ") + wrong.what());
}

json records_to_json(std::span<const RecordSpec> records) {
  json list = json::array();
  for (const RecordSpec& r : records)
    list.push_back({r.parameter, r.first_element, r.elements, r.payload_bytes});
  return list;
}

// Anything of another type throws json::exception, which parse() turns into a sentence.
std::vector<RecordSpec> records_from_json(const json& list) {
  std::vector<RecordSpec> records;
  for (const json& r : list) {
    records.push_back({.parameter = r.at(0).get<std::string>(),
                       .first_element = r.at(1).get<std::uint64_t>(),
                       .elements = r.at(2).get<std::uint64_t>(),
                       .payload_bytes = r.at(3).get<std::uint64_t>()});
  }
  return records;
}

Result<StoreManifest> manifest_from_json(const json& content) {
  if (content.at("format").get<std::string>() != kFormat) return corrupt("it is not a state store");
  const auto version = content.at("version").get<std::int64_t>();
  if (version != kVersion) {
    return Error(version > kVersion ? ErrorCode::kNewerVersion : ErrorCode::kCorrupt,
                 "it is of format version " + std::to_string(version) +
                     ", and this program reads version " + std::to_string(kVersion));
  }
  SLUICE_ASSIGN_OR_RETURN(const std::uint64_t store_id,
                          parse_hex(content.at("store_id").get<std::string>()));
  const auto member = content.at("member").get<std::size_t>();
  StoreLayoutOptions options{.store_id = store_id,
                             .run = content.at("run").get<std::string>(),
                             .paths = content.at("paths").get<std::vector<std::string>>(),
                             .weights = content.at("weights").get<std::vector<int>>(),
                             .stripe_bytes = content.at("stripe_bytes").get<std::uint64_t>(),
                             .chunk_bytes = content.at("chunk_bytes").get<std::uint64_t>(),
                             .generations = content.at("generations").get<std::uint32_t>()};
  if (member >= options.paths.size()) return corrupt("it is of a path that it does not list");
  SLUICE_ASSIGN_OR_RETURN(
      StoreLayout layout,
      StoreLayout::create(std::move(options), records_from_json(content.at("records"))));
  return StoreManifest{std::move(layout), member};
}

}  // namespace

std::string to_text(const StoreLayout& layout, std::size_t member) {
  const StoreLayoutOptions& o = layout.options();
  return to_sealed_text({{"format", kFormat},
                         {"version", kVersion},
                         {"store_id", to_hex(o.store_id)},
                         {"run", o.run},
                         {"paths", o.paths},
                         {"member", member},
                         {"weights", o.weights},
                         {"stripe_bytes", o.stripe_bytes},
                         {"chunk_bytes", o.chunk_bytes},
                         {"generations", o.generations},
                         {"records", records_to_json(layout.records())}});
}

Result<StoreManifest> parse_manifest(std::string_view text) {
  SLUICE_ASSIGN_OR_RETURN(const json content, parse_sealed_text(text));
  try {
    return manifest_from_json(content);
  } catch (const json::exception& wrong) {
    return not_as_it_should_be(wrong);
  }
}

std::string to_text(const ClosedMark& mark) {
  return to_sealed_text({{"store_id", to_hex(mark.store_id)},
                         {"generations", mark.generations},
                         {"note", mark.note}});
}

Result<ClosedMark> parse_closed_mark(std::string_view text) {
  SLUICE_ASSIGN_OR_RETURN(const json content, parse_sealed_text(text));
  try {
    ClosedMark mark;
    SLUICE_ASSIGN_OR_RETURN(mark.store_id, parse_hex(content.at("store_id").get<std::string>()));
    mark.generations = content.at("generations").get<std::vector<std::uint64_t>>();
    mark.note = content.at("note").get<std::string>();
    return mark;
  } catch (const json::exception& wrong) {
    return not_as_it_should_be(wrong);
  }
}

Result<StoreManifest> read_manifest(aio::IoQueue& queue, const std::string& folder) {
  const std::string path = manifest_path(folder);
  SLUICE_ASSIGN_OR_RETURN(const std::string text,
                          aio::read_small_file(queue, path, kMaxManifestBytes));
  auto manifest = parse_manifest(text);
  if (!manifest.ok()) return std::move(manifest).error().with_context(path);
  return manifest;
}

Result<std::optional<ClosedMark>> read_mark(aio::IoQueue& queue, const std::string& folder) {
  const std::string path = closed_mark_path(folder);
  auto text = aio::read_small_file(queue, path, kMaxManifestBytes);
  if (!text.ok()) {
    if (text.error().code() == ErrorCode::kNotFound) return std::optional<ClosedMark>();
    return std::move(text).error();
  }
  auto mark = parse_closed_mark(*text);
  if (!mark.ok()) return std::move(mark).error().with_context(path);
  return std::optional(std::move(*mark));
}

namespace {
Error closed_or_not_unknown(const std::string& folder, const std::string& other, const char* why) {
  return {ErrorCode::kAlreadyExists, folder + " is part of a store whose part in " + other + ' ' +
                                         why + ", so that whether it was closed is not known"};
}
}  // namespace

Result<bool> is_closed(aio::IoQueue& queue, const std::string& folder, const std::string& run) {
  aio::FileSystem& files = queue.backend().files();
  const auto manifest = read_manifest(queue, folder);
  const bool made = manifest.ok();
  if (!made && manifest.error().code() != ErrorCode::kNotFound) return manifest.error();
  SLUICE_ASSIGN_OR_RETURN(const bool marked, files.exists(closed_mark_path(folder)));
  if (marked || !made) return marked;
  const StoreLayoutOptions& store = manifest->layout.options();
  for (std::size_t member = 0; member < store.paths.size(); ++member) {
    if (member == manifest->member) continue;
    const std::string other = folder_of(store.paths[member], run);
    SLUICE_ASSIGN_OR_RETURN(const bool there, files.exists(other));
    if (!there) return closed_or_not_unknown(folder, other, "is not there");
    SLUICE_ASSIGN_OR_RETURN(const auto mark, read_mark(queue, other));
    if (mark && mark->store_id == store.store_id) return true;
    const auto its = read_manifest(queue, other);
    if (!its.ok() && its.error().code() != ErrorCode::kNotFound) return its.error();
    if (its.ok() && its->layout.options().store_id != store.store_id)
      return closed_or_not_unknown(folder, other, "has given way to another store");
  }
  return false;
}

}  // namespace sluice::swap
