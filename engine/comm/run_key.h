// RunKey: what the ranks of a run know and nobody else does, and proofs of it, HMAC-SHA256 over
// random numbers of both sides. The key never travels, nor does anything that it was made of.
//
// It is derived from the run's secret and the name of its job. Without a secret, who knows the
// job's name can join. It keeps strangers out who connect; it does not encrypt, and is no help
// against one who changes what passes on the way.
//
// Threads: any. Errors: none; std::bad_alloc, or abort() where the kernel gives no random bytes.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace sluice::engine {

constexpr std::size_t kNonceBytes = 32;
constexpr std::size_t kProofBytes = 32;

// Of so many bytes, from the kernel.
std::string random_bytes(std::size_t count);
// The same as hexadecimal digits, for a launcher to hand down.
std::string new_secret();

// What a proof is about: both sides fill in the same.
struct Exchange {
  std::string_view purpose;          // the port: "control", or "data" and whose
  std::string_view connector_nonce;  // kNonceBytes each
  std::string_view acceptor_nonce;
  std::string_view payload;  // what the connector says of itself
};

class RunKey {
 public:
  RunKey(std::string_view secret, std::string_view job);
  // Another key, which only those have who have this one and know `salt`.
  RunKey derived(std::string_view salt) const;

  std::string proof_of_connector(const Exchange& exchange) const;
  std::string proof_of_acceptor(const Exchange& exchange) const;

 private:
  RunKey() = default;
  std::string proof(std::string_view side, const Exchange& exchange) const;

  std::array<unsigned char, kProofBytes> key_{};
};

// Takes as long wherever they differ.
bool is_same_proof(std::string_view one, std::string_view other);

}  // namespace sluice::engine
