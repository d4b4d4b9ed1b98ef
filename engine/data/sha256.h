// SHA-256 by OpenSSL, for fingerprints that Python's hashlib can compute too.
//
// Threads: one at a time.
// Errors:  none except lack of memory, which throws std::bad_alloc.
#pragma once

#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX

namespace sluice::data {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void update(std::string_view bytes);
  // 64 hexadecimal digits, for all bytes so far. No other call may follow.
  std::string finish();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

}  // namespace sluice::data
