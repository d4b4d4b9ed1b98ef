// Shared by tests: a temporary folder, seeded bytes, and the real backends by name.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "aio/io_queue.h"
#include "aio/make_backend.h"
#include "aio/units.h"

namespace sluice::aio {

// A folder below the build folder (on a real file system, unlike /tmp, which may be memory). The
// destructor removes it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::current_path() / "sluice-test-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string file(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Eight bytes at a time, by SplitMix64: slower code would dominate tests that repeat a life
// thousands of times, and sanitized tests.
inline std::vector<std::byte> random_bytes(std::size_t count, std::uint64_t seed) {
  std::vector<std::byte> bytes(count);
  std::byte* const to = bytes.data();
  std::uint64_t state = seed;
  for (std::size_t at = 0; at < count; at += sizeof(state)) {
    state += 0x9e3779b97f4a7c15U;
    std::uint64_t word = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9U;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebU;
    word ^= word >> 31;
    std::memcpy(to + at, &word, std::min(count - at, sizeof(word)));
  }
  return bytes;
}

// std::ranges::equal() compares byte by byte.
inline bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

// Changes bytes like a kernel would. The change depends on the previous bytes, their place and the
// version, so a change that is lost, doubled, or applied to other bytes shows. `first` is a
// multiple of 8, since eight bytes change at a time.
inline void change_bytes(std::span<std::byte> bytes, std::uint64_t first, std::uint64_t version) {
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::size_t size = std::min(bytes.size() - at, sizeof(std::uint64_t));
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, size);
    word = word * 5 + (first + at) * 7 + version;
    std::memcpy(bytes.data() + at, &word, size);
  }
}

inline std::unique_ptr<IoBackend> make_backend_or_die(BackendKind kind, int threads = 1,
                                                      int queue_depth = 8) {
  auto backend = make_backend({.kind = kind, .threads = threads, .queue_depth = queue_depth});
  if (!backend.ok()) throw std::runtime_error(backend.error().message());
  return std::move(*backend);
}

inline std::unique_ptr<IoQueue> make_queue_or_die(IoBackend& backend,
                                                  const IoQueue::Options& options) {
  auto queue = IoQueue::create(backend, options);
  if (!queue.ok()) throw std::runtime_error(queue.error().message());
  return std::move(*queue);
}

// NOLINTNEXTLINE(readability-identifier-naming): GoogleTest's name
inline void PrintTo(BackendKind kind, std::ostream* out) {
  *out << (kind == BackendKind::kUring ? "uring" : "posix");
}

// Tests over every real backend: names end in /uring or /posix.
class EveryBackend : public testing::TestWithParam<BackendKind> {
 protected:
  std::unique_ptr<IoBackend> backend(int threads = 1, int queue_depth = 8) const {
    return make_backend_or_die(GetParam(), threads, queue_depth);
  }
};

inline std::string backend_name(const testing::TestParamInfo<BackendKind>& info) {
  return info.param == BackendKind::kUring ? "uring" : "posix";
}

#define SLUICE_TEST_EVERY_BACKEND(suite)                                                       \
  INSTANTIATE_TEST_SUITE_P(                                                                    \
      Real, suite,                                                                             \
      testing::Values(::sluice::aio::BackendKind::kUring, ::sluice::aio::BackendKind::kPosix), \
      ::sluice::aio::backend_name)

}  // namespace sluice::aio

#define ASSERT_OK(expression)                                     \
  do {                                                            \
    const auto& sluice_ok_ = (expression);                        \
    ASSERT_TRUE(sluice_ok_.ok()) << sluice_ok_.error().message(); \
  } while (false)
#define EXPECT_OK(expression)                                     \
  do {                                                            \
    const auto& sluice_ok_ = (expression);                        \
    EXPECT_TRUE(sluice_ok_.ok()) << sluice_ok_.error().message(); \
  } while (false)
