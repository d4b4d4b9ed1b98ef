#include "tools/cli/utf8_stream.h"

#include <utility>

namespace sluice::tools {
namespace {

constexpr const char* kBroken = "\xEF\xBF\xBD";

// The length of a character with this first byte; 0: no character begins with it.
std::size_t length_of(unsigned char first) {
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return 2;
  if (first >= 0xE0 && first <= 0xEF) return 3;
  if (first >= 0xF0 && first <= 0xF4) return 4;
  return 0;
}

// The second byte excludes overlong forms, surrogates, and values above U+10FFFF.
bool may_follow(const std::string& begun, unsigned char byte) {
  if (byte < 0x80 || byte > 0xBF) return false;
  if (begun.size() > 1) return true;
  switch (static_cast<unsigned char>(begun.front())) {
    case 0xE0:
      return byte >= 0xA0;
    case 0xED:
      return byte <= 0x9F;
    case 0xF0:
      return byte >= 0x90;
    case 0xF4:
      return byte <= 0x8F;
    default:
      return true;
  }
}

}  // namespace

std::string Utf8Stream::push(unsigned char byte) {
  std::string text;
  if (!pending_.empty() && !may_follow(pending_, byte)) text = finish();
  if (pending_.empty() && length_of(byte) == 0) return text + kBroken;
  pending_ += static_cast<char>(byte);
  if (pending_.size() == length_of(static_cast<unsigned char>(pending_.front())))
    text += std::exchange(pending_, {});
  return text;
}

std::string Utf8Stream::finish() {
  if (pending_.empty()) return {};
  pending_.clear();
  return kBroken;
}

}  // namespace sluice::tools
