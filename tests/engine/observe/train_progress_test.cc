#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <memory>

#include "engine/observe/run_totals.h"

namespace sluice::engine {
namespace {

using testing::HasSubstr;
using testing::Not;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using OwnedFile = std::unique_ptr<std::FILE, CloseFile>;

StepMetrics metrics_of(std::int64_t step) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = 3.25;
  metrics.lr = 3e-4;
  metrics.grad_norm = 0.834;
  metrics.tokens_per_s = 12'340;
  metrics.step_ms = 100;
  return metrics;
}

TEST(TrainProgress, SaysHowFarItIsAndHowLongItTakes) {
  const OwnedFile out(std::tmpfile());
  TrainProgress progress({.total_steps = 2000, .out = out.get()});
  StepMetrics metrics = metrics_of(120);
  progress.update(metrics);
  EXPECT_EQ(progress.text(),
            "step 120/2000  loss 3.2500  lr 3.00e-04  norm 0.83  12.3k tok/s  ETA 3:08");
  metrics = metrics_of(121);
  metrics.skipped = true;
  metrics.val_loss = 3.5;  // reported by the evaluation itself
  metrics.nvme_read_bytes = 240'000'000;
  metrics.nvme_write_bytes = 200'000'000;
  metrics.h2d_bytes = 100'000'000;
  progress.update(metrics);
  EXPECT_EQ(progress.text(),
            "step 121/2000  loss 3.2500  lr 3.00e-04  norm 0.83  12.3k tok/s  ETA 3:08"
            "  NVMe 1.20 + 1.00 GB/s  bus 0.50 + 0.00 GB/s  skipped 1");
}

TEST(TrainProgress, SaysWhereAStepsTimeWentIfAsked) {
  const OwnedFile out(std::tmpfile());
  TrainProgress progress({.total_steps = 2000, .breakdown = true, .out = out.get()});
  StepMetrics metrics = metrics_of(120);
  metrics.forward_ms = 30.25;
  metrics.backward_ms = 60;
  metrics.update_exposed_ms = 4.04;
  progress.update(metrics);
  EXPECT_THAT(progress.text(),
              HasSubstr("  forward 30.2 + backward 60.0 + wait for updates 4.0 of 100.0 ms"));
  EXPECT_THAT(progress.text(), testing::Not(HasSubstr("recompute")));
}

TEST(TrainProgress, SaysWhatPassesRecomputedAndWaitedForIfThatWasMeasured) {
  const OwnedFile out(std::tmpfile());
  TrainProgress progress({.total_steps = 2000, .breakdown = true, .out = out.get()});
  StepMetrics metrics = metrics_of(120);
  metrics.recompute_ms = 20;
  metrics.await_params_ms = 3.25;
  metrics.await_inputs_ms = 0;
  progress.update(metrics);
  EXPECT_THAT(
      progress.text(),
      HasSubstr(" ms, including recompute 20.0, waiting for parameters 3.2 and inputs 0.0"));
}

TEST(TrainProgress, FollowsAChangeOfSpeedWithinAFewDozenSteps) {
  const OwnedFile out(std::tmpfile());
  TrainProgress progress({.total_steps = 1000, .out = out.get()});
  for (int step = 1; step <= 100; ++step) progress.update(metrics_of(step));
  for (int step = 101; step <= 200; ++step) {
    StepMetrics slow = metrics_of(step);
    slow.step_ms = 1000;
    progress.update(slow);
  }
  EXPECT_THAT(progress.text(), HasSubstr("ETA 13:1"));  // 800 steps of almost a second
}

TEST(TrainProgress, PrintsPlainLinesEveryFewStepsWhereThereIsNoTerminal) {
  const OwnedFile out(std::tmpfile());
  TrainProgress progress({.total_steps = 12, .plain_every_steps = 5, .out = out.get()});
  for (int step = 1; step <= 12; ++step) progress.update(metrics_of(step));
  std::rewind(out.get());
  std::array<char, 4096> text{};
  std::string shown(text.data(), std::fread(text.data(), 1, text.size(), out.get()));
  EXPECT_THAT(shown, Not(HasSubstr("\033")));
  std::string steps;
  for (std::size_t at = 0; (at = shown.find("step ", at)) != std::string::npos; ++at)
    steps += shown.substr(at + 5, shown.find('/', at) - at - 5) + " ";
  EXPECT_EQ(steps, "1 5 10 12 ");
  EXPECT_EQ(shown.back(), '\n');
}

TEST(TrainProgress, LeavesLinesOnATerminalAndRewritesOneBelowThemCutToItsWidth) {
  const int master = posix_openpt(O_RDWR | O_NOCTTY);
  if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0)
    GTEST_SKIP() << "this machine has no pseudo terminals";
  const OwnedFile out(std::fopen(ptsname(master), "w"));
  ASSERT_NE(out, nullptr);
  const winsize size{.ws_row = 10, .ws_col = 40};
  ASSERT_EQ(ioctl(master, TIOCSWINSZ, &size), 0);
  {
    TrainProgress progress({.total_steps = 50, .plain_every_steps = 25, .out = out.get()});
    for (int step = 1; step <= 50; ++step) progress.update(metrics_of(step));
  }
  // Lines that stay are complete. The line that is rewritten between them, at most ten times a
  // second, is cut to the width. The terminal turns "\n" into "\r\n".
  const auto line = [](int step) {
    return "step " + std::to_string(step) + "/50  loss 3.2500  lr 3.00e-04  norm 0.83  12.3k tok/s";
  };
  const std::string rewritten = "\r\033[K" + line(2).substr(0, 39) + "\r\033[K";
  std::string shown;
  while (shown.find("step 50/50") == std::string::npos || shown.back() != '\n') {
    std::array<char, 4096> text{};  // a terminal may deliver it in parts
    const ssize_t length = read(master, text.data(), text.size());
    ASSERT_GT(length, 0) << shown;
    shown.append(text.data(), static_cast<std::size_t>(length));
  }
  close(master);
  EXPECT_TRUE(shown.starts_with(line(1))) << shown;
  const std::size_t first = shown.find("\r\n");
  const std::size_t middle = shown.find(line(25));
  const std::size_t last = shown.find(line(50));
  ASSERT_NE(middle, std::string::npos) << shown;
  ASSERT_NE(last, std::string::npos) << shown;
  EXPECT_EQ(shown.substr(first + 2, middle - first - 2), rewritten);
  EXPECT_THAT(shown.substr(middle, last - middle),
              Not(HasSubstr("step 49/50  loss 3.2500  lr 3.00e-04  norm")));
}

TEST(TrainProgress, IsSilentWhereItIsAskedTo) {
  const OwnedFile out(std::tmpfile());
  TrainProgress progress({.total_steps = 2, .silent = true, .out = out.get()});
  for (int step = 1; step <= 2; ++step) progress.update(metrics_of(step));
  EXPECT_EQ(std::ftell(out.get()), 0);
  EXPECT_THAT(progress.text(), HasSubstr("step 2/2"));
}

}  // namespace
}  // namespace sluice::engine
