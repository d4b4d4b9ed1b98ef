// StoreManifest: the layout as text, `store.json` in the run's folder on every path, and the mark
// of a store that was closed, `closed.json` beside it. FORMAT.md has the keys.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "aio/result.h"
#include "swap/store_layout.h"

namespace sluice::swap {

struct StoreManifest {
  StoreLayout layout;
  std::size_t member;  // which of the layout's paths this copy lies on
};
std::string to_text(const StoreLayout& layout, std::size_t member);
// kCorrupt or kInvalidArgument in one sentence, for any bytes.
Result<StoreManifest> parse_manifest(std::string_view text);

struct ClosedMark {
  std::uint64_t store_id = 0;
  std::vector<std::uint64_t> generations;  // of each record
  std::string note;                        // the user's
};
std::string to_text(const ClosedMark& mark);
Result<ClosedMark> parse_closed_mark(std::string_view text);

// Larger files are no manifests of ours.
inline constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{1} << 28;

}  // namespace sluice::swap
