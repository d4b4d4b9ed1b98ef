#include "swap/frozen_records.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "aio/check.h"
#include "aio/io_request.h"
#include "aio/page_memory.h"
#include "swap/record_image.h"
#include "swap/store_files.h"
#include "swap/store_inventory.h"

namespace sluice::swap {
namespace {

constexpr std::uint64_t kWindowChunks = 8;

Status check_places(const FrozenStore& store, const StoreLayout& layout) {
  const auto other = [&](const std::string& what) {
    return Error(ErrorCode::kCorrupt, folder_of(store.paths.front(), store.run) +
                                          " is not the store that holds the "
                                          "checkpoint's state: " +
                                          what);
  };
  if (layout.options().store_id != store.store_id) return other("it was made anew");
  if (layout.options().places != 2) return other("it has one place for each record");
  if (layout.options().paths.size() != store.paths.size() ||
      layout.records().size() != store.records.size())
    return other("it has " + std::to_string(layout.records().size()) + " records on " +
                 std::to_string(layout.options().paths.size()) + " paths instead of " +
                 std::to_string(store.records.size()) + " on " +
                 std::to_string(store.paths.size()));
  for (const FrozenRecord& record : store.records)
    if (record.place != 0 && record.place != 1) return other("it has two places");
  return {};
}

}  // namespace

// Reads one record: its header once, then windows of consecutive chunks, the next one ahead.
class FrozenRecords::Stream {
 public:
  static Result<std::unique_ptr<Stream>> create(FrozenRecords& store) {
    std::unique_ptr<Stream> stream(new Stream(store));
    SLUICE_ASSIGN_OR_RETURN(
        stream->memory_,
        aio::PageMemory::map(kRecordHeaderBytes + 2 * stream->window_bytes_, true));
    return stream;
  }
  ~Stream() { forget(); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  bool is_of(RecordId record) const { return record_ == record; }

  Status begin(RecordId record) {
    forget();
    shape_ = store_.layout_.shape(record);
    frozen_ = store_.frozen_.records[record];
    offset_bytes_ = store_.layout_.offset_bytes(record, frozen_.place);
    SLUICE_RETURN_IF_ERROR(store_.queue_.read(*store_.data_, offset_bytes_, header()));
    SLUICE_RETURN_IF_ERROR(check_record_header(shape_, header(), frozen_.generation));
    record_ = record;
    return {};
  }

  Status read(int chunk, std::span<std::byte> to) {
    const std::uint64_t begin = static_cast<std::uint64_t>(chunk) * shape_.chunk_bytes;
    SLUICE_CHECK(chunk >= 0 && chunk < shape_.chunk_count() &&
                     to.size() == std::min(shape_.chunk_bytes, shape_.payload_bytes - begin),
                 "a chunk of the record");
    const std::uint64_t wanted = begin / window_bytes_;
    Window& window = windows_[wanted % 2];
    if (window.number != wanted) start(wanted);
    SLUICE_RETURN_IF_ERROR(wait(window));
    if (wanted == next_) start(wanted + 1);  // in order
    next_ = wanted + 1;
    std::memcpy(to.data(), bytes_of(wanted).data() + begin % window_bytes_, to.size());
    Status sound = check_record_chunk(shape_, header(), chunk, frozen_.generation, to);
    if (!sound.ok()) forget();  // so that another try reads it again
    return sound;
  }

 private:
  struct Window {
    aio::IoRequest request;
    std::optional<std::uint64_t> number;
    bool in_flight = false;
  };

  explicit Stream(FrozenRecords& store)
      : store_(store), window_bytes_(kWindowChunks * store.layout_.options().chunk_bytes) {}

  std::span<std::byte> header() const { return memory_.bytes().first(kRecordHeaderBytes); }
  std::span<std::byte> bytes_of(std::uint64_t number) const {
    return memory_.bytes().subspan(kRecordHeaderBytes + number % 2 * window_bytes_, window_bytes_);
  }
  void start(std::uint64_t number) {
    const std::uint64_t begin = number * window_bytes_;
    Window& window = windows_[number % 2];
    if (begin >= shape_.payload_bytes || window.number == number) return;
    static_cast<void>(wait(window));
    // Whole sectors: the padding of a record is in the file.
    const std::uint64_t end =
        std::min(begin + window_bytes_, align_up(shape_.payload_bytes, kRecordAlignmentBytes));
    window.request.prepare_read(*store_.data_, offset_bytes_ + kRecordHeaderBytes + begin,
                                bytes_of(number).first(end - begin));
    window.number = number;
    window.in_flight = true;
    store_.queue_.submit(window.request);
  }
  Status wait(Window& window) {
    if (!std::exchange(window.in_flight, false)) return {};
    Status status = store_.queue_.wait(window.request);
    if (!status.ok()) window.number.reset();
    return status;
  }
  void forget() {
    for (Window& window : windows_) {
      static_cast<void>(wait(window));
      window.number.reset();
    }
    next_ = 0;
    record_.reset();
  }

  FrozenRecords& store_;
  const std::uint64_t window_bytes_;
  aio::PageMemory memory_;  // the header, then two windows
  std::optional<RecordId> record_;
  RecordShape shape_;
  FrozenRecord frozen_;
  std::uint64_t offset_bytes_ = 0;
  std::array<Window, 2> windows_;  // by the parity of their numbers
  std::uint64_t next_ = 0;         // the window that a reader in order asks for
};

Result<StoreLayout> layout_of(aio::IoQueue& queue, const FrozenStore& store) {
  SLUICE_ASSIGN_OR_RETURN(FoundStore found, find_store(queue, store.paths, store.run));
  SLUICE_RETURN_IF_ERROR(check_places(store, found.layout));
  if (found.paths != store.paths)
    return Error(ErrorCode::kCorrupt, folder_of(store.paths.front(), store.run) +
                                          " has the store's parts on its paths in another order");
  return std::move(found.layout);
}

Result<std::unique_ptr<FrozenRecords>> FrozenRecords::open(aio::IoQueue& queue,
                                                           const FrozenStore& frozen) {
  SLUICE_ASSIGN_OR_RETURN(StoreLayout layout, layout_of(queue, frozen));
  std::vector<std::string> files;
  files.reserve(frozen.paths.size());
  for (const std::string& path : frozen.paths)
    files.push_back(data_path(folder_of(path, frozen.run)));
  aio::StripedFile::Options options;
  options.stripe_bytes = layout.options().stripe_bytes;
  options.weights = layout.options().weights;
  options.file.open.access = aio::OpenOptions::Access::kRead;
  options.file.size_bytes = layout.total_bytes();
  SLUICE_ASSIGN_OR_RETURN(auto data, aio::StripedFile::open(queue, files, options));
  return std::unique_ptr<FrozenRecords>(
      new FrozenRecords(queue, frozen, std::move(layout), std::move(data)));
}

FrozenRecords::FrozenRecords(aio::IoQueue& queue, const FrozenStore& frozen, StoreLayout layout,
                             std::unique_ptr<aio::StripedFile> data)
    : queue_(queue), frozen_(frozen), layout_(std::move(layout)), data_(std::move(data)) {}

FrozenRecords::~FrozenRecords() = default;

Result<FrozenRecords::Stream*> FrozenRecords::stream_of(RecordId record) {
  if (streams_[1] != nullptr && streams_[1]->is_of(record)) std::swap(streams_[0], streams_[1]);
  if (streams_[0] != nullptr && streams_[0]->is_of(record)) return streams_[0].get();
  std::swap(streams_[0], streams_[1]);
  if (streams_[0] == nullptr) {
    SLUICE_ASSIGN_OR_RETURN(streams_[0], Stream::create(*this));
  }
  SLUICE_RETURN_IF_ERROR(streams_[0]->begin(record));
  return streams_[0].get();
}

Status FrozenRecords::read_chunk(RecordId record, int chunk, std::span<std::byte> to) {
  SLUICE_CHECK(record < layout_.records().size(), "a record of the store");
  const auto read = [&]() -> Status {
    SLUICE_ASSIGN_OR_RETURN(Stream* const stream, stream_of(record));
    return stream->read(chunk, to);
  };
  Status done = read();
  if (done.ok()) return done;
  const bool is_stale = done.error().code() == ErrorCode::kCorrupt;
  Error error = std::move(done).error().with_context("record " + name_of(layout_.record(record)));
  if (!is_stale) return error;
  return std::move(error).with_suffix(
      "; it is damaged, or its run has saved a newer checkpoint meanwhile");
}

}  // namespace sluice::swap
