// The sizes of the pieces in which operands are copied to fp32, on processors that multiply 16-bit
// numbers slowly (ops/products.h). From shapes alone.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sluice::engine {

constexpr std::int64_t kFp32PieceNumbers = std::int64_t{1} << 23;      // of one matrix: 32 MiB
constexpr std::int64_t kFp32AttentionNumbers = std::int64_t{1} << 26;  // of all copies

// The rows of a piece, with this many numbers each.
constexpr std::int64_t fp32_piece_rows(std::int64_t width) {
  return std::max<std::int64_t>(kFp32PieceNumbers / std::max<std::int64_t>(width, 1), 1);
}

// Pieces of a product [rows, inner] @ [inner, columns]: rows of the left operand, columns of the
// right.
struct Fp32ProductPiece {
  constexpr Fp32ProductPiece(std::int64_t all_rows, std::int64_t inner, std::int64_t all_columns)
      : columns(std::min(all_columns, fp32_piece_rows(inner))),
        rows(std::min({all_rows, fp32_piece_rows(inner), fp32_piece_rows(columns)})),
        numbers(rows * inner + inner * columns + rows * columns) {}
  std::int64_t columns;
  std::int64_t rows;
  std::int64_t numbers;  // copied at a time
};

// Pieces of attention: sequences, and key heads with their queries. Backward holds queries, keys,
// values, the output, and their gradients.
struct Fp32AttentionPiece {
  constexpr Fp32AttentionPiece(std::int64_t all_sequences, std::int64_t all_kv_heads,
                               std::int64_t query_numbers)  // of one key head
      : sequences(all_sequences), kv_heads(all_kv_heads) {
    constexpr std::int64_t kTensors = 8;
    const std::int64_t of_head = std::max<std::int64_t>(kTensors * query_numbers, 1);
    const std::int64_t fitting = std::max<std::int64_t>(kFp32AttentionNumbers / of_head, 1);
    kv_heads = std::min(kv_heads, fitting);
    if (kv_heads == all_kv_heads)
      sequences = std::clamp<std::int64_t>(fitting / all_kv_heads, 1, sequences);
    else
      sequences = 1;
    numbers = sequences * kv_heads * of_head;
  }
  std::int64_t sequences;
  std::int64_t kv_heads;
  std::int64_t numbers = 0;
};

}  // namespace sluice::engine
