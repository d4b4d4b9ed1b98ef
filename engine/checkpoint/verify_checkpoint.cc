#include "engine/checkpoint/verify_checkpoint.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "aio/page_memory.h"
#include "engine/checkpoint/checkpoint_manifest.h"
#include "engine/checkpoint/checkpoint_names.h"
#include "engine/checkpoint/checkpoint_reader.h"
#include "engine/checkpoint/chunked_reader.h"

namespace sluice::engine {
namespace {

constexpr int kMaxChunksAhead = 64;

class Verifier {
 public:
  Verifier(aio::IoQueue& queue, std::string folder, const VerifyOptions& options)
      : queue_(queue), folder_(std::move(folder)), options_(options) {}

  Result<VerifyReport> run() {
    SLUICE_RETURN_IF_ERROR(queue_.backend().files().list(folder_).status());
    auto manifest = read_checkpoint_manifest(queue_, folder_);
    if (!manifest.ok()) {
      report_damage(std::string(kManifestName), manifest.error());
      return std::move(report_);
    }
    manifest_ = std::move(*manifest);
    report_.step = manifest_.state.position.global_step;
    const int ahead = std::clamp(options_.chunks_ahead, 1, kMaxChunksAhead);
    SLUICE_ASSIGN_OR_RETURN(
        staging_,
        aio::PageMemory::map(manifest_.chunk_bytes * static_cast<std::uint64_t>(ahead), true));
    for (std::uint64_t number = 0; number < manifest_.files.size(); ++number)
      SLUICE_RETURN_IF_ERROR(check_file(number));
    if (manifest_.records) SLUICE_RETURN_IF_ERROR(check_records());
    if (report_.damaged.empty()) {
      check_as_a_whole();
    } else {
      SLUICE_ASSIGN_OR_RETURN(report_.removed, is_removed());
    }
    return std::move(report_);
  }

 private:
  void report_damage(std::string file, const Error& error, std::uint64_t begin_bytes = 0,
                     std::uint64_t end_bytes = 0) {
    report_.damaged.push_back({.file = std::move(file),
                               .begin_bytes = begin_bytes,
                               .end_bytes = end_bytes,
                               .problem = error.message()});
  }

  Status check_file(std::uint64_t number) {
    const StoredFile& stored = manifest_.files[number];
    ++report_.files;
    const ChunkedReader::Source source{
        .manifest = &manifest_, .folder = folder_, .file_number = number};
    auto file = ChunkedReader::open(queue_, source, staging_.bytes());
    if (!file.ok()) {
      report_damage(stored.name, file.error());
      done_bytes_ += stored.bytes;
      return {};
    }
    for (std::uint64_t i = 0; i < stored.chunks.size(); ++i) {
      const std::uint64_t begin = i * manifest_.chunk_bytes;
      const std::uint64_t end = std::min(begin + manifest_.chunk_bytes, stored.bytes);
      if (const auto chunk = (*file)->chunk(i); !chunk.ok())
        report_damage(stored.name, chunk.error(), begin, end);
      ++report_.chunks;
      report_.bytes += end - begin;
      done_bytes_ += end - begin;
      SLUICE_RETURN_IF_ERROR(tell());
    }
    return {};
  }

  Status check_records() {
    const StoredRecords& records = *manifest_.records;
    auto store = open_records(queue_, records);
    if (!store.ok()) {
      report_damage(std::string(kManifestName), store.error());
      return {};
    }
    SLUICE_ASSIGN_OR_RETURN(const auto chunk,
                            aio::PageMemory::map((*store)->layout().options().chunk_bytes, true));
    for (swap::RecordId id = 0; id < records.store.records.size(); ++id) {
      const std::size_t known = report_.damaged.size();
      SLUICE_RETURN_IF_ERROR(check_record(**store, id, chunk.bytes()));
      if (report_.damaged.size() == known) continue;
      SLUICE_ASSIGN_OR_RETURN(const bool removed, is_removed());
      if (removed) break;  // its run may now overwrite all records
    }
    return {};
  }

  Result<bool> is_removed() const {
    SLUICE_ASSIGN_OR_RETURN(const bool there, queue_.backend().files().exists(
                                                  folder_ + "/" + std::string(kManifestName)));
    return !there;
  }

  // A damaged header fails every chunk with the same error, which is reported once.
  Status check_record(swap::FrozenRecords& store, swap::RecordId id, std::span<std::byte> memory) {
    const swap::RecordShape shape = store.layout().shape(id);
    const std::uint64_t before = done_bytes_;
    std::string last;
    ++report_.records;
    for (int i = 0; i < shape.chunk_count(); ++i) {
      const std::uint64_t begin = static_cast<std::uint64_t>(i) * shape.chunk_bytes;
      const std::uint64_t end = std::min(begin + shape.chunk_bytes, shape.payload_bytes);
      const Status read = store.read_chunk(id, i, memory.first(end - begin));
      if (!read.ok() && read.error().message() != last)
        report_damage(swap::name_of(store.layout().record(id)), read.error(), begin, end);
      last = read.ok() ? std::string() : read.error().message();
      ++report_.chunks;
      done_bytes_ = before + (i + 1 < shape.chunk_count() ? end : shape.image_bytes());
      SLUICE_RETURN_IF_ERROR(tell());
    }
    report_.bytes += shape.image_bytes();
    return {};
  }

  Status tell() const {
    if (!options_.on_progress || options_.on_progress(done_bytes_, manifest_.total_bytes()))
      return {};
    return Error(ErrorCode::kCancelled, "checking " + folder_ + " was stopped");
  }

  // All bytes match the manifest; this checks that the checkpoint can be loaded.
  void check_as_a_whole() {
    const auto reader = CheckpointReader::open(queue_, folder_, {.chunks_ahead = 1});
    const Status checked = reader.ok() ? (*reader)->check_headers() : reader.status();
    if (!checked.ok()) report_damage(std::string(kManifestName), checked.error());
  }

  aio::IoQueue& queue_;
  const std::string folder_;
  const VerifyOptions& options_;
  CheckpointManifest manifest_;
  aio::PageMemory staging_;
  VerifyReport report_;
  std::uint64_t done_bytes_ = 0;
};

}  // namespace

Result<VerifyReport> verify_checkpoint(aio::IoQueue& queue, const std::string& folder,
                                       const VerifyOptions& options) {
  return Verifier(queue, folder, options).run();
}

}  // namespace sluice::engine
