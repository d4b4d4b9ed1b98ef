// What the tests of several files share: a temporary folder, seeded bytes, and the real backends by
// name.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "aio/io_queue.h"
#include "aio/make_backend.h"
#include "aio/units.h"

namespace sluice::aio {

// A folder under the build's own (a real file system, not /tmp, which may be memory); removed at
// the end.
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

inline std::vector<std::byte> random_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
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
