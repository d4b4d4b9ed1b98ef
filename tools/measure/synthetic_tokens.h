// SyntheticTokens: a token file of random numbers, so that a step can be measured without a corpus.
//
// The same seed and vocabulary give the same tokens. The file is in the folder for temporary files
// and is removed with this object; a process that has it open may continue reading.
#pragma once

#include <cstdint>
#include <string>

#include "aio/result.h"
#include "engine/config/config.h"

namespace sluice::tools {

class SyntheticTokens {
 public:
  struct Options {
    std::string folder;
    std::uint64_t tokens = 0;
    std::uint64_t vocab = 0;
    std::uint64_t seed = 1;
  };
  static Result<SyntheticTokens> create(const Options& options);
  ~SyntheticTokens();
  SyntheticTokens(SyntheticTokens&& other) noexcept;
  SyntheticTokens& operator=(SyntheticTokens&&) = delete;

  const std::string& path() const { return path_; }
  config::TokenType type() const { return type_; }

 private:
  SyntheticTokens(std::string path, config::TokenType type);

  std::string path_;  // empty: moved from
  config::TokenType type_;
};

}  // namespace sluice::tools
