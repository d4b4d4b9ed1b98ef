#include "swap/store_layout.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "aio/striped_file.h"
#include "aio/units.h"

namespace sluice::swap {
namespace {

constexpr std::uint64_t kMaxChunkBytes = 16 * kMiB;
constexpr std::uint64_t kMaxStoreBytes = std::uint64_t{1} << 56;
constexpr std::size_t kMaxRecords = 1 << 20;

Error invalid(std::string what) { return Error(ErrorCode::kInvalidArgument, std::move(what)); }

Status check_options(const StoreLayoutOptions& o) {
  if (o.paths.empty()) return invalid("a store needs at least one path");
  for (const std::string& path : o.paths) {
    if (std::count(o.paths.begin(), o.paths.end(), path) > 1)
      return invalid("the path " + path + " was given twice");
  }
  if (!o.weights.empty() && o.weights.size() != o.paths.size()) {
    return invalid("a store of " + std::to_string(o.paths.size()) + " paths was given " +
                   std::to_string(o.weights.size()) + " weights");
  }
  for (const int weight : o.weights) {
    if (weight < 1 || weight > aio::StripedFile::kMaxWeight)
      return invalid("a path's weight is " + std::to_string(weight) + "; it must be 1 to " +
                     std::to_string(aio::StripedFile::kMaxWeight));
  }
  if (o.places != 1 && o.places != 2)
    return invalid("a record has one place or two, not " + std::to_string(o.places));
  if (o.stripe_bytes == 0 || o.stripe_bytes % 4096 != 0 || o.stripe_bytes > kMaxStoreBytes)
    return invalid("a stripe must be a multiple of 4096 bytes, not " +
                   std::to_string(o.stripe_bytes));
  if (o.chunk_bytes == 0 || o.chunk_bytes % 64 != 0 || o.chunk_bytes > kMaxChunkBytes)
    return invalid("a checksum's chunk must be a multiple of 64 bytes and at most " +
                   format_bytes(kMaxChunkBytes) + ", not " + std::to_string(o.chunk_bytes));
  return {};
}

Status check_record(const RecordSpec& record, std::uint64_t chunk_bytes) {
  if (record.elements == 0 || record.payload_bytes == 0)
    return invalid("record " + name_of(record) + " is empty");
  if (record.elements > kMaxStoreBytes || record.first_element > kMaxStoreBytes)
    return invalid("record " + name_of(record) + " begins or ends nowhere");
  if (record.payload_bytes > kMaxChunks * chunk_bytes) {
    return invalid("record " + name_of(record) + " has " + format_bytes(record.payload_bytes) +
                   "; with checksums of " + format_bytes(chunk_bytes) + " each, " +
                   format_bytes(kMaxChunks * chunk_bytes) + " are the most");
  }
  return {};
}

}  // namespace

std::string name_of(const RecordSpec& spec) {
  return spec.parameter + "[" + std::to_string(spec.first_element) + ".." +
         std::to_string(spec.first_element + spec.elements) + ")";
}

Result<StoreLayout> StoreLayout::create(StoreLayoutOptions options,
                                        std::vector<RecordSpec> records) {
  SLUICE_RETURN_IF_ERROR(check_options(options));
  if (records.empty()) return invalid("a store needs at least one record");
  if (records.size() > kMaxRecords) {
    return invalid("a store has at most " + std::to_string(kMaxRecords) +
                   " records: make them larger");
  }
  StoreLayout layout;
  layout.options_ = std::move(options);
  layout.records_ = std::move(records);
  layout.offsets_.reserve(layout.records_.size());
  std::set<std::pair<std::string_view, std::uint64_t>> keys;
  for (const RecordSpec& record : layout.records_) {
    SLUICE_RETURN_IF_ERROR(check_record(record, layout.options_.chunk_bytes));
    if (!keys.emplace(record.parameter, record.first_element).second)
      return invalid("two records are called " + name_of(record));
    const auto id = static_cast<RecordId>(layout.offsets_.size());
    layout.offsets_.push_back(layout.place_bytes_);
    const std::uint64_t image_bytes = layout.shape(id).image_bytes();
    layout.place_bytes_ += image_bytes;
    layout.largest_image_bytes_ = std::max(layout.largest_image_bytes_, image_bytes);
    if (layout.total_bytes() > kMaxStoreBytes)
      return invalid("a store of more than " + format_bytes(kMaxStoreBytes));
  }
  return layout;
}

RecordShape StoreLayout::shape(RecordId id) const {
  const RecordSpec& record = records_[id];
  return {.store_id = options_.store_id,
          .record = id,
          .first_element = record.first_element,
          .elements = record.elements,
          .payload_bytes = record.payload_bytes,
          .chunk_bytes = options_.chunk_bytes};
}

}  // namespace sluice::swap
