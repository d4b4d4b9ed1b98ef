#include "engine/data/token_documents.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <functional>
#include <utility>

#include "aio/check.h"
#include "aio/real_file_system.h"
#include "aio/split_mix.h"
#include "aio/units.h"

namespace sluice::data {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

constexpr std::uint64_t kBits = 8;
constexpr std::uint64_t kCopyBytes = 4 * kKiB;  // on the stack
constexpr std::uint64_t kScanBytes = kMiB;
constexpr const char* kAgain =
    ": it is of other tokens, or truncated; run tools/prepare again, or bring the file back";

Status read_all(const aio::File& file, std::uint64_t offset_bytes, std::span<std::byte> out) {
  for (std::uint64_t done = 0; done < out.size();) {
    const ::ssize_t got = ::pread(file.descriptor(), out.data() + done, out.size() - done,
                                  static_cast<off_t>(offset_bytes + done));
    if (got > 0) {
      done += static_cast<std::uint64_t>(got);
    } else if (got == 0) {
      return Error(ErrorCode::kEndOfFile,
                   file.path() +
                       " has become shorter than it was when it was opened: bring it back and "
                       "resume from the last checkpoint");
    } else if (errno != EINTR) {
      return Error::from_errno(errno,
                               {.operation = "read",
                                .path = file.path(),
                                .offset_bytes = static_cast<std::int64_t>(offset_bytes + done),
                                .length_bytes = static_cast<std::int64_t>(out.size() - done)});
    }
  }
  return {};
}

Result<std::unique_ptr<aio::File>> open_sized(const std::string& path, std::uint64_t bytes) {
  SLUICE_ASSIGN_OR_RETURN(auto file, aio::RealFileSystem().open(path, {.direct = false}));
  SLUICE_ASSIGN_OR_RETURN(const std::uint64_t found, file->size_bytes());
  if (found == bytes) return file;
  return Error(ErrorCode::kCorrupt, path + " has " + std::to_string(found) + " bytes instead of " +
                                        std::to_string(bytes) + kAgain);
}

}  // namespace

Result<TokenDocuments> TokenDocuments::open(const std::string& token_path,
                                            const Expected& expected) {
  if (expected.documents == 0 || expected.documents > expected.tokens)
    return Error(ErrorCode::kCorrupt, token_path + " cannot have " +
                                          std::to_string(expected.documents) + " documents in " +
                                          std::to_string(expected.tokens) + " tokens" + kAgain);
  const std::uint64_t numbers = expected.documents + 1;
  SLUICE_ASSIGN_OR_RETURN(const auto file,
                          open_sized(token_path + ".documents", numbers * sizeof(std::uint64_t)));
  std::vector<std::uint64_t> starts(numbers);
  SLUICE_RETURN_IF_ERROR(read_all(*file, 0, std::as_writable_bytes(std::span(starts))));
  const bool ascends =
      std::adjacent_find(starts.begin(), starts.end(), std::greater_equal<>()) == starts.end();
  if (starts.front() != 0 || starts.back() != expected.tokens || !ascends)
    return Error(ErrorCode::kCorrupt, file->path() + " does not ascend from 0 to the " +
                                          std::to_string(expected.tokens) + " tokens of " +
                                          token_path + kAgain);
  SLUICE_ASSIGN_OR_RETURN(auto mask,
                          open_sized(token_path + ".mask", (expected.tokens + kBits - 1) / kBits));
  TokenDocuments documents(std::move(starts), std::move(mask));
  SLUICE_RETURN_IF_ERROR(documents.read_mask(expected));
  return documents;
}

std::uint64_t TokenDocuments::holding(std::uint64_t token) const {
  SLUICE_CHECK(token < starts_.back(), "a token of the file");
  const auto after = std::upper_bound(starts_.begin(), starts_.end(), token);
  return static_cast<std::uint64_t>(after - starts_.begin()) - 1;
}

Status TokenDocuments::read_mask(const Expected& expected) {
  std::vector<std::uint64_t> words(kScanBytes / sizeof(std::uint64_t));
  const std::uint64_t bytes = (expected.tokens + kBits - 1) / kBits;
  std::uint64_t trained = 0;
  for (std::uint64_t at = 0; at < bytes; at += kScanBytes) {
    std::fill(words.begin(), words.end(), 0);
    const std::span some = std::as_writable_bytes(std::span(words));
    SLUICE_RETURN_IF_ERROR(read_all(*mask_, at, some.first(std::min(kScanBytes, bytes - at))));
    for (const std::uint64_t word : words) {
      trained += static_cast<std::uint64_t>(std::popcount(word));
      mask_hash_ = aio::SplitMix(mask_hash_ ^ word).next();
    }
  }
  trained_tokens_ = trained;
  if (trained == expected.trained_tokens) return {};
  return Error(ErrorCode::kCorrupt, mask_->path() + " has " + std::to_string(trained) +
                                        " tokens to train on instead of " +
                                        std::to_string(expected.trained_tokens) + kAgain);
}

Status TokenDocuments::copy_mask(std::uint64_t first, std::span<bool> out) const {
  std::array<std::byte, kCopyBytes> buffer;
  while (!out.empty()) {
    const std::uint64_t skipped = first % kBits;
    const std::uint64_t count = std::min<std::uint64_t>(out.size(), kCopyBytes * kBits - skipped);
    const std::span bytes = std::span(buffer).first((skipped + count + kBits - 1) / kBits);
    SLUICE_RETURN_IF_ERROR(read_all(*mask_, first / kBits, bytes));
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t bit = skipped + i;
      out[i] = ((bytes[bit / kBits] >> (bit % kBits)) & std::byte{1}) != std::byte{0};
    }
    first += count;
    out = out.subspan(count);
  }
  return {};
}

}  // namespace sluice::data
