// The collectives over MPI: mpirun starts the ranks (mpi_ranks.cc) if MPI is installed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdio>

#include "engine/comm/mpi_communicator.h"

namespace sluice::engine {
namespace {

using testing::HasSubstr;

TEST(Mpi, IsRefusedWithoutItsPlugIn) {
  const auto comm = make_mpi_communicator({.plugin = "/nowhere/libsluice_mpi.so"});
  ASSERT_FALSE(comm.ok());
  EXPECT_EQ(comm.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(comm.error().message(), HasSubstr("/nowhere/libsluice_mpi.so"));
  const auto other = make_mpi_communicator({.plugin = SLUICE_FAKE_NCCL});
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.error().message(), HasSubstr("is the MPI plug-in"));
}

#ifdef SLUICE_MPIRUN
struct Outcome {
  std::string output;
  int status = 0;
};

Outcome mpirun(int ranks, const std::string& what) {
  const std::string command =
      "env ASAN_OPTIONS=detect_leaks=0 OMPI_MCA_rmaps_base_oversubscribe=1 "
      "OMPI_ALLOW_RUN_AS_ROOT=1 "
      "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 '" SLUICE_MPIRUN "' -n " +
      std::to_string(ranks) + " '" SLUICE_MPI_RANKS "' '" SLUICE_MPI_PLUGIN "' " + what +
      " 2>&1 < /dev/null";
  Outcome outcome;
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> chunk{};
  while (const std::size_t got = std::fread(chunk.data(), 1, chunk.size(), pipe)) {
    outcome.output.append(chunk.data(), got);
  }
  outcome.status = ::pclose(pipe);
  return outcome;
}

TEST(Mpi, DoesEveryCollectiveAsTheOracleSays) {
  for (const int ranks : {1, 2, 4}) {
    const Outcome outcome = mpirun(ranks, "suite");
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("right"));
  }
}

TEST(Mpi, EndsAllRanksWhenOneFails) {
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& [what, words] : std::initializer_list<std::array<const char*, 2>>{
           {"abort", "rank 2 ended the run: the GPU ran out of memory"},
           {"hang", "ms for rank"},
           {"differ", "ranks call different collectives: rank "}}) {
    const Outcome outcome = mpirun(3, what);
    EXPECT_NE(outcome.status, 0);
    EXPECT_THAT(outcome.output, HasSubstr(words));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}
#endif

}  // namespace
}  // namespace sluice::engine
