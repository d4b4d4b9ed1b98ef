#include "engine/comm/host_communicator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace sluice::engine {
namespace {

constexpr std::uint64_t kScratchBytes = 1U << 20;
// Minimum size of a transferred block, however many ranks share the scratch.
constexpr std::uint64_t kLeastBlockBytes = 4096;

// The minimum piece of an all_gather that travels by host. Smaller ones are bound by latency, and
// go directly, so that a rank that waits can name the one that has not come.
constexpr std::uint64_t kLeastPieceByHost = 64U << 10;

using ConstBytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

void copy(ConstBytes from, MutableBytes to) {
  if (!from.empty() && from.data() != to.data()) std::memmove(to.data(), from.data(), from.size());
}

// Messages between some of the ranks, by the links of all.
class PartLinks final : public HostLinks {
 public:
  PartLinks(HostLinks& whole, std::span<const int> ranks)
      : whole_(whole), ranks_(ranks.begin(), ranks.end()) {
    std::map<std::string, int, std::less<>> of_host;
    for (const int rank : ranks_) {
      RankPlace place = whole.places()[static_cast<std::size_t>(rank)];
      place.local_rank = of_host[place.host]++;
      if (rank == whole.rank()) rank_ = static_cast<int>(places_.size());
      places_.push_back(std::move(place));
    }
    sends_.reserve(ranks_.size());
    receives_.reserve(ranks_.size());
  }

  int rank() const override { return rank_; }
  const std::vector<RankPlace>& places() const override { return places_; }
  void abort(std::string_view reason) noexcept override { whole_.abort(reason); }
  Status failure() const override { return whole_.failure(); }

  Status exchange(const MessageLabel& label, std::span<const Outgoing> sends,
                  std::span<const Incoming> receives) override {
    const auto in_whole = [&](int rank) { return ranks_[static_cast<std::size_t>(rank)]; };
    sends_.clear();
    receives_.clear();
    for (const Outgoing& message : sends) sends_.push_back({in_whole(message.to), message.bytes});
    for (const Incoming& message : receives)
      receives_.push_back({in_whole(message.from), message.bytes});
    return whole_.exchange(label, sends_, receives_);
  }

 private:
  HostLinks& whole_;
  const std::vector<int> ranks_;  // in the whole, by rank of the part
  int rank_ = 0;
  std::vector<RankPlace> places_;
  std::vector<Outgoing> sends_;
  std::vector<Incoming> receives_;
};

class HostCommunicator final : public Communicator {
 public:
  HostCommunicator(std::unique_ptr<HostLinks> links, Groups groups)
      : links_(std::move(links)), groups_(std::move(groups)) {
    const std::size_t world = links_->places().size();
    sends_.reserve(world);
    receives_.reserve(world);
    block_bytes_ = std::max(kLeastBlockBytes, kScratchBytes / world / 64 * 64);
    scratch_.resize(block_bytes_ * world);
  }

  int rank(ProcessGroup group) const override { return members(group).own_index; }
  int world_size(ProcessGroup group) const override {
    return static_cast<int>(members(group).world_ranks.size());
  }
  offload::Topology topology() const override {
    return topology_of(links_->places(), links_->rank());
  }
  Status finish(void* /*stream*/) override { return health(); }
  void abort(std::string_view reason) noexcept override { links_->abort(reason); }
  Status health() const override { return links_->failure(); }

 private:
  const GroupMembers& members(ProcessGroup group) const {
    return groups_[static_cast<std::size_t>(group)];
  }
  std::size_t size(ProcessGroup group) const { return members(group).world_ranks.size(); }
  std::size_t own(ProcessGroup group) const {
    return static_cast<std::size_t>(members(group).own_index);
  }
  // Piece r of a whole that consists of equal pieces.
  template <typename T>
  static std::span<T> piece(std::span<T> whole, std::size_t r, std::uint64_t piece_bytes) {
    return whole.subspan(r * piece_bytes, piece_bytes);
  }

  static Status check_host(CollectiveKind kind, const CollectiveOptions& options) {
    if (options.stream == nullptr) return {};
    return Error(ErrorCode::kUnsupported,
                 std::string(name_of(kind)) + ": this transport moves host memory only");
  }

  // One message to, and one from, each other rank of the group; out(r) and in(r) are their bytes.
  template <typename Out, typename In>
  Status with_all(CollectiveKind kind, ProcessGroup group, std::uint64_t whole_bytes,
                  const Out& out, const In& in) {
    sends_.clear();
    receives_.clear();
    // Each rank begins with a different peer, so that not all send to the same one first.
    for (std::size_t step = 1; step < size(group); ++step) {
      const std::size_t to = (own(group) + step) % size(group);
      const std::size_t from = (own(group) + size(group) - step) % size(group);
      sends_.push_back({members(group).world_ranks[to], out(to)});
      receives_.push_back({members(group).world_ranks[from], in(from)});
    }
    return exchange(kind, group, whole_bytes);
  }

  Status exchange(CollectiveKind kind, ProcessGroup group, std::uint64_t whole_bytes) {
    return links_->exchange({.kind = kind,
                             .group = group,
                             .sequence = sequences_[static_cast<std::size_t>(group)]++,
                             .whole_bytes = whole_bytes},
                            sends_, receives_);
  }

  Status do_all_gather(ConstBytes mine, MutableBytes all,
                       const CollectiveOptions& options) override {
    constexpr auto kKind = CollectiveKind::kAllGather;
    SLUICE_RETURN_IF_ERROR(check_host(kKind, options));
    const ProcessGroup group = options.group;
    copy(mine, piece(all, own(group), mine.size()));
    if (group == ProcessGroup::kWorld && mine.size() >= kLeastPieceByHost &&
        topology().adds_by_host())
      return gather_by_host(mine, all);
    return with_all(
        kKind, group, all.size(), [&](std::size_t) { return mine; },
        [&](std::size_t r) { return piece(all, r, mine.size()); });
  }

  // A piece goes to one rank of each other host, the one with this local rank, which passes it on
  // to the ranks of its host. So it crosses the network once per host.
  Status gather_by_host(ConstBytes mine, MutableBytes all) {
    constexpr auto kKind = CollectiveKind::kAllGather;
    const std::size_t of_host = size(ProcessGroup::kNode);
    const auto piece_of = [&](std::size_t host, std::size_t local_rank) {
      return piece(all, host * of_host + local_rank, mine.size());
    };
    const std::size_t local_rank = own(ProcessGroup::kNode);
    SLUICE_RETURN_IF_ERROR(with_all(
        kKind, ProcessGroup::kPeers, all.size(), [&](std::size_t) { return mine; },
        [&](std::size_t host) { return piece_of(host, local_rank); }));
    for (std::size_t host = 0; host < size(ProcessGroup::kPeers); ++host)
      SLUICE_RETURN_IF_ERROR(with_all(
          kKind, ProcessGroup::kNode, all.size(),
          [&](std::size_t) { return piece_of(host, local_rank); },
          [&](std::size_t neighbour) { return piece_of(host, neighbour); }));
    return {};
  }

  Status do_all_to_all(ConstBytes sent, MutableBytes received,
                       const CollectiveOptions& options) override {
    constexpr auto kKind = CollectiveKind::kAllToAll;
    SLUICE_RETURN_IF_ERROR(check_host(kKind, options));
    const ProcessGroup group = options.group;
    const std::uint64_t piece_bytes = received.size() / (size(group) * options.batches);
    if (sent.data() != received.data()) {
      const std::uint64_t stride =
          options.sent_stride_bytes > 0 ? options.sent_stride_bytes : piece_bytes;
      for (std::uint64_t batch = 0; batch < options.batches; ++batch) {
        const std::uint64_t first = batch * size(group);
        const auto from = [&](std::size_t r) {
          return sent.subspan((first + r) * stride, piece_bytes);
        };
        const auto to = [&](std::size_t r) { return piece(received, first + r, piece_bytes); };
        copy(from(own(group)), to(own(group)));
        SLUICE_RETURN_IF_ERROR(with_all(kKind, group, received.size(), from, to));
      }
      return {};
    }
    // In place: blocks arrive in scratch while the same blocks are sent.
    for (std::uint64_t begin = 0; begin == 0 || begin < piece_bytes; begin += block_bytes_) {
      const std::uint64_t bytes = std::min(block_bytes_, piece_bytes - begin);
      const auto block = [&](std::size_t r) {
        return piece(received, r, piece_bytes).subspan(begin, bytes);
      };
      SLUICE_RETURN_IF_ERROR(with_all(kKind, group, sent.size(), block,
                                      [&](std::size_t r) { return scratch_block(r, bytes); }));
      for (std::size_t r = 0; r < size(group); ++r) {
        if (r != own(group)) copy(scratch_block(r, bytes), block(r));
      }
    }
    return {};
  }

  Status do_broadcast(MutableBytes bytes, int root, const CollectiveOptions& options) override {
    constexpr auto kKind = CollectiveKind::kBroadcast;
    SLUICE_RETURN_IF_ERROR(check_host(kKind, options));
    const ProcessGroup group = options.group;
    const auto from = static_cast<std::size_t>(root);
    sends_.clear();
    receives_.clear();
    for (std::size_t r = 0; r < size(group); ++r) {
      if (from == own(group) && r != from) sends_.push_back({members(group).world_ranks[r], bytes});
    }
    if (from != own(group)) receives_.push_back({members(group).world_ranks[from], bytes});
    return exchange(kKind, group, bytes.size());
  }

  Status do_send_receive(const Messages& messages, const CollectiveOptions& options) override {
    constexpr auto kKind = CollectiveKind::kSendReceive;
    SLUICE_RETURN_IF_ERROR(check_host(kKind, options));
    const auto in_world = [&](int r) {
      return members(options.group).world_ranks[static_cast<std::size_t>(r)];
    };
    sends_.clear();
    receives_.clear();
    if (messages.to != kNoRank) sends_.push_back({in_world(messages.to), messages.sent});
    if (messages.from != kNoRank) receives_.push_back({in_world(messages.from), messages.received});
    return links_->exchange({.kind = kKind, .group = options.group}, sends_, receives_);
  }

  Result<std::unique_ptr<Communicator>> do_part(std::span<const int> ranks) override {
    return make_host_communicator(std::make_unique<PartLinks>(*links_, ranks));
  }

  // All pairs exchange a message, as in all_gather, so a waiting rank can name the ranks that have
  // not come. A dissemination barrier, in log2(size) rounds, might also name a rank that waits.
  Status do_barrier(ProcessGroup group) override {
    SLUICE_RETURN_IF_ERROR(health());
    return with_all(
        CollectiveKind::kBarrier, group, 0, [](std::size_t) { return ConstBytes(); },
        [](std::size_t) { return MutableBytes(); });
  }

  MutableBytes scratch_block(std::size_t r, std::uint64_t bytes) {
    return MutableBytes(scratch_).subspan(r * block_bytes_, bytes);
  }

  const std::unique_ptr<HostLinks> links_;
  const Groups groups_;
  std::array<std::uint64_t, kProcessGroups> sequences_{};
  std::uint64_t block_bytes_ = 0;
  std::vector<std::byte> scratch_;
  std::vector<Outgoing> sends_;
  std::vector<Incoming> receives_;
};

}  // namespace

Result<std::unique_ptr<Communicator>> make_host_communicator(std::unique_ptr<HostLinks> links) {
  SLUICE_ASSIGN_OR_RETURN(Groups groups, make_groups(links->places(), links->rank()));
  return std::unique_ptr<Communicator>(
      std::make_unique<HostCommunicator>(std::move(links), std::move(groups)));
}

}  // namespace sluice::engine
