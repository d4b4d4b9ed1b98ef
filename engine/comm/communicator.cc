#include "engine/comm/communicator.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>

namespace sluice::engine {
namespace {

using Bytes = std::span<const std::byte>;

bool overlap(Bytes a, Bytes b) {
  if (a.empty() || b.empty()) return false;
  const std::less<const std::byte*> before;  // a total order over all addresses
  return before(a.data(), b.data() + b.size()) && before(b.data(), a.data() + a.size());
}

bool same(Bytes a, Bytes b) { return a.data() == b.data() && a.size() == b.size(); }

Error refuse(const char* collective, const std::string& what) {
  return Error(ErrorCode::kInvalidArgument, std::string(collective) + ": " + what);
}

}  // namespace

Status Communicator::all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                                const CollectiveOptions& options) {
  const auto ranks = static_cast<std::uint64_t>(world_size(options.group));
  if (all.size() % ranks != 0 || all.size() / ranks != mine.size()) {
    return refuse("all_gather", "a piece of " + std::to_string(mine.size()) +
                                    " bytes for each of " + std::to_string(ranks) +
                                    " ranks does not make a whole of " +
                                    std::to_string(all.size()));
  }
  const auto own = static_cast<std::uint64_t>(rank(options.group));
  if (overlap(all, mine) && !same(all.subspan(own * mine.size(), mine.size()), mine)) {
    return refuse("all_gather", "input and output overlap without being in place");
  }
  return do_all_gather(mine, all, options);
}

Status Communicator::broadcast(std::span<std::byte> bytes, int root,
                               const CollectiveOptions& options) {
  if (root < 0 || root >= world_size(options.group)) {
    return refuse("broadcast", "there is no rank " + std::to_string(root) + " among " +
                                   std::to_string(world_size(options.group)));
  }
  return do_broadcast(bytes, root, options);
}

Status Communicator::all_to_all(std::span<const std::byte> sent, std::span<std::byte> received,
                                const CollectiveOptions& options) {
  const auto ranks = static_cast<std::uint64_t>(world_size(options.group));
  if (options.batches == 0) return refuse("all_to_all", "nothing is sent: batches is 0");
  const std::uint64_t pieces = ranks * options.batches;
  const std::uint64_t piece = received.size() / pieces;
  const std::uint64_t stride = options.sent_stride_bytes > 0 ? options.sent_stride_bytes : piece;
  if (received.size() % pieces != 0 || stride < piece ||
      sent.size() != (pieces - 1) * stride + piece) {
    return refuse("all_to_all", "spans of " + std::to_string(sent.size()) + " and " +
                                    std::to_string(received.size()) + " bytes are not " +
                                    std::to_string(pieces) + " equal pieces each");
  }
  if (overlap(sent, received) && (options.batches > 1 || !same(sent, received))) {
    return refuse("all_to_all", "input and output overlap without being in place");
  }
  if (ranks > 1 || options.batches == 1) return do_all_to_all(sent, received, options);
  for (std::uint64_t batch = 0; batch < options.batches; ++batch)
    SLUICE_RETURN_IF_ERROR(do_all_to_all(sent.subspan(batch * stride, piece),
                                         received.subspan(batch * piece, piece),
                                         {.group = options.group, .stream = options.stream}));
  return {};
}

Status Communicator::send_receive(const Messages& messages, const CollectiveOptions& options) {
  for (const int other : {messages.to, messages.from}) {
    if (other == kNoRank) continue;
    if (other < 0 || other >= world_size(options.group) || other == rank(options.group)) {
      return refuse("send_receive", "rank " + std::to_string(rank(options.group)) + " of " +
                                        std::to_string(world_size(options.group)) +
                                        " has no other rank " + std::to_string(other));
    }
  }
  if ((messages.to == kNoRank && !messages.sent.empty()) ||
      (messages.from == kNoRank && !messages.received.empty())) {
    return refuse("send_receive", "there are bytes, but no rank for them");
  }
  if (overlap(messages.sent, messages.received))
    return refuse("send_receive", "input and output overlap");
  return do_send_receive(messages, options);
}

Result<std::unique_ptr<Communicator>> Communicator::part(std::span<const int> ranks) {
  std::set<int> members;
  for (const int rank : ranks) {
    if (rank < 0 || rank >= world_size() || !members.insert(rank).second) {
      return refuse("part", "rank " + std::to_string(rank) + " is there twice, or not one of " +
                                std::to_string(world_size()));
    }
  }
  if (!members.contains(rank()))
    return refuse("part", "rank " + std::to_string(rank()) + " is not a rank of this part");
  return do_part(ranks);
}

Status Communicator::barrier(ProcessGroup group) { return do_barrier(group); }

Result<std::vector<std::string>> Communicator::all_gather_text(std::string_view mine,
                                                               ProcessGroup group) {
  if (world_size(group) == 1) return std::vector<std::string>{std::string(mine)};
  if (mine.size() > kMaxTextBytes) {
    return refuse("all_gather_text", std::to_string(mine.size()) + " bytes are more than the " +
                                         std::to_string(kMaxTextBytes) + " that a rank may give");
  }
  const auto ranks = static_cast<std::size_t>(world_size(group));
  std::vector<std::uint64_t> sizes_bytes(ranks);
  SLUICE_RETURN_IF_ERROR(
      all_gather_values(std::uint64_t{mine.size()}, std::span(sizes_bytes), group));
  const std::uint64_t most_bytes = *std::max_element(sizes_bytes.begin(), sizes_bytes.end());
  if (most_bytes > kMaxTextBytes) {
    return Error(ErrorCode::kInternal, "all_gather_text: a rank gives more than it may");
  }
  std::string padded(mine);
  padded.resize(most_bytes);
  std::string all(most_bytes * ranks, '\0');
  SLUICE_RETURN_IF_ERROR(all_gather(std::as_bytes(std::span(padded)),
                                    std::as_writable_bytes(std::span(all)), {.group = group}));
  std::vector<std::string> texts(ranks);
  for (std::size_t i = 0; i < ranks; ++i) texts[i] = all.substr(i * most_bytes, sizes_bytes[i]);
  return texts;
}

Status Communicator::sum(std::span<std::int64_t> values, ProcessGroup group) {
  const auto ranks = static_cast<std::size_t>(world_size(group));
  std::vector<std::int64_t> all(values.size() * ranks);
  SLUICE_RETURN_IF_ERROR(
      all_gather(std::as_bytes(values), std::as_writable_bytes(std::span(all)), {.group = group}));
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::int64_t total = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (__builtin_add_overflow(total, all[rank * values.size() + i], &total)) {
        return refuse("sum", "value " + std::to_string(i) + " does not fit into 64 bits");
      }
    }
    values[i] = total;
  }
  return {};
}

}  // namespace sluice::engine
