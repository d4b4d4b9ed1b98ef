// Shared by tests of token files: writes them.
#pragma once

#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "engine/data/token_layout.h"

namespace sluice::data {

template <typename Token>
std::vector<std::byte> bytes_of(const std::vector<Token>& tokens) {
  const auto bytes = std::as_bytes(std::span(tokens));
  return {bytes.begin(), bytes.end()};
}

// In the format of llm.c's dev/data/data_common.py: 256 int32, then the tokens.
template <typename Token>
std::vector<std::byte> llmc_file(std::int32_t magic, std::int32_t version,
                                 const std::vector<Token>& tokens) {
  std::vector<std::int32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = static_cast<std::int32_t>(tokens.size());
  std::vector<std::byte> bytes = bytes_of(header);
  const auto body = bytes_of(tokens);
  bytes.insert(bytes.end(), body.begin(), body.end());
  return bytes;
}

inline void write_file(const std::string& path, const std::vector<std::byte>& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
}

inline void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

inline std::string sidecar_text(const std::string& dtype, std::uint64_t tokens,
                                std::uint64_t vocab_size) {
  return R"({"format": "sluice-tokens", "version": 1, "dtype": ")" + dtype + R"(", "tokens": )" +
         std::to_string(tokens) + R"(, "vocab_size": )" + std::to_string(vocab_size) +
         R"(, "tokenizer": {"kind": "bytes"}})";
}

inline std::vector<std::uint16_t> counting_tokens(std::size_t count) {
  std::vector<std::uint16_t> tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = static_cast<std::uint16_t>(i * 7 % 50000 + 1);
  return tokens;
}

}  // namespace sluice::data
