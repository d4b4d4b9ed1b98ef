#include "tests/engine/comm/collective_suite.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

namespace sluice::engine {
namespace {

using Floats = std::vector<float>;

class Suite {
 public:
  Suite(Communicator& comm, const SuiteOptions& options)
      : comm_(comm),
        options_(options),
        memory_(options.memory != nullptr ? *options.memory : host_memory_) {}

  std::vector<std::string> run() {
    for (const ProcessGroup group :
         {ProcessGroup::kWorld, ProcessGroup::kNode, ProcessGroup::kPeers}) {
      if (!enter(group)) return complaints_;
      for (const std::size_t elements : {0, 1, 3, 1021}) check_all(elements);
      if (group == ProcessGroup::kWorld && options_.large_piece_bytes > 0) {
        check_all(options_.large_piece_bytes / sizeof(float));
      }
      check_small_values();
      if (!complaints_.empty()) return complaints_;
    }
    return complaints_;
  }

 private:
  // The members of the group, derived from the places alone.
  bool enter(ProcessGroup group) {
    group_ = group;
    members_.clear();
    const int own_rank = comm_.rank();
    const auto& places = options_.places;
    const RankPlace& own = places[static_cast<std::size_t>(own_rank)];
    for (std::size_t rank = 0; rank < places.size(); ++rank) {
      if ((group == ProcessGroup::kNode && places[rank].host != own.host) ||
          (group == ProcessGroup::kPeers && places[rank].local_rank != own.local_rank)) {
        continue;
      }
      members_.push_back(static_cast<int>(rank));
    }
    if (group == ProcessGroup::kNode) {
      std::sort(members_.begin(), members_.end(), [&](int a, int b) {
        return places[static_cast<std::size_t>(a)].local_rank <
               places[static_cast<std::size_t>(b)].local_rank;
      });
    }
    own_ = static_cast<std::size_t>(std::find(members_.begin(), members_.end(), own_rank) -
                                    members_.begin());
    expect(comm_.world_size(group) == static_cast<int>(members_.size()), "world_size");
    expect(comm_.rank(group) == static_cast<int>(own_), "rank");
    return complaints_.empty();
  }

  void check_all(std::size_t elements) {
    ++round_;
    check_all_gather(elements);
    check_all_to_all(elements);
    check_broadcast(elements);
    check_messages(elements);
    good(comm_.barrier(group_), "barrier");
  }

  // Value number i that member r contributes.
  float value(std::size_t r, std::size_t i) const {
    std::uint64_t bits = (static_cast<std::uint64_t>(members_[r]) * 1'000'003 + i) * 64 + round_;
    bits = (bits ^ (bits >> 31U)) * 0x9e3779b97f4a7c15U;
    bits = (bits ^ (bits >> 29U)) * 0xbf58476d1ce4e5b9U;
    const auto whole = static_cast<float>(static_cast<std::int32_t>(bits >> 40U) - (1 << 23));
    return whole * std::exp2f(static_cast<float>(bits % 20) - 30.0F);
  }
  Floats values(std::size_t r, std::size_t begin, std::size_t count) const {
    Floats result(count);
    for (std::size_t i = 0; i < count; ++i) result[i] = value(r, begin + i);
    return result;
  }
  std::size_t ranks() const { return members_.size(); }

  std::span<std::byte> place(const Floats& floats) {
    const auto bytes = memory_.take(floats.size() * sizeof(float));
    memory_.write(bytes, std::as_bytes(std::span(floats)));
    return bytes;
  }
  CollectiveOptions options() { return {.group = group_, .stream = memory_.stream()}; }

  void check_all_gather(std::size_t elements) {
    Floats expected;
    for (std::size_t r = 0; r < ranks(); ++r) {
      const Floats piece = values(r, 0, elements);
      expected.insert(expected.end(), piece.begin(), piece.end());
    }
    const Floats mine = values(own_, 0, elements);
    auto all = place(Floats(ranks() * elements));
    good(comm_.all_gather(place(mine), all, options()), "all_gather");
    same(all, expected, "all_gather");
    Floats only_mine(ranks() * elements);
    std::copy(mine.begin(), mine.end(),
              only_mine.begin() + static_cast<std::ptrdiff_t>(own_ * elements));
    all = place(only_mine);
    const std::size_t piece_bytes = elements * sizeof(float);
    good(comm_.all_gather(all.subspan(own_ * piece_bytes, piece_bytes), all, options()),
         "all_gather in place");
    same(all, expected, "all_gather in place");
    memory_.reset();
  }

  void check_all_to_all(std::size_t elements) {
    Floats expected;
    for (std::size_t r = 0; r < ranks(); ++r) {
      const Floats piece = values(r, own_ * elements, elements);
      expected.insert(expected.end(), piece.begin(), piece.end());
    }
    const Floats mine = values(own_, 0, ranks() * elements);
    const auto sent = place(mine);
    const auto received = place(Floats(mine.size()));
    good(comm_.all_to_all(sent, received, options()), "all_to_all");
    same(received, expected, "all_to_all");
    same(sent, mine, "all_to_all's input");
    if (!options_.device) {
      good(comm_.all_to_all(sent, sent, options()), "all_to_all in place");
      same(sent, expected, "all_to_all in place");
    }
    memory_.reset();
    check_strided_all_to_all(elements, expected);
  }

  // The same pieces, each followed by other data.
  void check_strided_all_to_all(std::size_t elements, const Floats& expected) {
    const std::size_t gap = 3;
    Floats mine;
    for (std::size_t r = 0; r < ranks(); ++r) {
      const Floats piece = values(own_, r * elements, elements);
      mine.insert(mine.end(), piece.begin(), piece.end());
      if (r + 1 < ranks()) mine.insert(mine.end(), gap, -1.0F);
    }
    const auto sent = place(mine);
    const auto received = place(Floats(expected.size()));
    CollectiveOptions strided = options();
    strided.sent_stride_bytes = (elements + gap) * sizeof(float);
    good(comm_.all_to_all(sent, received, strided), "strided all_to_all");
    same(received, expected, "strided all_to_all");
    memory_.reset();
    check_batches_of_all_to_all(elements, gap);
  }

  // Several at once, each piece followed by other data.
  void check_batches_of_all_to_all(std::size_t elements, std::size_t gap) {
    constexpr std::size_t kBatches = 3;
    Floats mine;
    Floats expected;
    for (std::size_t number = 0; number < kBatches * ranks(); ++number) {
      if (number > 0) mine.insert(mine.end(), gap, -1.0F);
      const Floats piece = values(own_, number * elements, elements);
      mine.insert(mine.end(), piece.begin(), piece.end());
      const std::size_t first = number / ranks() * ranks();
      const Floats from = values(number - first, (first + own_) * elements, elements);
      expected.insert(expected.end(), from.begin(), from.end());
    }
    const auto sent = place(mine);
    const auto received = place(Floats(expected.size()));
    CollectiveOptions batches = options();
    batches.sent_stride_bytes = (elements + gap) * sizeof(float);
    batches.batches = kBatches;
    good(comm_.all_to_all(sent, received, batches), "batches of all_to_all");
    same(received, expected, "batches of all_to_all");
    memory_.reset();
  }

  void check_broadcast(std::size_t elements) {
    for (std::size_t root = 0; root < ranks(); ++root) {
      const auto bytes = place(values(own_, 0, elements));
      good(comm_.broadcast(bytes, static_cast<int>(root), options()), "broadcast");
      same(bytes, values(root, 0, elements), "broadcast");
      memory_.reset();
    }
  }

  // Around a ring, and then down a line, as the stages of a pipeline send: to the next rank, from
  // the one before, with sizes that differ in each direction.
  void check_messages(std::size_t elements) {
    if (ranks() == 1) return;
    const std::size_t next = (own_ + 1) % ranks();
    const std::size_t last = (own_ + ranks() - 1) % ranks();
    const auto size_from = [&](std::size_t r) { return elements + r; };
    auto received = place(Floats(size_from(last)));
    good(comm_.send_receive({.sent = place(values(own_, 0, size_from(own_))),
                             .to = static_cast<int>(next),
                             .received = received,
                             .from = static_cast<int>(last)},
                            options()),
         "send_receive");
    same(received, values(last, 0, size_from(last)), "send_receive");
    memory_.reset();
    Messages line;
    if (own_ > 0) {
      line.received = place(Floats(elements));
      line.from = static_cast<int>(last);
    }
    if (next > 0) {
      line.sent = place(values(own_, 0, elements));
      line.to = static_cast<int>(next);
    }
    good(comm_.send_receive(line, options()), "send_receive on a line");
    if (own_ > 0) same(line.received, values(last, 0, elements), "send_receive on a line");
    memory_.reset();
  }

  void check_small_values() {
    std::vector<double> gathered(ranks());
    good(comm_.all_gather_values(0.1 * (members_[own_] + 1), gathered, group_),
         "all_gather_values");
    std::vector<std::int64_t> sums = {members_[own_], std::int64_t{1} << 55U, -1};
    good(comm_.sum(sums, group_), "sum");
    std::int64_t total = 0;
    for (std::size_t r = 0; r < ranks(); ++r) {
      expect(gathered[r] == 0.1 * (members_[r] + 1), "all_gather_values");
      total += members_[r];
    }
    const auto count = static_cast<std::int64_t>(ranks());
    expect(sums == std::vector<std::int64_t>{total, count << 55U, -count}, "sum");
    std::vector<std::int64_t> too_large = {std::numeric_limits<std::int64_t>::max()};
    expect(comm_.sum(too_large, group_).ok() == (ranks() == 1), "sum of what does not fit");
    const auto text = [](int rank) { return std::string(static_cast<std::size_t>(rank) * 7, 'x'); };
    const auto texts = comm_.all_gather_text(text(members_[own_]), group_);
    good(texts.status(), "all_gather_text");
    for (std::size_t r = 0; texts.ok() && r < ranks(); ++r) {
      expect((*texts)[r] == text(members_[r]), "all_gather_text");
    }
    good(comm_.finish(memory_.stream()), "finish");
    good(comm_.health(), "health");
  }

  void same(std::span<const std::byte> bytes, const Floats& expected, const char* what) {
    Floats got(expected.size());
    if (bytes.size() != got.size() * sizeof(float)) return expect(false, what);
    memory_.read(std::as_writable_bytes(std::span(got)), bytes);
    expect(expected.empty() || std::memcmp(got.data(), expected.data(), bytes.size()) == 0, what);
  }
  void good(const Status& status, const char* what) {
    if (!status.ok()) expect(false, std::string(what) + ": " + status.error().message());
  }
  void expect(bool right, const std::string& what) {
    if (right || complaints_.size() > 10) return;
    complaints_.push_back("rank " + std::to_string(comm_.rank()) + ", group " +
                          std::to_string(static_cast<int>(group_)) + ", round " +
                          std::to_string(round_) + ": " + what);
  }

  Communicator& comm_;
  const SuiteOptions& options_;
  SuiteMemory host_memory_;
  SuiteMemory& memory_;
  ProcessGroup group_ = ProcessGroup::kWorld;
  std::vector<int> members_;
  std::size_t own_ = 0;
  std::uint64_t round_ = 0;
  std::vector<std::string> complaints_;
};

}  // namespace

std::span<std::byte> SuiteMemory::take(std::size_t size_bytes) {
  taken_.push_back(std::make_unique<std::byte[]>(size_bytes));  // NOLINT(modernize-avoid-c-arrays)
  return {taken_.back().get(), size_bytes};
}

void SuiteMemory::write(std::span<std::byte> to, std::span<const std::byte> from) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

void SuiteMemory::read(std::span<std::byte> to, std::span<const std::byte> from) {
  write(to, from);
}

std::vector<std::string> check_collectives(Communicator& comm, const SuiteOptions& options) {
  return Suite(comm, options).run();
}

std::vector<std::string> check_parts(Communicator& comm, const SuiteOptions& options) {
  std::vector<int> own;
  SuiteOptions of_part = options;
  of_part.places.clear();
  std::map<std::string, int> of_host;
  // The second half of the world in reverse order, the first one as it is.
  const int ranks = comm.world_size();
  const bool is_second = comm.rank() >= ranks / 2;
  for (int i = is_second ? ranks / 2 : 0; i < (is_second ? ranks : ranks / 2); ++i)
    own.push_back(is_second ? ranks / 2 + ranks - 1 - i : i);
  for (const int rank : own) {
    RankPlace place = options.places[static_cast<std::size_t>(rank)];
    place.local_rank = of_host[place.host]++;
    of_part.places.push_back(place);
  }
  auto part = comm.part(own);
  if (!part.ok()) return {part.error().message()};
  return check_collectives(**part, of_part);
}

std::vector<RankPlace> places_of(std::span<const int> ranks_of_hosts) {
  std::vector<RankPlace> places;
  char host = 'a';
  for (const int ranks : ranks_of_hosts) {
    for (int local = 0; local < ranks; ++local) places.push_back({std::string(1, host), local});
    ++host;
  }
  return places;
}

}  // namespace sluice::engine
