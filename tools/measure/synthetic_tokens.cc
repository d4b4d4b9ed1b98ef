#include "tools/measure/synthetic_tokens.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace sluice::tools {
namespace {

constexpr std::uint64_t kTokensAtOnce = 1 << 20;

Status write_all(int descriptor, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0)
      return Error::from_errno(errno, {.operation = "write of tokens to", .path = path});
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

template <typename Token>
Status write_tokens(int descriptor, const SyntheticTokens::Options& options,
                    const std::string& path) {
  std::mt19937_64 random(options.seed);
  std::vector<Token> tokens;
  for (std::uint64_t left = options.tokens; left > 0; left -= tokens.size()) {
    tokens.resize(std::min(left, kTokensAtOnce));
    for (Token& token : tokens) token = static_cast<Token>(random() % options.vocab);
    SLUICE_RETURN_IF_ERROR(write_all(descriptor, std::as_bytes(std::span(tokens)), path));
  }
  return {};
}

}  // namespace

Result<SyntheticTokens> SyntheticTokens::create(const Options& options) {
  std::string path = options.folder + "/sluice-tokens-XXXXXX.bin";
  constexpr int kSuffix = 4;
  const int descriptor = mkostemps(path.data(), kSuffix, O_CLOEXEC);
  if (descriptor < 0)
    return Error::from_errno(errno, {.operation = "creation of a token file:", .path = path});
  const bool narrow = options.vocab <= std::numeric_limits<std::uint16_t>::max();
  SyntheticTokens file(path, narrow ? config::TokenType::kUint16 : config::TokenType::kUint32);
  const Status written = narrow ? write_tokens<std::uint16_t>(descriptor, options, path)
                                : write_tokens<std::uint32_t>(descriptor, options, path);
  close(descriptor);
  if (!written.ok()) return written.error();
  return file;
}

SyntheticTokens::SyntheticTokens(std::string path, config::TokenType type)
    : path_(std::move(path)), type_(type) {}

SyntheticTokens::SyntheticTokens(SyntheticTokens&& other) noexcept
    : path_(std::exchange(other.path_, {})), type_(other.type_) {}

SyntheticTokens::~SyntheticTokens() {
  if (!path_.empty()) unlink(path_.c_str());
}

}  // namespace sluice::tools
