#include "engine/data/token_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
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

constexpr std::uint64_t kScanBytes = kMiB;
constexpr std::uint64_t kCopyBytes = 16 * kKiB;  // on the stack
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
  SLUICE_ASSIGN_OR_RETURN(auto file, open_regular(path));
  TokenFile tokens(std::move(file), {});
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
                       ".documents beside it is of another file: remove that, or prepare the "
                       "documents again");
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
                   path() + part + " says what of " + path() + " is trained on, and " +
                       sidecar_path +
                       ", without which it cannot be read, is not there: copy it there too, or "
                       "remove the former to train on all of the text as one");
  }
  if (!options.type && looks_like_text(head))
    return Error(ErrorCode::kInvalidArgument,
                 path() +
                     " is no token file: it begins as text. tools/prepare makes tokens of text; if "
                     "tokens it is, say of which type (data.dtype; sluice data: --dtype)");
  SLUICE_RETURN_IF_ERROR(take_raw(options.type.value_or(TokenType::kUint16)));
  if (options.type) return {};
  assumes_type_ = true;
  note_ = path() + " has no header and no " + sidecar_path + ": its tokens are taken as uint16";
  if (looks_like_uint32(head, file_bytes_)) {
    note_ +=
        ", but every second one it begins with is 0, as in a file of uint32: if that is what "
        "it is, say so in the configuration";
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
                                          ", more than a description of tokens ever has");
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
                   ": one of the two is of another text, or the tokens are truncated");
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
                                              " bytes it had when it was opened: bring it back "
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
  std::array<std::byte, kCopyBytes> buffer;
  const std::uint64_t width = token_bytes(type());
  while (!out.empty()) {
    const std::uint64_t count = std::min<std::uint64_t>(out.size(), kCopyBytes / width);
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
                     ", and the model's vocabulary ends at " + std::to_string(vocab_size - 1) +
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
