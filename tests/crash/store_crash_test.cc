// kill -9 at random moments of a run that swaps its state; the oracle is what the run has said.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <iostream>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>

#include "tests/aio/backends_under_test.h"

namespace sluice {
namespace {

struct Life {
  std::string said;  // all of it
  bool killed = false;
};

// Runs the child until it is killed `after`.
Life live(const std::string& folder, std::uint64_t seed, std::chrono::microseconds after) {
  int out[2];
  if (::pipe2(out, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
  const std::string seed_text = std::to_string(seed);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(::open("/dev/null", O_WRONLY), STDERR_FILENO);  // every start warns of what it found
    ::execl(SLUICE_CRASH_CHILD, SLUICE_CRASH_CHILD, folder.c_str(), seed_text.c_str(), nullptr);
    ::_exit(127);
  }
  ::close(out[1]);
  std::jthread killer([&] {
    std::this_thread::sleep_for(after);
    ::kill(child, SIGKILL);
  });
  Life life;
  std::array<char, 4096> buffer;
  for (ssize_t got = 0; (got = ::read(out[0], buffer.data(), buffer.size())) > 0;)
    life.said.append(buffer.data(), static_cast<std::size_t>(got));
  ::close(out[0]);
  killer.join();
  int status = 0;
  ::waitpid(child, &status, 0);
  life.killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  return life;
}

// What may be found after a life, given what it said.
struct Expectation {
  std::optional<std::uint64_t> whole;  // closed and not opened since: must be found
  bool maybe_whole = false;            // being closed or opened when it was killed
  std::uint64_t last_closing = 0;
  bool anything = false;  // the run had come to make a store

  void hear(const std::string& said) {
    std::istringstream lines(said);
    for (std::string word; lines >> word;) {
      if (word == "found") {
        std::string what;
        lines >> what;
        if (what == "whole") {
          lines >> last_closing;
          whole.reset();
          maybe_whole = false;
        }
        if (what == "leftover" || what == "nothing") {
          whole.reset();
          maybe_whole = false;
        }
      }
      if (word == "closing") {
        lines >> last_closing;
        maybe_whole = true;
      }
      if (word == "closed") {
        lines >> last_closing;
        whole = last_closing;  // until it says "opened" it may lose the mark: being opened
        maybe_whole = true;
      }
      if (word == "opened") {
        whole.reset();
        maybe_whole = false;
      }
    }
  }
};

void kill_many_times(int kills, std::uint64_t seed) {
  const aio::TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("a"));
  std::filesystem::create_directory(folder.file("b"));
  std::mt19937_64 random(seed);
  Expectation expected;
  int whole = 0, leftover = 0, nothing = 0, in_start = 0;
  for (int i = 0; i < kills; ++i) {
    const std::chrono::microseconds after(2'000 + random() % 250'000);
    const Life life = live(folder.path(), seed + static_cast<std::uint64_t>(i), after);
    ASSERT_TRUE(life.killed) << life.said;
    ASSERT_EQ(life.said.find("error"), std::string::npos) << life.said;
    if (life.said.empty()) {
      // Killed while it looked. It may have been about to open what was whole.
      ++in_start;
      if (expected.whole) expected.maybe_whole = true;
      expected.whole.reset();
      continue;
    }
    std::istringstream first(life.said);
    std::string found, what;
    std::uint64_t step = 0;
    first >> found >> what;
    ASSERT_EQ(found, "found") << life.said;
    if (what == "whole") {
      first >> step;
      ++whole;
      EXPECT_TRUE(expected.whole || expected.maybe_whole) << "kill " << i << ": " << life.said;
      EXPECT_EQ(step, expected.last_closing) << "kill " << i;
    } else {
      // A closed store may be lost only from the moment on in which it is being opened again.
      EXPECT_TRUE(!expected.whole || expected.maybe_whole) << "kill " << i << ": " << life.said;
      ++(what == "leftover" ? leftover : nothing);
    }
    expected.hear(life.said);
  }
  std::cout << kills << " kills, seed " << seed << ": found " << whole << " whole stores, "
            << leftover << " leftovers, " << nothing << " times nothing; " << in_start
            << " killed before a word; a half-written store used as whole: 0\n";
  EXPECT_GT(leftover, 0);
}

TEST(StoreCrash, NeverTakesAHalfWrittenStoreForWhole) { kill_many_times(50, 1); }
TEST(LongStoreCrash, NeverTakesAHalfWrittenStoreForWhole) { kill_many_times(500, 2); }

}  // namespace
}  // namespace sluice
