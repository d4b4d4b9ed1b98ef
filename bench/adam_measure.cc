#include "bench/adam_measure.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "aio/check.h"
#include "aio/page_memory.h"
#include "aio/units.h"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kLine = 64;
// Prefetches as far ahead as the kernels do, so that the yardstick has no disadvantage.
constexpr std::uint64_t kPrefetchBytes = kKiB;

using RangePass = void(std::byte* to, const std::byte* from, std::uint64_t bytes);

struct Line {
  __m128i a, b, c, d;
};

Line load_line(const std::byte* from) {
  // A number, since it may be beyond the memory's end, where prefetching does nothing.
  const auto ahead = reinterpret_cast<std::uintptr_t>(from) + kPrefetchBytes;
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
  const auto* source = reinterpret_cast<const __m128i*>(from);
  return {.a = _mm_load_si128(source),
          .b = _mm_load_si128(source + 1),
          .c = _mm_load_si128(source + 2),
          .d = _mm_load_si128(source + 3)};
}

template <Stores kStores>
void store_line(std::byte* to, const Line& line) {
  auto* target = reinterpret_cast<__m128i*>(to);
  const auto store = [](__m128i* at, __m128i value) {
    if constexpr (kStores == Stores::kRegular)
      _mm_store_si128(at, value);
    else
      _mm_stream_si128(at, value);
  };
  store(target, line.a);
  store(target + 1, line.b);
  store(target + 2, line.c);
  store(target + 3, line.d);
}

// Cheaper than any wait for memory, and depends on both lines.
Line either(const Line& x, const Line& y) {
  return {.a = _mm_or_si128(x.a, y.a),
          .b = _mm_or_si128(x.b, y.b),
          .c = _mm_or_si128(x.c, y.c),
          .d = _mm_or_si128(x.d, y.d)};
}

// memcpy uses non-temporal stores for long copies; short ones prevent that.
void copy_regular(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  for (std::uint64_t at = 0; at < bytes; at += 64 * kKiB)
    std::memcpy(to + at, from + at, std::min(64 * kKiB, bytes - at));
}

void copy_non_temporal(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  for (std::uint64_t at = 0; at < bytes; at += kLine)
    store_line<Stores::kNonTemporal>(to + at, load_line(from + at));
  _mm_sfence();
}

template <Stores kStores>
void halve(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  for (std::uint64_t at = 0; at < bytes; at += 2 * kLine)
    store_line<kStores>(to + at / 2, either(load_line(from + at), load_line(from + at + kLine)));
  _mm_sfence();
}

void read_only(std::byte* /*to*/, const std::byte* from, std::uint64_t bytes) {
  Line seen{};
  for (std::uint64_t at = 0; at < bytes; at += kLine) seen = either(seen, load_line(from + at));
  const __m128i all = _mm_or_si128(_mm_or_si128(seen.a, seen.b), _mm_or_si128(seen.c, seen.d));
  asm volatile("" ::"x"(all));  // unused data would not be read
}

RangePass* range_pass(PlainPass pass) {
  const bool regular = pass.stores == Stores::kRegular;
  switch (pass.traffic) {
    case Traffic::kCopy:
      return regular ? copy_regular : copy_non_temporal;
    case Traffic::kHalve:
      return regular ? halve<Stores::kRegular> : halve<Stores::kNonTemporal>;
    case Traffic::kRead:
      break;
  }
  return read_only;
}

std::uint64_t written_bytes(Traffic traffic, std::uint64_t bytes_read) {
  if (traffic == Traffic::kRead) return 0;
  return traffic == Traffic::kCopy ? bytes_read : bytes_read / 2;
}

}  // namespace

std::string_view to_string(Traffic traffic) {
  if (traffic == Traffic::kRead) return "read";
  return traffic == Traffic::kCopy ? "copy" : "halve";
}

std::string_view to_string(Stores stores) {
  return stores == Stores::kRegular ? "regular" : "non-temporal";
}

std::uint64_t PlainPass::moved_bytes(std::uint64_t bytes) const {
  return bytes + written_bytes(traffic, bytes);
}

void run_plain_pass(aio::Executor& executor, PlainPass pass, std::byte* to, const std::byte* from,
                    std::uint64_t bytes) {
  SLUICE_CHECK(bytes % (2 * kLine) == 0, "whole pairs of cache lines");
  const auto pieces = static_cast<std::uint64_t>(executor.threads());
  const std::uint64_t piece_bytes = align_up((bytes + pieces - 1) / pieces, 4 * kKiB);
  RangePass* const over_range = range_pass(pass);
  const auto work = [&](int piece) {
    const std::uint64_t begin = std::min(bytes, static_cast<std::uint64_t>(piece) * piece_bytes);
    const std::uint64_t length = std::min(bytes - begin, piece_bytes);
    over_range(to + written_bytes(pass.traffic, begin), from + begin, length);
  };
  executor.run(static_cast<int>(pieces), std::cref(work));
}

namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Subject {
  std::string name;
  double bytes = 0;  // read + written in one pass
  std::function<void()> pass;
};

class Measurement {
 public:
  Measurement(const AdamBenchOptions& options, std::vector<Subject> subjects,
              const tools::Interrupt& interrupt, tools::ProgressLine& progress)
      : options_(options),
        subjects_(std::move(subjects)),
        interrupt_(interrupt),
        progress_(progress) {}

  void warm_up() {
    for (const Subject& subject : subjects_)
      if (!interrupt_.requested()) subject.pass();
  }

  // Passes per second of each subject. The order rotates from run to run, so that no subject always
  // follows the same other one.
  std::vector<double> run(int number) {
    std::vector<double> passes_per_s(subjects_.size());
    for (std::size_t i = 0; i < subjects_.size(); ++i) {
      const std::size_t which = (i + static_cast<std::size_t>(number)) % subjects_.size();
      passes_per_s[which] = measure(subjects_[which], number);
    }
    return passes_per_s;
  }

 private:
  // Runs whole passes, at least one, until the time is over.
  double measure(const Subject& subject, int number) {
    const std::string what = subject.name + ", run " + std::to_string(number + 1) + " of " +
                             std::to_string(options_.runs);
    const double in_all = static_cast<double>(subjects_.size()) * options_.runs;
    // Before the first pass, since that one may take all of the time.
    progress_.update(what, {.seconds_left = (in_all - done_) * options_.seconds});
    const double begin = seconds_now();
    for (int passes = 1;; ++passes) {
      if (interrupt_.requested()) return 0;
      subject.pass();
      const double elapsed = seconds_now() - begin;
      if (elapsed >= options_.seconds) {
        ++done_;
        return passes / elapsed;
      }
      const double fraction = elapsed / options_.seconds;
      progress_.update(what, {.fraction = fraction,
                              .gb_per_s = 1e-9 * subject.bytes * passes / elapsed,
                              .seconds_left = (in_all - done_ - fraction) * options_.seconds});
    }
  }

  const AdamBenchOptions& options_;
  const std::vector<Subject> subjects_;
  const tools::Interrupt& interrupt_;
  tools::ProgressLine& progress_;
  int done_ = 0;
};

}  // namespace

std::vector<PlainPass> yardsticks_of(const AdamBenchOptions& options) {
  std::vector<PlainPass> passes = {{Traffic::kCopy, Stores::kRegular},
                                   {Traffic::kCopy, Stores::kNonTemporal}};
  if (options.kernel == BenchKernel::kAdamw) return passes;
  if (options.grad == offload::GradType::kFp32) {
    passes.push_back({Traffic::kRead, Stores::kRegular});
  } else {
    passes.push_back({Traffic::kHalve, Stores::kRegular});
    passes.push_back({Traffic::kHalve, Stores::kNonTemporal});
  }
  return passes;
}

Result<std::vector<AdamRun>> measure_kernel(const AdamBenchOptions& options,
                                            KernelWorkload& workload, aio::Executor& executor,
                                            const tools::Interrupt& interrupt,
                                            tools::ProgressLine& progress) {
  const std::uint64_t plain_bytes = options.plain_pass_bytes();
  SLUICE_ASSIGN_OR_RETURN(const aio::PageMemory from,
                          aio::PageMemory::map(plain_bytes, true, &executor));
  SLUICE_ASSIGN_OR_RETURN(const aio::PageMemory to,
                          aio::PageMemory::map(plain_bytes, true, &executor));
  std::vector<Subject> subjects;
  const double kernel_bytes = static_cast<double>(options.elements) * options.bytes_per_element();
  subjects.push_back({options.kernel == BenchKernel::kAdamw ? "AdamW" : "cast", kernel_bytes,
                      [&workload] { workload.pass(); }});
  for (const PlainPass pass : yardsticks_of(options))
    subjects.push_back(
        {std::string(to_string(pass.traffic)), static_cast<double>(pass.moved_bytes(plain_bytes)),
         [&, pass] { run_plain_pass(executor, pass, to.data(), from.data(), plain_bytes); }});

  Measurement measurement(options, subjects, interrupt, progress);
  measurement.warm_up();
  std::vector<AdamRun> runs;
  for (int number = 0; number < options.runs; ++number) {
    const std::vector<double> passes_per_s = measurement.run(number);
    if (interrupt.requested()) return Error(ErrorCode::kCancelled, "interrupted");
    AdamRun& run = runs.emplace_back();
    run.kernel_elements_per_s = passes_per_s[0] * static_cast<double>(options.elements);
    for (std::size_t i = 1; i < subjects.size(); ++i)
      run.plain_gb_per_s.push_back(1e-9 * subjects[i].bytes * passes_per_s[i]);
  }
  return runs;
}

}  // namespace sluice::bench
