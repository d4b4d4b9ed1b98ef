#include "engine/run/joint_save.h"

#include <span>
#include <utility>

#include "engine/budget/stripe_plan.h"
#include "engine/exchange/stored_shape.h"
#include "engine/runtime/unit_pieces.h"

namespace sluice::engine {
namespace {

constexpr char kDone = '+';

constexpr char kFirstCode = 'a';  // of a failure; precedes its message

std::string told(const Status& own, const std::string& given) {
  if (own.ok()) return kDone + given;
  const auto code = static_cast<char>(kFirstCode + static_cast<char>(own.error().code()));
  return (code + own.error().message()).substr(0, kMaxTextBytes);
}

Error error_told(const std::string& text) {
  return {static_cast<ErrorCode>(text.front() - kFirstCode), text.substr(1)};
}

}  // namespace

Result<std::vector<std::string>> agree_of_ranks(const RankLink& ranks, const Status& own,
                                                const std::string& given) {
  SLUICE_ASSIGN_OR_RETURN(auto of_ranks, ranks.link->all_gather_text(told(own, given)));
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    std::string& text = of_ranks[rank];
    if (text.front() != kDone) return error_told(text).with_context("rank " + std::to_string(rank));
    text.erase(0, 1);
  }
  return of_ranks;
}

Status agree_of_ranks(const RankLink& ranks, const Status& own) {
  return agree_of_ranks(ranks, own, "").status();
}

std::vector<StatePieces> pieces_of_ranks(const ModelLayout& model, int world) {
  std::vector<StatePieces> of_ranks(static_cast<std::size_t>(world));
  const UnitPieces pieces(model);
  for (int unit = 0; unit < model.units(); ++unit) {
    for (int rank = 0; rank < world; ++rank) {
      const offload::UnitShard shard =
          offload::shard_of(model.layout(unit).elements, {rank, world});
      pieces.visit(unit, shard.first_element, shard.elements,
                   [&](const StatePiece& piece, std::uint64_t /*offset*/) {
                     of_ranks[static_cast<std::size_t>(rank)].push_back(piece);
                   });
    }
  }
  return of_ranks;
}

JointSave::JointSave(const ModelLayout& model, const RankLink& ranks, aio::IoQueue& queue,
                     DType moments)
    : model_(model), ranks_(ranks), queue_(queue), options_{.moments = moments, .replace = true} {}

JointSave::~JointSave() = default;

Result<std::uint64_t> JointSave::lead(const std::string& folder, const CheckpointState& state,
                                      const Source& source) {
  SLUICE_RETURN_IF_ERROR(begin(folder));
  return commit(write(source), &state);
}

Status JointSave::follow(const Source& source) {
  SLUICE_RETURN_IF_ERROR(begin(""));
  return commit(write(source), nullptr).status();
}

Status JointSave::begin(const std::string& folder) {
  Status done = begin_files(folder);
  return done.ok() ? done : end(std::move(done));
}

Result<std::uint64_t> JointSave::commit(const Status& written, const CheckpointState* state) {
  const auto committed = [&]() -> Status {
    if (!is_first()) return {};
    return added_.ok() ? writer_->commit(*state) : added_;
  };
  Status done = agree_of_ranks(ranks_, written);
  if (done.ok()) done = gather_checksums();
  if (done.ok()) done = agree_of_ranks(ranks_, committed());
  const std::uint64_t bytes = writer_ != nullptr ? writer_->total_bytes() : 0;
  SLUICE_RETURN_IF_ERROR(end(std::move(done)));
  return bytes;
}

// On failure the first rank removes the checkpoint's files, but not while other ranks write there.
Status JointSave::end(Status done) {
  part_.reset();
  if (!done.ok()) static_cast<void>(ranks_.link->barrier());
  writer_.reset();
  return done;
}

Status JointSave::begin_folder(const std::string& folder) {
  const std::vector<TensorSpec> parameters = parameter_specs(model_, DType::kF32);
  const std::vector<StatePieces> of_ranks = pieces_of_ranks(model_, ranks_.part.world);
  SLUICE_ASSIGN_OR_RETURN(CheckpointPlan plan,
                          plan_checkpoint(parameters, of_ranks, options_.shards()));
  plan_ = std::make_shared<const CheckpointPlan>(std::move(plan));
  if (!is_first()) return {};
  SLUICE_ASSIGN_OR_RETURN(writer_,
                          CheckpointWriter::begin_together(queue_, folder, plan_, options_));
  return {};
}

// Each rank reserves the space for its files before any rank writes.
Status JointSave::begin_files(const std::string& folder) {
  SLUICE_ASSIGN_OR_RETURN(
      const auto folders,
      agree_of_ranks(ranks_, begin_folder(folder), is_first() ? from_the_root(folder) : ""));
  const auto begin_part = [&]() -> Status {
    if (is_first()) return {};
    SLUICE_ASSIGN_OR_RETURN(
        part_, PartWriter::begin(queue_, folders.front(), plan_, ranks_.part.rank, options_));
    return {};
  };
  return agree_of_ranks(ranks_, begin_part());
}

Status JointSave::write(const Source& source) {
  SLUICE_RETURN_IF_ERROR(
      source([this](std::string_view parameter, const offload::ConstStateSlice& state) {
        return is_first() ? writer_->append(parameter, state) : part_->append(parameter, state);
      }));
  return is_first() ? writer_->finish_part() : part_->finish();
}

// The number of checksums of each rank follows from the plan. What the first rank finds wrong with
// a part is reported when all agree on the commit; until then the others still participate.
Status JointSave::gather_checksums() {
  for (int rank = 1; rank < ranks_.part.world; ++rank) {
    std::vector<std::uint64_t> checksums(checksums_of(*plan_, rank, options_.chunk_bytes));
    if (rank == ranks_.part.rank) checksums = part_->checksums();
    if (!checksums.empty())  // a rank may have no element of a small model
      SLUICE_RETURN_IF_ERROR(
          ranks_.link->broadcast(std::as_writable_bytes(std::span(checksums)), rank));
    if (is_first() && added_.ok()) added_ = writer_->add_part(rank, checksums);
  }
  return {};
}

JointSave::Source source_of(const RunState& own) {
  return [own](const JointSave::Append& append) {
    const auto take = [&append](const ParameterSpec& parameter,
                                const offload::ConstStateSlice& state) {
      return append(parameter.name, state);
    };
    return own.take(take, offload::Calls::kInOrder);
  };
}

}  // namespace sluice::engine
