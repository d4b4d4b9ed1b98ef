#include "engine/data/token_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <utility>
#include <vector>

#include "aio/check.h"
#include "aio/real_file_system.h"
#include "aio/split_mix.h"
#include "aio/units.h"
#include "engine/data/token_sidecar.h"

namespace sluice::data {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr std::uint64_t kBits = 8;
constexpr std::uint64_t kMaskCopyBytes = 4 * kKiB;  // on the stack
constexpr std::uint64_t kScanBytes = kMiB;
constexpr const char* kAgain =
    ": it belongs to other tokens, or is truncated; run tools/prepare again, or restore the file";

Status read_all(const aio::File& file, std::uint64_t offset_bytes, std::span<std::byte> out) {
  for (std::uint64_t done = 0; done < out.size();) {
    const ::ssize_t got = ::pread(file.descriptor(), out.data() + done, out.size() - done,
                                  static_cast<off_t>(offset_bytes + done));
    if (got > 0) {
      done += static_cast<std::uint64_t>(got);
    } else if (got == 0) {
      return Error(ErrorCode::kEndOfFile, file.path() +
                                              " has been shortened since it was opened: restore it "
                                              "and resume from the last checkpoint");
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
  std::array<std::byte, kMaskCopyBytes> buffer;
  while (!out.empty()) {
    const std::uint64_t skipped = first % kBits;
    const std::uint64_t count =
        std::min<std::uint64_t>(out.size(), kMaskCopyBytes * kBits - skipped);
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

namespace {

constexpr std::uint64_t kTokenCopyBytes = 16 * kKiB;  // on the stack
constexpr std::uint64_t kFingerprintSamples = 16;
constexpr std::uint64_t kFingerprintTokens = 512;

template <typename Token>
Token token_at(std::span<const std::byte> bytes, std::uint64_t index) {
  Token token = 0;
  std::memcpy(&token, bytes.data() + index * sizeof(Token), sizeof(Token));
  return token;
}

template <typename Token>
void widen(std::span<const std::byte> bytes, std::span<std::int64_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = token_at<Token>(bytes, i);
}

// uint32 ids below 65,536 look like uint16 ids, of which every other one is zero.
bool looks_like_uint32(std::span<const std::byte> head, std::uint64_t file_bytes) {
  const std::uint64_t pairs = head.size() / 4;
  if (file_bytes % 4 != 0 || pairs < 16) return false;
  bool low_halves_vary = false;
  for (std::uint64_t i = 0; i < pairs; ++i) {
    if (token_at<std::uint16_t>(head, 2 * i + 1) != 0) return false;
    low_halves_vary |= token_at<std::uint16_t>(head, 2 * i) != 0;
  }
  return low_halves_vary;
}

// No control characters except those of text files.
bool looks_like_text(std::span<const std::byte> head) {
  return !head.empty() && std::none_of(head.begin(), head.end(), [](std::byte byte) {
    const auto letter = std::to_integer<unsigned char>(byte);
    return letter == 0x7F || (letter < ' ' && letter != '\n' && letter != '\r' && letter != '\t');
  });
}

Result<std::unique_ptr<aio::File>> open_regular(const std::string& path) {
  // Opening a pipe would wait for its writer.
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return Error(
        ErrorCode::kInvalidArgument,
        path + (std::filesystem::is_directory(status) ? " is a folder: name the .bin files in it"
                                                      : " is not a regular file"));
  }
  return aio::RealFileSystem().open(path, {.direct = false});
}

}  // namespace

TokenFile::TokenFile(std::unique_ptr<aio::File> file, const TokenLayout& layout)
    : file_(std::move(file)), layout_(layout) {}

Result<TokenFile> TokenFile::open(const std::string& path, const Options& options) {
  auto file = open_regular(path);
  if (!file.ok() && file.error().code() == ErrorCode::kNotFound)
    return std::move(file).error().with_suffix("; sluice prepare makes token files");
  if (!file.ok()) return std::move(file).error();
  TokenFile tokens(*std::move(file), {});
  SLUICE_ASSIGN_OR_RETURN(tokens.file_bytes_, tokens.file_->size_bytes());
  SLUICE_RETURN_IF_ERROR(tokens.find_layout(options));
  // Windows are read in shuffled order: read-ahead would be wasted.
  ::posix_fadvise(tokens.file_->descriptor(), 0, 0, POSIX_FADV_RANDOM);
  return tokens;
}

Status TokenFile::find_layout(const Options& options) {
  std::array<std::byte, kTokenHeaderBytes> buffer;
  const std::span head = std::span(buffer).first(std::min(file_bytes_, kTokenHeaderBytes));
  SLUICE_RETURN_IF_ERROR(read_bytes(0, head));
  auto announced = header_layout(head, file_bytes_);
  if (!announced.ok()) return std::move(announced).error().with_context(path());
  if (announced->has_value()) {
    layout_ = **announced;
    SLUICE_ASSIGN_OR_RETURN(const bool documents,
                            aio::RealFileSystem().exists(path() + ".documents"));
    if (documents)
      return Error(ErrorCode::kInvalidArgument,
                   path() + " has a header of its own, and " + path() +
                       ".documents in the same folder belongs to another file: remove it, or "
                       "prepare the documents again");
    if (!options.type || *options.type == layout_.type) return {};
    return Error(ErrorCode::kInvalidArgument,
                 path() + ": its header says " + std::string(to_string(layout_.type)) +
                     " and the configuration " + std::string(to_string(*options.type)));
  }
  const std::string sidecar_path = path() + ".json";
  SLUICE_ASSIGN_OR_RETURN(const bool has_sidecar, aio::RealFileSystem().exists(sidecar_path));
  if (has_sidecar) return take_sidecar(sidecar_path, options.type);
  for (const char* const part : {".documents", ".mask"}) {
    SLUICE_ASSIGN_OR_RETURN(const bool is_there, aio::RealFileSystem().exists(path() + part));
    if (is_there)
      return Error(ErrorCode::kInvalidArgument,
                   path() + part + " says which tokens of " + path() + " are trained on, but " +
                       sidecar_path +
                       ", which is needed to read it, is missing: copy it there too, or remove the "
                       "first file to train on all tokens as one text");
  }
  if (!options.type && looks_like_text(head))
    return Error(
        ErrorCode::kInvalidArgument,
        path() +
            " is not a token file: it starts with text. tools/prepare converts text to tokens; if "
            "it does contain tokens, give their type (data.dtype; sluice data: --dtype)");
  SLUICE_RETURN_IF_ERROR(take_raw(options.type.value_or(TokenType::kUint16)));
  if (options.type) return {};
  assumes_type_ = true;
  note_ = path() + " has no header and no " + sidecar_path + ": its tokens are read as uint16";
  if (looks_like_uint32(head, file_bytes_)) {
    note_ +=
        ", but every second token at its start is 0, as in a file of uint32: if it is one, set "
        "data.dtype to uint32";
  }
  return {};
}

Status TokenFile::take_raw(TokenType type) {
  auto layout = raw_layout(type, file_bytes_);
  if (!layout.ok()) return std::move(layout).error().with_context(path());
  layout_ = *layout;
  return {};
}

Status TokenFile::take_sidecar(const std::string& sidecar_path, std::optional<TokenType> wanted) {
  SLUICE_ASSIGN_OR_RETURN(const auto file, open_regular(sidecar_path));
  SLUICE_ASSIGN_OR_RETURN(const std::uint64_t size_bytes, file->size_bytes());
  if (size_bytes > kMaxSidecarBytes) {
    return Error(ErrorCode::kCorrupt, sidecar_path + " has " + format_bytes(size_bytes) +
                                          ", which is too large for a description of tokens");
  }
  std::string text(size_bytes, '\0');
  const ::ssize_t got = ::pread(file->descriptor(), text.data(), text.size(), 0);
  if (got < 0) return Error::from_errno(errno, {.operation = "read", .path = sidecar_path});
  text.resize(static_cast<std::size_t>(got));
  auto sidecar = parse_token_sidecar(text);
  if (!sidecar.ok()) return std::move(sidecar).error().with_context(sidecar_path);
  if (wanted && *wanted != sidecar->type) {
    return Error(ErrorCode::kInvalidArgument,
                 sidecar_path + " says " + std::string(to_string(sidecar->type)) +
                     " and the configuration " + std::string(to_string(*wanted)));
  }
  SLUICE_RETURN_IF_ERROR(take_raw(sidecar->type));
  vocab_size_ = sidecar->vocab_size;
  if (layout_.token_count == sidecar->token_count) return take_documents(*sidecar);
  return Error(ErrorCode::kCorrupt,
               path() + " holds " + std::to_string(layout_.token_count) + " tokens, and " +
                   sidecar_path + " says " + std::to_string(sidecar->token_count) +
                   ": one of the two belongs to another text, or the tokens are truncated");
}

Status TokenFile::take_documents(const TokenSidecar& sidecar) {
  if (sidecar.documents == 0) return {};
  SLUICE_ASSIGN_OR_RETURN(TokenDocuments documents,
                          TokenDocuments::open(path(), {.documents = sidecar.documents,
                                                        .tokens = sidecar.token_count,
                                                        .trained_tokens = sidecar.trained_tokens}));
  documents_ = std::make_unique<TokenDocuments>(std::move(documents));
  return {};
}

Status TokenFile::read_bytes(std::uint64_t offset_bytes, std::span<std::byte> out) const {
  const IoContext where{.operation = "read",
                        .path = path(),
                        .offset_bytes = static_cast<std::int64_t>(offset_bytes),
                        .length_bytes = static_cast<std::int64_t>(out.size())};
  for (std::uint64_t done = 0; done < out.size();) {
    const ::ssize_t got = ::pread(file_->descriptor(), out.data() + done, out.size() - done,
                                  static_cast<off_t>(offset_bytes + done));
    if (got > 0) {
      done += static_cast<std::uint64_t>(got);
    } else if (got == 0) {
      return Error(ErrorCode::kEndOfFile, path() + " has become shorter than the " +
                                              std::to_string(file_bytes_) +
                                              " bytes that it had when it was opened: restore it "
                                              "and resume from the last checkpoint");
    } else if (errno != EINTR) {
      return Error::from_errno(errno, where);
    }
  }
  return {};
}

Status TokenFile::copy(std::uint64_t first, std::span<std::int64_t> out) const {
  SLUICE_CHECK(first <= token_count() && out.size() <= token_count() - first,
               "tokens of the file only");
  std::array<std::byte, kTokenCopyBytes> buffer;
  const std::uint64_t width = token_bytes(type());
  while (!out.empty()) {
    const std::uint64_t count = std::min<std::uint64_t>(out.size(), kTokenCopyBytes / width);
    const std::span bytes = std::span(buffer).first(count * width);
    SLUICE_RETURN_IF_ERROR(read_bytes(layout_.first_byte + first * width, bytes));
    if (type() == TokenType::kUint16) {
      widen<std::uint16_t>(bytes, out.first(count));
    } else {
      widen<std::uint32_t>(bytes, out.first(count));
    }
    first += count;
    out = out.subspan(count);
  }
  return {};
}

template <typename Visit>
Status TokenFile::scan(Visit visit) const {
  const std::uint64_t width = token_bytes(type());
  std::vector<std::byte> buffer(std::min(kScanBytes, token_count() * width));
  for (std::uint64_t first = 0; first < token_count();) {
    const std::uint64_t count = std::min(buffer.size() / width, token_count() - first);
    const std::span bytes = std::span(buffer).first(count * width);
    SLUICE_RETURN_IF_ERROR(read_bytes(layout_.first_byte + first * width, bytes));
    SLUICE_RETURN_IF_ERROR(visit(first, bytes));
    first += count;
  }
  return {};
}

Status TokenFile::check_part(std::uint64_t first, std::span<const std::byte> bytes,
                             std::uint64_t vocab_size) const {
  if (vocab_size > max_token_of(type())) return {};
  for (std::uint64_t i = 0; i < bytes.size() / token_bytes(type()); ++i) {
    const std::uint32_t token = type() == TokenType::kUint16 ? token_at<std::uint16_t>(bytes, i)
                                                             : token_at<std::uint32_t>(bytes, i);
    if (token < vocab_size) continue;
    return Error(ErrorCode::kInvalidArgument,
                 path() + ": token " + std::to_string(first + i) + " is " + std::to_string(token) +
                     ", but the model's vocabulary ends at " + std::to_string(vocab_size - 1) +
                     ": set the model's vocabulary to that of the data, or check the token type");
  }
  return {};
}

Status TokenFile::check_vocab(std::uint64_t vocab_size) const {
  if (vocab_size > max_token_of(type())) return {};
  return scan([&](std::uint64_t first, std::span<const std::byte> bytes) {
    return check_part(first, bytes, vocab_size);
  });
}

Result<std::uint64_t> TokenFile::token_hash(std::uint64_t vocab_size) const {
  std::uint64_t hash = token_count();
  const auto add = [&](std::uint64_t first, std::span<const std::byte> bytes) -> Status {
    SLUICE_RETURN_IF_ERROR(check_part(first, bytes, vocab_size));
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes.data() + at, std::min(sizeof(word), bytes.size() - at));
      hash = aio::SplitMix(hash ^ word).next();
    }
    return {};
  };
  SLUICE_RETURN_IF_ERROR(scan(add));
  return hash;
}

Result<std::uint64_t> TokenFile::fingerprint() const {
  std::uint64_t hash = aio::SplitMix(token_count(), token_bytes(type())).next();
  std::array<std::int64_t, kFingerprintTokens> tokens;
  const std::uint64_t count = std::min(kFingerprintTokens, token_count());
  for (std::uint64_t i = 0; i < kFingerprintSamples; ++i) {
    const std::span sample = std::span(tokens).first(count);
    const std::uint64_t room = token_count() - count;
    // No overflow for any count; the last sample ends at the end of the file.
    const std::uint64_t first = room / (kFingerprintSamples - 1) * i +
                                room % (kFingerprintSamples - 1) * i / (kFingerprintSamples - 1);
    SLUICE_RETURN_IF_ERROR(copy(first, sample));
    for (const std::int64_t token : sample) {
      hash = aio::SplitMix(hash ^ static_cast<std::uint64_t>(token)).next();
    }
  }
  if (documents_) hash = aio::SplitMix(hash ^ documents_->mask_hash()).next();
  return hash;
}

}  // namespace sluice::data
