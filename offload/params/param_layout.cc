#include "offload/params/param_layout.h"

#include <algorithm>
#include <utility>

#include "aio/units.h"
#include "swap/record_image.h"

namespace sluice::offload {
namespace {

constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kMinChunkBytes = kMiB;
constexpr std::uint64_t kMaxChunkBytes = 16 * kMiB;
constexpr std::uint64_t kMaxUnitBytes = swap::kMaxChunks * kMaxChunkBytes;

Error invalid(std::string what) { return Error(ErrorCode::kInvalidArgument, std::move(what)); }

Status check(std::span<const ParamUnit> units, std::uint64_t element_bytes, int buffers) {
  if (units.empty()) return invalid("a model needs at least one unit");
  if (buffers < ParamLayout::kMinBuffers || buffers > ParamLayout::kMaxBuffers) {
    return invalid("there cannot be " + std::to_string(buffers) +
                   " buffers for parameters of one size: it must be " +
                   std::to_string(ParamLayout::kMinBuffers) + " to " +
                   std::to_string(ParamLayout::kMaxBuffers));
  }
  for (const ParamUnit& unit : units) {
    if (unit.elements == 0 && unit.tier == Tier::kNvme)
      return invalid("unit " + unit.name + " has no parameters, and so no record on NVMe");
    if (unit.elements > kMaxUnitBytes / element_bytes) {
      return invalid("unit " + unit.name + " has " + std::to_string(unit.elements) +
                     " parameters of " + std::to_string(element_bytes) + " bytes; a unit has " +
                     format_bytes(kMaxUnitBytes) + " at most: split it in two, or train adapters");
    }
  }
  return {};
}

// The smallest chunk size for which a record's header has room for the largest unit's checksums.
std::uint64_t chunk_bytes_for(std::uint64_t largest_bytes) {
  const std::uint64_t needed = (largest_bytes + swap::kMaxChunks - 1) / swap::kMaxChunks;
  return std::max(kMinChunkBytes, align_up(needed, kPageBytes));
}

}  // namespace

std::uint64_t param_mapping_bytes(std::uint64_t bytes) { return align_up(bytes, kPageBytes); }

std::uint64_t param_image_bytes(std::uint64_t bytes) {
  return swap::RecordShape{.payload_bytes = bytes}.image_bytes();
}

bool ParamBuffers::add(std::uint64_t image_bytes) {
  const bool begins = buffer_bytes_ == 0 || image_bytes < buffer_bytes_ / 4 * 3;
  if (begins) {
    buffer_bytes_ = image_bytes;
    buffers_ = 0;
  }
  if (buffers_ < most_) {
    ++buffers_;
    bytes_ += buffer_bytes_;
  }
  return begins;
}

Result<ParamLayout> ParamLayout::create(std::span<const ParamUnit> units, int element_bytes,
                                        int buffers_of_a_class) {
  if (element_bytes != 1 && element_bytes != 2 && element_bytes != 4)
    return invalid("a parameter has 1, 2 or 4 bytes, not " + std::to_string(element_bytes));
  const auto bytes_each = static_cast<std::uint64_t>(element_bytes);
  SLUICE_RETURN_IF_ERROR(check(units, bytes_each, buffers_of_a_class));
  ParamLayout layout;
  std::uint64_t largest_bytes = 0;
  for (const ParamUnit& unit : units) {
    Place place{.tier = unit.tier, .bytes = unit.elements * bytes_each};
    if (unit.tier == Tier::kGpu) {
      place.bytes = 0;
    } else if (unit.tier == Tier::kCpu) {
      place.offset_bytes = layout.cpu_bytes_;
      layout.cpu_bytes_ += param_mapping_bytes(place.bytes);
    } else {
      place.record = static_cast<swap::RecordId>(layout.records_.size());
      place.image_bytes = param_image_bytes(place.bytes);
      layout.records_.push_back({.parameter = unit.name,
                                 .first_element = 0,
                                 .elements = unit.elements,
                                 .payload_bytes = place.bytes});
      largest_bytes = std::max(largest_bytes, place.bytes);
    }
    layout.places_.push_back(place);
  }
  layout.chunk_bytes_ = chunk_bytes_for(largest_bytes);
  layout.place_in_classes(buffers_of_a_class);
  return layout;
}

void ParamLayout::place_in_classes(int buffers_of_a_class) {
  std::vector<Place*> by_size;
  for (Place& place : places_)
    if (place.tier == Tier::kNvme) by_size.push_back(&place);
  std::stable_sort(by_size.begin(), by_size.end(),
                   [](const Place* a, const Place* b) { return a->image_bytes > b->image_bytes; });
  ParamBuffers buffers(buffers_of_a_class);
  for (Place* place : by_size) {
    if (buffers.add(place->image_bytes)) classes_.push_back({.buffer_bytes = place->image_bytes});
    place->size_class = static_cast<int>(classes_.size()) - 1;
    classes_.back().buffers = buffers.buffers();
  }
  for (SizeClass& it : classes_) {
    it.first_offset_bytes = buffer_bytes_;
    buffer_bytes_ += it.buffer_bytes * static_cast<std::uint64_t>(it.buffers);
  }
}

}  // namespace sluice::offload
