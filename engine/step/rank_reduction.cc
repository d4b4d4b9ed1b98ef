#include "engine/step/rank_reduction.h"

#include <algorithm>

#include "aio/check.h"
#include "offload/adamw/sum_nodes.h"

namespace sluice::engine {

namespace {

using Rows = SumExchange::Rows;

void add_rows(const Rows& sum, const Rows& a, const Rows& b) {
  for (std::uint64_t row = 0; row < sum.rows; ++row) {
    float* const to = sum.first + row * sum.stride;
    const float* const left = a.first + row * a.stride;
    const float* const right = b.first + row * b.stride;
    for (std::uint64_t i = 0; i < sum.elements; ++i) to[i] = left[i] + right[i];
  }
}

Status encode_rows(offload::SumCodec codec, const Rows& from, std::byte* to) {
  const std::uint64_t bytes = offload::encoded_sum_bytes(codec, from.elements);
  for (std::uint64_t row = 0; row < from.rows; ++row)
    offload::encode_sum(codec, from.first + row * from.stride, from.elements, to + row * bytes);
  return {};
}

Status decode_rows(offload::SumCodec codec, const std::byte* from, const Rows& to) {
  const std::uint64_t bytes = offload::encoded_sum_bytes(codec, to.elements);
  for (std::uint64_t row = 0; row < to.rows; ++row)
    offload::decode_sum(codec, from + row * bytes, to.first + row * to.stride, to.elements);
  return {};
}

}  // namespace

SumExchange::SumExchange(const RankLink& ranks, const offload::SumOrder& order)
    : ranks_(ranks),
      sums_({.exchanges = order.exchanges(),
             .host_exchanges = order.host_exchanges(),
             .codec = order.codec()}),
      hops_(order.hops()) {
  const bool by_host = ranks.part.hosts > 1;
  SLUICE_CHECK(!by_host || ranks.link->topology().part(ranks.part.rank) == ranks.part,
               "hosts of neighbouring ranks");
}

std::uint64_t SumExchange::exchange_bytes(std::uint64_t count) const {
  return offload::SumOrder::exchange_bytes(sums_, ranks_.part, count);
}

// Row i of `sent` is piece i, and so is row i of what is received, contiguously.
Status SumExchange::exchange(const Rows& sent, float* received, const Part& part,
                             const Kernels& kernels, CollectiveOptions options) const {
  options.stream = part.stream;
  if (sums_.codec == offload::SumCodec::kFp32) {
    options.sent_stride_bytes = sent.stride * sizeof(float);
    return ranks_.link->all_to_all(
        std::as_bytes(std::span(sent.first, (sent.rows - 1) * sent.stride + sent.elements)),
        std::as_writable_bytes(std::span(received, sent.rows * sent.elements)), options);
  }
  const std::uint64_t bytes = sent.rows * offload::encoded_sum_bytes(sums_.codec, sent.elements);
  auto* const encoded = reinterpret_cast<std::byte*>(
      part.received + offload::SumOrder::received_pieces(sums_, ranks_.part) * part.count);
  SLUICE_RETURN_IF_ERROR(kernels.encode(sums_.codec, sent, encoded));
  SLUICE_RETURN_IF_ERROR(ranks_.link->all_to_all(std::span(encoded, bytes),
                                                 std::span(encoded + bytes, bytes), options));
  return kernels.decode(
      sums_.codec, encoded + bytes,
      {.first = received, .rows = sent.rows, .elements = sent.elements, .stride = sent.elements});
}

// In the first hop of two, a rank gets its host's sums of its own piece and of the pieces of its
// peers, a batch for each host. Sum n then has a row for each host:
//
//   exchange -> host whose piece it is -> member of this host -> elements
Status SumExchange::reduce(const Part& part, const Kernels& kernels) const {
  const bool by_host = hops_.size() > 1;
  const auto hosts = static_cast<std::uint64_t>(by_host ? ranks_.part.hosts : 1);
  const offload::SumOrder::Hop& first = hops_.front();
  const auto members = static_cast<std::uint64_t>(first.members);
  const std::uint64_t pieces = hosts * members;
  const auto of_first_hop = [&](int number) {
    const std::uint64_t exchange = static_cast<std::uint64_t>(number) / members;
    const std::uint64_t member = static_cast<std::uint64_t>(number) % members;
    return Rows{.first = part.received + (exchange * pieces + member) * part.count,
                .rows = hosts,
                .elements = part.count,
                .stride = members * part.count};
  };
  for (std::size_t number = 0; number < first.sent.size(); ++number) {
    float* const root = part.roots[static_cast<std::size_t>(first.sent[number])];
    SLUICE_RETURN_IF_ERROR(exchange(
        {.first = root + part.first, .rows = pieces, .elements = part.count, .stride = part.piece},
        part.received + number * pieces * part.count, part, kernels,
        {.group = by_host ? ProcessGroup::kNode : ProcessGroup::kWorld, .batches = hosts}));
  }
  float* received = part.received;  // in the last hop
  const offload::SumOrder::Hop& last = hops_.back();
  if (by_host) {
    for (const offload::SumOrder::Addition& addition : first.additions)
      kernels.add(of_first_hop(addition.to), of_first_hop(addition.to),
                  of_first_hop(addition.from));
    received += first.sent.size() * pieces * part.count;
    for (std::size_t number = 0; number < last.sent.size(); ++number)
      SLUICE_RETURN_IF_ERROR(exchange(of_first_hop(last.sent[number]),
                                      received + number * hosts * part.count, part, kernels,
                                      {.group = ProcessGroup::kPeers}));
  }
  const auto row_at = [&](float* place) {
    return Rows{.first = place, .elements = part.count, .stride = part.count};
  };
  for (const offload::SumOrder::Addition& addition : last.additions) {
    const bool is_last = &addition == &last.additions.back();
    float* const to = received + static_cast<std::uint64_t>(addition.to) * part.count;
    float* const from = received + static_cast<std::uint64_t>(addition.from) * part.count;
    kernels.add(row_at(is_last ? part.sum : to), row_at(to), row_at(from));
  }
  return {};
}

RankReduction::RankReduction(const RankLink& ranks, const offload::SumOrder& order,
                             std::uint64_t most_elements)
    : exchange_(ranks, order),
      world_(static_cast<std::uint64_t>(ranks.part.world)),
      received_(
          exchange_.exchange_bytes(offload::shard_piece_elements(most_elements, ranks.part.world)) /
          sizeof(float)) {}

Result<std::span<float>> RankReduction::reduce(std::span<float* const> roots,
                                               std::uint64_t elements) {
  const std::uint64_t piece = elements / world_;
  SLUICE_CHECK(piece * world_ == elements &&
                   exchange_.exchange_bytes(piece) <= received_.size() * sizeof(float),
               "a gathered unit");
  SLUICE_RETURN_IF_ERROR(
      exchange_.reduce({.roots = roots,
                        .piece = piece,
                        .count = piece,
                        .received = received_.data(),
                        .sum = received_.data()},
                       {.add = add_rows, .encode = encode_rows, .decode = decode_rows}));
  return std::span(received_).first(piece);
}

Status gather_square_sums(const RankLink& ranks, const ModelLayout& model,
                          std::span<offload::SquareSum* const> sums) {
  const int world = ranks.part.world;
  const auto shard_of = [&](int unit, int rank) {
    return offload::shard_of(model.layout(unit).elements, {rank, world});
  };
  const auto count_of = [](const offload::UnitShard& shard) {
    return offload::sum_node_count(shard.first_element, shard.elements);
  };
  std::vector<std::size_t> nodes(static_cast<std::size_t>(world));  // the node count of each rank
  for (int rank = 0; rank < world; ++rank)
    for (int unit = 0; unit < model.units(); ++unit)
      nodes[static_cast<std::size_t>(rank)] += count_of(shard_of(unit, rank));
  const std::size_t most = *std::max_element(nodes.begin(), nodes.end());
  std::vector<double> mine;
  mine.reserve(most);
  for (const offload::SquareSum* sum : sums)
    mine.insert(mine.end(), sum->sums().begin(), sum->sums().end());
  mine.resize(most);
  std::vector<double> all(most * static_cast<std::size_t>(world));
  SLUICE_RETURN_IF_ERROR(ranks.link->all_gather(std::as_bytes(std::span(mine)),
                                                std::as_writable_bytes(std::span(all))));
  std::vector<std::size_t> next(static_cast<std::size_t>(world));
  for (int unit = 0; unit < model.units(); ++unit) {
    offload::SquareSum& sum = *sums[static_cast<std::size_t>(unit)];
    sum.reset(0);
    for (int rank = 0; rank < world; ++rank) {
      const offload::UnitShard shard = shard_of(unit, rank);
      std::size_t& from = next[static_cast<std::size_t>(rank)];
      const std::size_t count = count_of(shard);
      sum.append_sums(shard.elements,
                      std::span(all).subspan(static_cast<std::size_t>(rank) * most + from, count));
      from += count;
    }
  }
  return {};
}

Result<std::vector<double>> all_of_step(const RankLink& ranks, const offload::SumOrder& order,
                                        const std::vector<double>& own) {
  std::vector<double> by_rank(own.size() * static_cast<std::size_t>(ranks.part.world));
  SLUICE_RETURN_IF_ERROR(ranks.link->all_gather(std::as_bytes(std::span(own)),
                                                std::as_writable_bytes(std::span(by_rank))));
  std::vector<double> all(by_rank.size());
  for (std::size_t i = 0; i < by_rank.size(); ++i) {
    const auto micro_batch = static_cast<std::int64_t>(i % own.size());
    const auto rank = static_cast<int>(i / own.size());
    all[static_cast<std::size_t>(order.number_in_step(micro_batch, rank))] = by_rank[i];
  }
  return all;
}

}  // namespace sluice::engine
