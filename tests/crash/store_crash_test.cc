// Kills a run that swaps its state at random moments with kill -9; its output is the oracle.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <thread>

#include "tests/aio/backends_under_test.h"

namespace sluice {
namespace {

struct Life {
  std::string said;  // the whole output
  bool killed = false;
};

// Runs the child and kills it `after` this time.
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

// The last line about its store.
std::string last_word(const std::string& said) {
  std::istringstream lines(said);
  std::string line, last;
  while (std::getline(lines, line)) last = line;
  return last.substr(0, last.find(' '));
}

void kill_many_times(int kills, std::uint64_t seed) {
  const aio::TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("a"));
  std::filesystem::create_directory(folder.file("b"));
  std::mt19937_64 random(seed);
  std::string last;
  int leftover = 0, nothing = 0, in_start = 0;
  for (int i = 0; i < kills; ++i) {
    const std::chrono::microseconds after(2'000 + random() % 250'000);
    const Life life = live(folder.path(), seed + static_cast<std::uint64_t>(i), after);
    ASSERT_TRUE(life.killed) << life.said;
    ASSERT_EQ(life.said.find("error"), std::string::npos) << life.said;
    if (life.said.empty()) {
      ++in_start;  // killed while it looked for leftovers
      continue;
    }
    const bool found_leftover = life.said.starts_with("found leftover\n");
    ++(found_leftover ? leftover : nothing);
    if (last == "made" || last == "step") {
      EXPECT_TRUE(found_leftover) << "kill " << i;
    }
    last = last_word(life.said);
  }
  std::cout << kills << " kills, seed " << seed << ": found " << leftover << " leftovers, "
            << nothing << " times nothing; " << in_start
            << " killed before a word; stores that were not known for what they are, or not made "
               "anew: 0\n";
  EXPECT_GT(leftover, 0);
}

TEST(StoreCrash, IsMadeAnewWhateverAKillLeft) { kill_many_times(50, 1); }
TEST(LongStoreCrash, IsMadeAnewWhateverAKillLeft) { kill_many_times(500, 2); }

}  // namespace
}  // namespace sluice
