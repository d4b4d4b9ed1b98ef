#include "swap/scrub.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "aio/io_request.h"
#include "aio/page_memory.h"
#include "aio/striped_file.h"
#include "swap/record_image.h"
#include "swap/record_work.h"
#include "swap/store_files.h"
#include "swap/store_inventory.h"

namespace sluice::swap {
namespace {

constexpr RecordId kMostBuffers = 4;

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

class Scrubber {
 public:
  Scrubber(aio::IoQueue& queue, aio::Executor& executor, const StoreLayout& layout,
           const aio::IoTarget& data)
      : queue_(queue), executor_(executor), layout_(layout), data_(data) {}

  Result<ScrubReport> run(const ScrubProgress& on_progress) {
    const auto records = static_cast<RecordId>(layout_.records().size());
    const RecordId buffers = std::min(records, kMostBuffers);
    SLUICE_ASSIGN_OR_RETURN(memory_,
                            aio::PageMemory::map(buffers * layout_.largest_image_bytes(), true));
    const auto requests = std::make_unique<aio::IoRequest[]>(buffers);
    std::uint64_t total_bytes = 0;
    for (RecordId id = 0; id < records; ++id) total_bytes += layout_.shape(id).image_bytes();

    for (RecordId id = 0; id < buffers; ++id) start(requests[id], id, id);
    for (RecordId id = 0; id < records; ++id) {
      const std::size_t slot = id % buffers;
      judge(id, queue_.wait(requests[slot]), image(slot, id));
      if (id + buffers < records) start(requests[slot], slot, id + buffers);
      if (on_progress) on_progress(report_.bytes, total_bytes);
    }
    return std::move(report_);
  }

 private:
  std::span<std::byte> image(std::size_t slot, RecordId record) {
    return memory_.bytes().subspan(slot * layout_.largest_image_bytes(),
                                   layout_.shape(record).image_bytes());
  }
  void start(aio::IoRequest& request, std::size_t slot, RecordId record) {
    request.prepare_read(data_, layout_.offset_bytes(record), image(slot, record));
    queue_.submit(request);
  }

  void judge(RecordId record, const Status& read, std::span<std::byte> bytes) {
    ++report_.records;
    report_.bytes += bytes.size();
    Status problem = read;
    if (problem.ok()) {
      if (all_zero(bytes.first(kRecordHeaderBytes))) {
        ++report_.never_written;
        return;
      }
      problem = check(record, bytes);
    }
    if (problem.ok()) return;
    report_.bad.push_back(
        {.name = name_of(layout_.record(record)), .problem = problem.error().message()});
  }

  Status check(RecordId id, std::span<std::byte> bytes) {
    RecordImage record(layout_.shape(id), bytes);
    SLUICE_ASSIGN_OR_RETURN(const std::uint64_t generation, record.claimed_generation());
    return work_on_record(executor_, record, {.check = generation});
  }

  aio::IoQueue& queue_;
  aio::Executor& executor_;
  const StoreLayout& layout_;
  const aio::IoTarget& data_;
  aio::PageMemory memory_;
  ScrubReport report_;
};

}  // namespace

Result<ScrubReport> scrub(aio::IoQueue& queue, aio::Executor& executor,
                          const std::vector<std::string>& paths, const std::string& run,
                          const ScrubProgress& on_progress) {
  std::vector<std::unique_ptr<aio::FileLock>> locks;
  for (const std::string& path : paths) {
    const std::string folder = folder_of(path, run);
    SLUICE_ASSIGN_OR_RETURN(const bool there, queue.backend().files().exists(folder));
    if (!there) return Error(ErrorCode::kNotFound, "there is no state store in " + folder);
    auto lock = queue.backend().files().lock(lock_path(folder));
    if (!lock.ok())
      return std::move(lock).error().with_context("the store is in use by a live run");
    locks.push_back(std::move(*lock));
  }
  SLUICE_ASSIGN_OR_RETURN(const FoundStore store, find_store(queue, paths, run));

  std::vector<std::string> files;
  files.reserve(store.paths.size());
  for (const std::string& path : store.paths) files.push_back(data_path(folder_of(path, run)));
  aio::StripedFile::Options open;
  open.stripe_bytes = store.layout.options().stripe_bytes;
  open.weights = store.layout.options().weights;
  open.file.open.access = aio::OpenOptions::Access::kRead;
  open.file.size_bytes = store.layout.total_bytes();
  SLUICE_ASSIGN_OR_RETURN(const auto data, aio::StripedFile::open(queue, files, open));
  return Scrubber(queue, executor, store.layout, *data).run(on_progress);
}

}  // namespace sluice::swap
