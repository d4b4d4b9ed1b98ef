#include "engine/checkpoint/part_writer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "aio/check.h"
#include "aio/direct_file.h"
#include "aio/io_request.h"
#include "engine/checkpoint/checkpoint_manifest.h"
#include "engine/weights/quoting.h"

namespace sluice::engine {

// ChunkedWriter: writes bytes in order to one file of known size, with a checksum for every chunk.
//
// A chunk is collected in a piece of the staging memory, hashed when full, and written while the
// next pieces fill.
//
// Memory:  `staging`: page-aligned, at least two whole chunks; must outlive the writer.
// Threads: one at a time.
// Errors:  the first error is kept: every later call returns it.
class ChunkedWriter {
 public:
  struct Target {
    std::string path;  // its space was allocated by reserve()
    std::uint64_t bytes = 0;
    std::uint64_t file_number = 0;  // in the manifest
    std::uint64_t chunk_bytes = 0;
  };
  // Creates a file of that size, and allocates its space. kAlreadyExists if the file exists.
  static Status reserve(aio::IoQueue& queue, const std::string& path, std::uint64_t bytes);
  static Result<std::unique_ptr<ChunkedWriter>> open(aio::IoQueue& queue, const Target& target,
                                                     std::span<std::byte> staging);
  ~ChunkedWriter();
  ChunkedWriter(const ChunkedWriter&) = delete;
  ChunkedWriter& operator=(const ChunkedWriter&) = delete;

  Status write(std::span<const std::byte> bytes);
  // Once the file is full: waits for all writes, and makes the file durable.
  Status finish();
  // Checksums of the chunks written so far.
  const std::vector<std::uint64_t>& checksums() const { return checksums_; }

 private:
  struct Piece {
    aio::IoRequest request;
    std::span<std::byte> memory;
    bool in_flight = false;
  };

  ChunkedWriter(aio::IoQueue& queue, const Target& target, std::unique_ptr<aio::DirectFile> file,
                std::span<std::byte> staging);
  Status wait(Piece& piece);
  void submit(Piece& piece, std::uint64_t length_bytes);

  aio::IoQueue& queue_;
  const Target target_;
  std::unique_ptr<aio::DirectFile> file_;
  const std::size_t piece_count_;
  std::unique_ptr<Piece[]> pieces_;    // NOLINT(modernize-avoid-c-arrays): requests do not move
  std::size_t filling_ = 0;            // index of the piece
  std::uint64_t filled_bytes_ = 0;     // in that piece
  std::uint64_t submitted_bytes_ = 0;  // in the file
  std::vector<std::uint64_t> checksums_;
  Status status_;
};

namespace {

aio::OpenOptions writing(aio::OpenOptions::Create create) {
  return {.access = aio::OpenOptions::Access::kReadWrite, .create = create};
}

}  // namespace

Status ChunkedWriter::reserve(aio::IoQueue& queue, const std::string& path, std::uint64_t bytes) {
  return aio::DirectFile::open(
             queue, path,
             {.open = writing(aio::OpenOptions::Create::kMustNotExist), .size_bytes = bytes})
      .status();
}

Result<std::unique_ptr<ChunkedWriter>> ChunkedWriter::open(aio::IoQueue& queue,
                                                           const Target& target,
                                                           std::span<std::byte> staging) {
  SLUICE_CHECK(staging.size() >= 2 * target.chunk_bytes && staging.size() % target.chunk_bytes == 0,
               "two pieces of whole chunks at least");
  SLUICE_ASSIGN_OR_RETURN(
      auto file, aio::DirectFile::open(
                     queue, target.path,
                     {.open = writing(aio::OpenOptions::Create::kIfMissing),
                      .size_bytes = target.bytes,
                      .preallocate = false}));  // reserve() allocated the space, and it is kept
  return std::unique_ptr<ChunkedWriter>(new ChunkedWriter(queue, target, std::move(file), staging));
}

ChunkedWriter::ChunkedWriter(aio::IoQueue& queue, const Target& target,
                             std::unique_ptr<aio::DirectFile> file, std::span<std::byte> staging)
    : queue_(queue),
      target_(target),
      file_(std::move(file)),
      piece_count_(staging.size() / target.chunk_bytes),
      pieces_(new Piece[piece_count_]) {
  for (std::size_t i = 0; i < piece_count_; ++i)
    pieces_[i].memory = staging.subspan(i * target_.chunk_bytes, target_.chunk_bytes);
  checksums_.reserve((target_.bytes - 1) / target_.chunk_bytes + 1);
}

ChunkedWriter::~ChunkedWriter() {
  for (std::size_t i = 0; i < piece_count_; ++i) static_cast<void>(wait(pieces_[i]));
}

Status ChunkedWriter::wait(Piece& piece) {
  if (std::exchange(piece.in_flight, false)) {
    const Status& written = queue_.wait(piece.request);
    if (status_.ok() && !written.ok()) status_ = written;
  }
  return status_;
}

void ChunkedWriter::submit(Piece& piece, std::uint64_t length_bytes) {
  const auto chunk = piece.memory.first(length_bytes);
  checksums_.push_back(
      checkpoint_hash(chunk, {.file = target_.file_number, .offset_bytes = submitted_bytes_}));
  piece.request.prepare_write(*file_, submitted_bytes_, chunk);
  piece.in_flight = true;
  queue_.submit(piece.request);
  submitted_bytes_ += length_bytes;
}

Status ChunkedWriter::write(std::span<const std::byte> bytes) {
  SLUICE_CHECK(bytes.size() <= target_.bytes - submitted_bytes_ - filled_bytes_,
               "more bytes than the file has");
  while (!bytes.empty()) {
    Piece& piece = pieces_[filling_];
    SLUICE_RETURN_IF_ERROR(wait(piece));
    const std::uint64_t length = std::min(target_.chunk_bytes, target_.bytes - submitted_bytes_);
    const std::uint64_t count = std::min<std::uint64_t>(length - filled_bytes_, bytes.size());
    std::memcpy(piece.memory.data() + filled_bytes_, bytes.data(), count);
    bytes = bytes.subspan(count);
    filled_bytes_ += count;
    if (filled_bytes_ < length) return status_;
    submit(piece, length);
    filled_bytes_ = 0;
    filling_ = (filling_ + 1) % piece_count_;
  }
  return status_;
}

Status ChunkedWriter::finish() {
  SLUICE_CHECK(submitted_bytes_ == target_.bytes, "finish() of a file that is not full");
  for (std::size_t i = 0; i < piece_count_; ++i) SLUICE_RETURN_IF_ERROR(wait(pieces_[i]));
  if (status_.ok()) status_ = file_->finish();
  return status_;
}

namespace {

using offload::kStateFields;

constexpr int kMaxChunksInFlight = 64;

Error not_valid(std::string what) { return Error(ErrorCode::kInvalidArgument, std::move(what)); }

std::uint64_t staging_of_file(const CheckpointOptions& options) {
  return options.chunk_bytes * static_cast<std::uint64_t>(options.chunks_in_flight);
}

}  // namespace

Status check_options(const CheckpointOptions& options) {
  if (options.chunk_bytes < kMinChunkBytes || options.chunk_bytes > kMaxChunkBytes ||
      options.chunk_bytes % kMinChunkBytes != 0)
    return not_valid("a checkpoint's chunks have a multiple of 4096 bytes up to 64M, not " +
                     std::to_string(options.chunk_bytes));
  if (options.moments != DType::kF32 && options.moments != DType::kBF16)
    return not_valid("a checkpoint's moments are F32 or BF16, not " +
                     std::string(to_string(options.moments)));
  if (options.chunks_in_flight < 2 || options.chunks_in_flight > kMaxChunksInFlight)
    return not_valid("2 to " + std::to_string(kMaxChunksInFlight) +
                     " chunks of a checkpoint can be in flight, not " +
                     std::to_string(options.chunks_in_flight));
  return {};
}

std::uint64_t checksums_of(const CheckpointPlan& plan, int writer, std::uint64_t chunk_bytes) {
  std::uint64_t count = 0;
  const auto number = static_cast<std::size_t>(writer);
  for (std::size_t shard = plan.first_shards[number]; shard < plan.first_shards[number + 1];
       ++shard) {
    for (const offload::StateField& field : kStateFields)
      count += (plan.shards[shard].file(field).bytes - 1) / chunk_bytes + 1;
  }
  return count;
}

std::uint64_t PartWriter::staging_bytes(const CheckpointOptions& options) {
  return kStateFields.size() * staging_of_file(options);
}

Result<std::unique_ptr<PartWriter>> PartWriter::begin(aio::IoQueue& queue,
                                                      const std::string& folder,
                                                      std::shared_ptr<const CheckpointPlan> plan,
                                                      int writer,
                                                      const CheckpointOptions& options) {
  SLUICE_RETURN_IF_ERROR(check_options(options));
  SLUICE_CHECK(writer >= 0 && writer < plan->writers(), "a writer that the plan does not have");
  std::unique_ptr<PartWriter> part(new PartWriter(queue, folder, std::move(plan), writer, options));
  SLUICE_ASSIGN_OR_RETURN(part->staging_, aio::PageMemory::map(staging_bytes(options), true));
  SLUICE_RETURN_IF_ERROR(part->take_space());
  if (!part->is_full()) SLUICE_RETURN_IF_ERROR(part->begin_shard());
  SLUICE_RETURN_IF_ERROR(part->skip_full());
  return part;
}

PartWriter::PartWriter(aio::IoQueue& queue, std::string folder,
                       std::shared_ptr<const CheckpointPlan> plan, int writer,
                       const CheckpointOptions& options)
    : queue_(queue),
      folder_(std::move(folder)),
      plan_(std::move(plan)),
      options_(options),
      begin_shard_(plan_->first_shards[static_cast<std::size_t>(writer)]),
      end_shard_(plan_->first_shards[static_cast<std::size_t>(writer) + 1]),
      shard_(begin_shard_) {}

PartWriter::~PartWriter() = default;

std::string PartWriter::path_of(const offload::StateField& field, std::size_t shard) const {
  return folder_ + std::string(kReplacementSuffix) + "/" +
         shard_name(field, shard, plan_->shards.size());
}

Status PartWriter::take_space() {
  for (const offload::StateField& field : kStateFields) {
    for (std::size_t shard = begin_shard_; shard < end_shard_; ++shard) {
      const Status taken = ChunkedWriter::reserve(queue_, path_of(field, shard),
                                                  plan_->shards[shard].file(field).bytes);
      if (!taken.ok() && taken.error().code() == ErrorCode::kNotFound)
        return Error(taken.error())
            .with_suffix(
                "; the first writer created that folder, but it is not visible here: all hosts of "
                "a run must share the folder for its checkpoints");
      SLUICE_RETURN_IF_ERROR(taken);
    }
  }
  return {};
}

Status PartWriter::begin_shard() {
  const ShardPlan& shard = plan_->shards[shard_];
  const std::uint64_t staging = staging_of_file(options_);
  SLUICE_CHECK(staging <= staging_.size_bytes() / kStateFields.size(),
               "staging memory for every field");
  for (std::size_t field = 0; field < kStateFields.size(); ++field) {
    auto& file = files_[field];
    const ShardPlan::File& planned = shard.file(kStateFields[field]);
    SLUICE_ASSIGN_OR_RETURN(
        file, ChunkedWriter::open(queue_,
                                  {.path = path_of(kStateFields[field], shard_),
                                   .bytes = planned.bytes,
                                   .file_number = plan_->file_number(field, shard_),
                                   .chunk_bytes = options_.chunk_bytes},
                                  staging_.bytes().subspan(field * staging, staging)));
    SLUICE_RETURN_IF_ERROR(file->write(std::as_bytes(std::span(planned.header))));
  }
  return {};
}

// Moves on to the next piece that needs values, across shards if necessary.
Status PartWriter::skip_full() {
  while (!is_full()) {
    const StatePieces& pieces = plan_->shards[shard_].pieces;
    while (tensor_ < pieces.size() && elements_done_ == pieces[tensor_].elements) {
      ++tensor_;
      elements_done_ = 0;
    }
    if (tensor_ < pieces.size()) return {};
    for (std::size_t f = 0; f < files_.size(); ++f) {
      SLUICE_RETURN_IF_ERROR(files_[f]->finish());
      const std::vector<std::uint64_t>& sums = files_[f]->checksums();
      checksums_[f].insert(checksums_[f].end(), sums.begin(), sums.end());
      files_[f].reset();
    }
    tensor_ = 0;
    ++shard_;
    if (!is_full()) SLUICE_RETURN_IF_ERROR(begin_shard());
  }
  return {};
}

Status PartWriter::fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
  return status_;
}

Status PartWriter::check_next(std::string_view parameter,
                              const offload::ConstStateSlice& state) const {
  const auto refuse = [&](const std::string& what) {
    return not_valid("checkpoint " + folder_ + ": " + what);
  };
  if (!std::ranges::all_of(state.fields,
                           [&](const auto& it) { return it.size() == state.elements(); }))
    return refuse("parameter " + in_quotes(parameter) + " came with " +
                  std::to_string(state.elements()) + " weights, and moments of other lengths");
  if (is_full())
    return refuse("values of " + in_quotes(parameter) + " come after the last parameter");
  const StatePiece& piece = next_piece();
  const std::uint64_t next = piece.first_element + elements_done_;
  if (parameter != next_name() || state.first_element != next)
    return refuse("element " + std::to_string(state.first_element) + " of " + in_quotes(parameter) +
                  " was given, but element " + std::to_string(next) + " of " +
                  in_quotes(next_name()) + " must be next");
  if (state.elements() > piece.elements - elements_done_)
    return refuse("parameter " + in_quotes(next_name()) + " has " + std::to_string(piece.elements) +
                  " elements, and " + std::to_string(elements_done_ + state.elements()) + " came");
  return {};
}

Status PartWriter::append_to(std::size_t field, std::span<const float> values) {
  ChunkedWriter& file = *files_[field];
  const DType dtype = stored_dtype(kStateFields[field], options_.moments);
  if (dtype == DType::kF32) return file.write(std::as_bytes(values));
  constexpr std::uint64_t kPieceElements = 32 * 1024;
  for (; !values.empty(); values = values.subspan(std::min(values.size(), kPieceElements))) {
    const auto piece = values.first(std::min(values.size(), kPieceElements));
    for (const float value : piece) {
      if ((std::bit_cast<std::uint32_t>(value) & 0xFFFF) != 0)
        return not_valid("checkpoint " + folder_ + ": a moment of " + in_quotes(next_name()) +
                         " is not a bf16 number, but the files store moments in bf16");
    }
    narrowed_.resize(piece.size() * element_bytes(dtype));
    from_floats(dtype, piece, narrowed_);
    SLUICE_RETURN_IF_ERROR(file.write(narrowed_));
  }
  return {};
}

Status PartWriter::append(std::string_view parameter, const offload::ConstStateSlice& state) {
  if (!status_.ok()) return status_;
  if (std::ranges::all_of(state.fields, [](const auto& it) { return it.empty(); })) return {};
  SLUICE_RETURN_IF_ERROR(fail(check_next(parameter, state)));
  for (std::size_t field = 0; field < state.fields.size(); ++field)
    SLUICE_RETURN_IF_ERROR(fail(append_to(field, state.fields[field])));
  elements_done_ += state.elements();
  return fail(skip_full());
}

Status PartWriter::finish() {
  if (!status_.ok() || is_full()) return status_;
  return not_valid("checkpoint " + folder_ + ": parameter " + in_quotes(next_name()) + " has " +
                   std::to_string(elements_done_) + " of its " +
                   std::to_string(next_piece().elements) + " elements");
}

std::vector<std::uint64_t> PartWriter::checksums() const {
  std::vector<std::uint64_t> all;
  for (const auto& of_field : checksums_) all.insert(all.end(), of_field.begin(), of_field.end());
  return all;
}

}  // namespace sluice::engine
