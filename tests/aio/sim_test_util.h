// Shared by tests of the simulated drive: aligned buffers, and ops that record their end.
#pragma once

#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aio/io_backend.h"
#include "aio/sim_drive.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::aio {

// Bytes at an address that direct files accept.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::size_t size_bytes, std::byte fill = std::byte{0})
      : size_bytes_(size_bytes),
        data_(static_cast<std::byte*>(std::aligned_alloc(4096, align_up(size_bytes + 1, 4096)))) {
    std::fill_n(data_.get(), size_bytes, fill);
  }
  explicit AlignedBytes(const std::vector<std::byte>& from) : AlignedBytes(from.size()) {
    std::copy(from.begin(), from.end(), data_.get());
  }
  std::byte* data() const { return data_.get(); }
  std::size_t size() const { return size_bytes_; }
  std::span<std::byte> span() const { return {data(), size()}; }
  std::vector<std::byte> copy() const { return {data(), data() + size()}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::size_t size_bytes_;
  std::unique_ptr<std::byte, Free> data_;
};

struct TestOp : IoOp {
  std::optional<std::int64_t> result;
  std::int64_t done_ns = -1;
  const Clock* clock = nullptr;
  std::vector<int>* order = nullptr;  // gets `id` at the end
  int id = 0;

  TestOp(IoKind what, File* on, std::uint64_t offset = 0, std::byte* memory = nullptr,
         std::size_t length = 0) {
    kind = what;
    file = on;
    offset_bytes = offset;
    data = memory;
    length_bytes = static_cast<std::uint32_t>(length);
    on_done = [](IoOp& op, std::int64_t value) noexcept {
      auto& self = static_cast<TestOp&>(op);
      EXPECT_FALSE(self.result.has_value()) << "an op completed twice";
      self.result = value;
      if (self.clock != nullptr) self.done_ns = self.clock->now_ns();
      if (self.order != nullptr) self.order->push_back(self.id);
    };
  }
  void submit(IoBackend& backend) {
    clock = &backend.clock();
    IoOp* self = this;
    backend.submit({&self, 1});
  }
};

// Runs one op to its end in virtual time.
inline std::int64_t run_op(IoBackend& backend, TestOp op) {
  op.submit(backend);
  EXPECT_FALSE(op.result.has_value()) << "an op completed inside submit()";
  while (!op.result.has_value()) {
    if (backend.pump() != PumpResult::kProgressed) {
      ADD_FAILURE() << "the op never ended";
      return -1;
    }
  }
  return *op.result;
}

inline std::int64_t write_at(IoBackend& backend, File& file, std::uint64_t offset,
                             const std::vector<std::byte>& bytes) {
  const AlignedBytes buffer(bytes);
  return run_op(backend, TestOp(IoKind::kWrite, &file, offset, buffer.data(), buffer.size()));
}

inline std::vector<std::byte> read_at(IoBackend& backend, File& file, std::uint64_t offset,
                                      std::size_t length) {
  const AlignedBytes buffer(length, std::byte{0xEE});
  const auto result =
      run_op(backend, TestOp(IoKind::kRead, &file, offset, buffer.data(), buffer.size()));
  EXPECT_GE(result, 0);
  auto bytes = buffer.copy();
  bytes.resize(static_cast<std::size_t>(std::max<std::int64_t>(result, 0)));
  return bytes;
}

inline std::int64_t sync_file(IoBackend& backend, File& file) {
  return run_op(backend, TestOp(IoKind::kSync, &file));
}

inline std::unique_ptr<File> open_file(IoBackend& backend, const std::string& path,
                                       bool direct = true) {
  auto file = backend.files().open(path, {.access = OpenOptions::Access::kReadWrite,
                                          .create = OpenOptions::Create::kIfMissing,
                                          .direct = direct});
  if (!file.ok()) throw std::runtime_error(file.error().message());
  return std::move(*file);
}

inline std::vector<std::byte> filled(std::size_t length, int value) {
  return std::vector<std::byte>(length, static_cast<std::byte>(value));
}

// The contents of a file as runs of equal bytes.
struct Run {
  std::size_t length;
  int value;
};
inline std::vector<std::byte> runs(std::initializer_list<Run> all) {
  std::vector<std::byte> bytes;
  for (const Run& run : all)
    bytes.insert(bytes.end(), run.length, static_cast<std::byte>(run.value));
  return bytes;
}

}  // namespace sluice::aio
