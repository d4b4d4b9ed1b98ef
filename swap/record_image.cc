#include "swap/record_image.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>

#include "aio/check.h"
#include "swap/chunk_hash.h"

namespace sluice::swap {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::array<char, 8> kMagic = {'S', 'L', 'U', 'I', 'C', 'E', 'R', 'C'};
constexpr std::uint32_t kVersion = 1;

struct Header {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t chunk_count;
  std::uint64_t store_id;
  std::uint64_t record;
  std::uint64_t generation;
  std::uint64_t first_element;
  std::uint64_t elements;
  std::uint64_t payload_bytes;
  std::uint64_t chunk_bytes;
  std::array<std::uint64_t, 22> reserved;  // zero
  std::array<std::uint64_t, kMaxChunks> chunk_hashes;
  std::uint64_t header_hash;  // covers all bytes above
};
static_assert(sizeof(Header) == kRecordHeaderBytes);
static_assert(offsetof(Header, chunk_hashes) == 248);

Header& header_of(std::span<std::byte> image) { return *reinterpret_cast<Header*>(image.data()); }
const Header& header_of(std::span<const std::byte> image) {
  return *reinterpret_cast<const Header*>(image.data());
}

// Seeded with the header's own claims, to distinguish an intact header of another record or
// generation from a damaged one.
std::uint64_t hash_of(const Header& header) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&header);
  return chunk_hash({bytes, offsetof(Header, header_hash)}, {.store_id = header.store_id,
                                                             .record = header.record,
                                                             .generation = header.generation,
                                                             .offset_bytes = 0});
}

Error corrupt(std::string what) { return Error(ErrorCode::kCorrupt, std::move(what)); }

Status check_intact(const Header& header) {
  if (header.magic != kMagic)
    return corrupt("it has no record header (never written, or overwritten)");
  if (header.header_hash != hash_of(header))
    return corrupt("its header does not match its checksum (torn or damaged)");
  if (header.version != kVersion) {
    return corrupt("its format is version " + std::to_string(header.version) +
                   ", but this program reads version " + std::to_string(kVersion));
  }
  return {};
}

}  // namespace

RecordImage::RecordImage(const RecordShape& shape, std::span<std::byte> image)
    : shape_(shape), image_(image) {
  SLUICE_CHECK(image.size() == shape.image_bytes(), "a buffer of the record's size");
  SLUICE_CHECK(reinterpret_cast<std::uintptr_t>(image.data()) % 64 == 0, "an aligned buffer");
}

std::span<std::byte> RecordImage::chunk(int index) const {
  const std::uint64_t begin = static_cast<std::uint64_t>(index) * shape_.chunk_bytes;
  SLUICE_CHECK(index >= 0 && begin < shape_.payload_bytes, "a chunk of the record");
  return payload().subspan(begin, std::min(shape_.chunk_bytes, shape_.payload_bytes - begin));
}

Status check_record_header(const RecordShape& shape, std::span<const std::byte> bytes,
                           std::uint64_t generation) {
  const Header& header = header_of(bytes);
  SLUICE_RETURN_IF_ERROR(check_intact(header));
  if (header.store_id != shape.store_id) return corrupt("it belongs to another store");
  if (header.record != shape.record) {
    return corrupt("record " + std::to_string(header.record) +
                   " was found in its place (it is record " + std::to_string(shape.record) +
                   ": a misdirected write)");
  }
  if (header.generation != generation) {
    return corrupt("it is of generation " + std::to_string(header.generation) + " where " +
                   std::to_string(generation) + " was written (a write was lost)");
  }
  const bool same_shape =
      header.first_element == shape.first_element && header.elements == shape.elements &&
      header.payload_bytes == shape.payload_bytes && header.chunk_bytes == shape.chunk_bytes &&
      header.chunk_count == static_cast<std::uint32_t>(shape.chunk_count());
  if (!same_shape)
    return corrupt("its header gives a different size or range than the store's layout");
  return {};
}

Status check_record_chunk(const RecordShape& shape, std::span<const std::byte> header, int index,
                          std::uint64_t generation, std::span<const std::byte> data) {
  const std::uint64_t offset =
      kRecordHeaderBytes + static_cast<std::uint64_t>(index) * shape.chunk_bytes;
  const std::uint64_t hash = chunk_hash(data, {.store_id = shape.store_id,
                                               .record = shape.record,
                                               .generation = generation,
                                               .offset_bytes = offset});
  if (hash == header_of(header).chunk_hashes[static_cast<std::size_t>(index)]) return {};
  return corrupt("bytes " + std::to_string(offset) + " to " + std::to_string(offset + data.size()) +
                 " of it do not match their checksum (torn, stale or damaged)");
}

Status RecordImage::check_header(std::uint64_t generation) const {
  return check_record_header(shape_, image_, generation);
}

Status RecordImage::check_chunk(int index, std::uint64_t generation) const {
  return check_record_chunk(shape_, image_, index, generation, chunk(index));
}

void RecordImage::begin_seal(std::uint64_t generation) {
  Header& header = header_of(image_);
  header.magic = kMagic;
  header.version = kVersion;
  header.chunk_count = static_cast<std::uint32_t>(shape_.chunk_count());
  header.store_id = shape_.store_id;
  header.record = shape_.record;
  header.generation = generation;
  header.first_element = shape_.first_element;
  header.elements = shape_.elements;
  header.payload_bytes = shape_.payload_bytes;
  header.chunk_bytes = shape_.chunk_bytes;
  header.reserved.fill(0);
  for (std::size_t i = header.chunk_count; i < kMaxChunks; ++i) header.chunk_hashes[i] = 0;
  const std::span<std::byte> padding = image_.subspan(kRecordHeaderBytes + shape_.payload_bytes);
  if (!padding.empty()) std::memset(padding.data(), 0, padding.size());
}

void RecordImage::seal_chunk(int index, std::uint64_t generation) {
  const std::span<const std::byte> data = chunk(index);
  header_of(image_).chunk_hashes[static_cast<std::size_t>(index)] =
      chunk_hash(data, {.store_id = shape_.store_id,
                        .record = shape_.record,
                        .generation = generation,
                        .offset_bytes = static_cast<std::uint64_t>(data.data() - image_.data())});
}

void RecordImage::finish_seal() {
  Header& header = header_of(image_);
  header.header_hash = hash_of(header);
}

Result<std::uint64_t> RecordImage::claimed_generation() const {
  const Header& header = header_of(image_);
  SLUICE_RETURN_IF_ERROR(check_intact(header));
  return header.generation;
}

}  // namespace sluice::swap
