#include "bench/aio_workload.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>

#include "aio/units.h"
#include "bench/closed_loop.h"

namespace sluice::bench {
namespace {

double cpu_seconds_so_far() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::int64_t to_ns(double seconds) { return static_cast<std::int64_t>(seconds * 1e9); }

// Until the deadline, an error or an interrupt.
void wait_until(std::int64_t deadline_ns, const ClosedLoop& loop, const Clock& clock,
                const tools::Interrupt& interrupt, const std::function<void(std::int64_t)>& each) {
  for (;;) {
    const std::int64_t now_ns = clock.now_ns();
    each(now_ns);
    if (now_ns >= deadline_ns || loop.failed() || interrupt.requested()) return;
    tools::nap_until(clock, deadline_ns);
  }
}

Result<std::uint64_t> one_pass(AioSession& session, Mode mode, const PassPlan& plan,
                               const tools::Interrupt& interrupt, const OnProgress& on_progress) {
  const std::uint64_t block = session.options().block_bytes;
  const std::uint64_t begin = plan.first_block * block;
  if (begin >= plan.range_bytes) return std::uint64_t{0};
  ClosedLoop loop(session, {.mode = mode,
                            .range_bytes = plan.range_bytes,
                            .one_pass = true,
                            .first_block = plan.first_block,
                            .pattern_seed = plan.pattern_seed});
  const Clock& clock = session.clock();
  const std::int64_t begin_ns = clock.now_ns();
  loop.start();
  while (!loop.ended()) {
    if (interrupt.requested()) loop.stop();
    const std::int64_t now_ns = clock.now_ns();
    const std::uint64_t done = loop.issued_blocks() * block - begin;
    on_progress(static_cast<double>(done) / static_cast<double>(plan.range_bytes - begin),
                gb_per_s(done, now_ns - begin_ns));
    tools::nap_until(clock, now_ns + to_ns(0.01));
  }
  SLUICE_RETURN_IF_ERROR(loop.drain());
  if (interrupt.requested()) return Error(ErrorCode::kCancelled, "interrupted");
  return loop.checked_bytes();
}

}  // namespace

Result<RunResult> run_measured(AioSession& session, const RunPlan& plan,
                               const tools::Interrupt& interrupt, const OnProgress& on_progress) {
  ClosedLoop loop(session, {.mode = plan.mode,
                            .range_bytes = plan.range_bytes,
                            .pattern_seed = plan.pattern_seed,
                            .random_seed = plan.random_seed});
  const Clock& clock = session.clock();
  const double total_seconds = plan.ramp_seconds + plan.seconds;
  session.queue().reset_stats();

  const std::int64_t start_ns = clock.now_ns();
  loop.start();
  wait_until(start_ns + to_ns(plan.ramp_seconds), loop, clock, interrupt, [&](std::int64_t now_ns) {
    on_progress(static_cast<double>(now_ns - start_ns) * 1e-9 / total_seconds, 0);
  });

  loop.set_counting(true);
  const double cpu_before = cpu_seconds_so_far();
  const std::int64_t open_ns = clock.now_ns();
  wait_until(open_ns + to_ns(plan.seconds), loop, clock, interrupt, [&](std::int64_t now_ns) {
    on_progress(static_cast<double>(now_ns - start_ns) * 1e-9 / total_seconds,
                gb_per_s(loop.counted_bytes(), now_ns - open_ns));
  });
  const std::int64_t patience_end_ns = open_ns + to_ns(plan.seconds + plan.patience_seconds);
  const auto lacks_a_kind = [&] {
    const LoopCounts so_far = loop.counts();
    return (so_far.reads == 0 && plan.mode != Mode::kWrite) ||
           (so_far.writes == 0 && writes(plan.mode));
  };
  while (clock.now_ns() < patience_end_ns && !loop.failed() && !interrupt.requested() &&
         lacks_a_kind())
    tools::nap_until(clock, std::min(patience_end_ns, clock.now_ns() + to_ns(0.01)));
  loop.set_counting(false);
  const double cpu_after = cpu_seconds_so_far();
  const std::int64_t close_ns = clock.now_ns();
  const bool interrupted = interrupt.requested() && close_ns - open_ns < to_ns(plan.seconds);
  loop.stop();
  SLUICE_RETURN_IF_ERROR(loop.drain());

  const LoopCounts counts = loop.counts();
  const aio::IoStats stats = session.queue().stats();
  RunResult result;
  result.mode = plan.mode;
  result.seconds = static_cast<double>(close_ns - open_ns) * 1e-9;
  result.read_bytes = counts.read_bytes;
  result.written_bytes = counts.written_bytes;
  result.operations = counts.reads + counts.writes;
  result.p50_ns = counts.latency.percentile_ns(50);
  result.p99_ns = counts.latency.percentile_ns(99);
  result.p999_ns = counts.latency.percentile_ns(99.9);
  result.cpu_seconds = cpu_after - cpu_before;
  result.interrupted = interrupted;
  result.issued_blocks = loop.issued_blocks();
  result.verified_bytes = loop.checked_bytes();
  result.retries = stats.retries + stats.short_transfers;
  result.shape = session.options();
  result.backend = session.backend_name();
  result.direct = session.direct();
  result.registered = session.registered();
  return result;
}

Error nothing_completed(const RunResult& run, double seconds) {
  const char* const kind = run.operations == 0   ? "transfer"
                           : run.read_bytes == 0 ? "read"
                                                 : "write";
  char text[64];
  std::snprintf(text, sizeof text, " completed in the %g s that were measured", seconds);
  return Error(ErrorCode::kTimedOut, std::string("no ") + kind + " of " +
                                         format_bytes(run.shape.block_bytes) + text +
                                         ": give more --seconds, a smaller --block-size or a lower "
                                         "--queue-depth");
}

Status write_pass(AioSession& session, const PassPlan& plan, const tools::Interrupt& interrupt,
                  const OnProgress& on_progress) {
  SLUICE_RETURN_IF_ERROR(one_pass(session, Mode::kWrite, plan, interrupt, on_progress).status());
  Status synced = session.queue().sync(session.target());
  if (!synced.ok()) return session.shown(synced.error());
  return {};
}

Result<std::uint64_t> check_pass(AioSession& session, const PassPlan& plan,
                                 const tools::Interrupt& interrupt, const OnProgress& on_progress) {
  return one_pass(session, Mode::kRead, plan, interrupt, on_progress);
}

}  // namespace sluice::bench
