#include "engine/comm/run_key.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <new>

namespace sluice::engine {
namespace {

// Each part is preceded by its length, so that different lists have different bytes.
std::array<unsigned char, kProofBytes> hmac(std::string_view key,
                                            std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) {
    const std::uint64_t size = part.size();
    text.append(reinterpret_cast<const char*>(&size), sizeof size).append(part);
  }
  std::array<unsigned char, kProofBytes> digest{};
  unsigned size = 0;
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(),
           &size) == nullptr)
    throw std::bad_alloc();
  return digest;
}

std::string_view view(const std::array<unsigned char, kProofBytes>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  for (std::size_t done = 0; done < count;) {
    const ssize_t got = ::getrandom(bytes.data() + done, count - done, 0);
    if (got < 0 && errno != EINTR) std::abort();
    if (got > 0) done += static_cast<std::size_t>(got);
  }
  return bytes;
}

std::string new_secret() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char byte : random_bytes(kNonceBytes)) {
    text += kDigits[static_cast<unsigned char>(byte) >> 4U];
    text += kDigits[static_cast<unsigned char>(byte) & 15U];
  }
  return text;
}

RunKey::RunKey(std::string_view secret, std::string_view job)
    : key_(hmac(secret, {"sluice rank 1", job})) {}

RunKey RunKey::derived(std::string_view salt) const {
  RunKey key;
  key.key_ = hmac(view(key_), {"derived", salt});
  return key;
}

std::string RunKey::proof(std::string_view side, const Exchange& exchange) const {
  return std::string(view(hmac(view(key_), {side, exchange.purpose, exchange.connector_nonce,
                                            exchange.acceptor_nonce, exchange.payload})));
}

std::string RunKey::proof_of_connector(const Exchange& exchange) const {
  return proof("connector", exchange);
}

std::string RunKey::proof_of_acceptor(const Exchange& exchange) const {
  return proof("acceptor", exchange);
}

bool is_same_proof(std::string_view one, std::string_view other) {
  return one.size() == other.size() && CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

}  // namespace sluice::engine
