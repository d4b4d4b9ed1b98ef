// RunKey: a secret that only the ranks of a run have, and proofs of it: HMAC-SHA256 over random
// numbers of both sides. Neither the key nor anything that it was derived from is ever sent.
//
// It is derived from the run's secret and the name of its job. Without a secret, any process that
// has the job's name can join. It rejects connections of other processes. It does not encrypt, and
// does not protect against changes on the network.
//
// Threads: any. Errors: none; std::bad_alloc, or abort() if the kernel gives no random bytes.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace sluice::engine {

constexpr std::size_t kNonceBytes = 32;
constexpr std::size_t kProofBytes = 32;

// `count` bytes from the kernel.
std::string random_bytes(std::size_t count);
// A random secret in hexadecimal digits, for a launcher to pass to its processes.
std::string new_secret();

// What a proof covers: both sides fill in the same values.
struct Exchange {
  std::string_view purpose;          // "rendezvous", or "data of N" at rank N
  std::string_view connector_nonce;  // kNonceBytes each
  std::string_view acceptor_nonce;
  std::string_view payload;  // the connector's description of itself
};

class RunKey {
 public:
  RunKey(std::string_view secret, std::string_view job);
  // A key that can only be derived from this one and `salt`.
  RunKey derived(std::string_view salt) const;

  std::string proof_of_connector(const Exchange& exchange) const;
  std::string proof_of_acceptor(const Exchange& exchange) const;

 private:
  RunKey() = default;
  std::string proof(std::string_view side, const Exchange& exchange) const;

  std::array<unsigned char, kProofBytes> key_{};
};

// In constant time, wherever they differ.
bool is_same_proof(std::string_view one, std::string_view other);

}  // namespace sluice::engine
