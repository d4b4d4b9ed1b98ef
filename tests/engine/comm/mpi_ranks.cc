// One of the ranks that mpi_test.cc starts with mpirun: mpi_ranks PLUGIN suite|abort|hang|differ.
#include <cstdio>
#include <cstdlib>
#include <span>
#include <thread>
#include <vector>

#include "engine/comm/mpi_communicator.h"
#include "tests/engine/comm/collective_suite.h"

namespace sluice::engine {
namespace {

int end_with(Communicator& comm, const Status& status) {
  comm.abort(status.ok() ? "no error" : status.error().message());
  return 1;
}

int run(const std::string& plugin, const std::string& what) {
  auto made = make_mpi_communicator(
      {.plugin = plugin,
       .collective_timeout = std::chrono::milliseconds(what == "hang" ? 300 : 20'000)});
  if (!made.ok()) {
    static_cast<void>(std::fprintf(stderr, "%s\n", made.error().message().c_str()));
    return 1;
  }
  Communicator& comm = **made;
  if (what == "suite") {
    SuiteOptions suite;
    for (int rank = 0; rank < comm.world_size(); ++rank) suite.places.push_back({"a", rank});
    auto complaints = check_collectives(comm, suite);
    if (complaints.empty()) complaints = check_parts(comm, suite);
    for (const std::string& complaint : complaints) {
      static_cast<void>(std::fprintf(stderr, "%s\n", complaint.c_str()));
    }
    if (!complaints.empty()) return end_with(comm, Status());
    if (comm.rank() == 0) static_cast<void>(std::puts("right"));
    return 0;
  }
  const bool last = comm.rank() == comm.world_size() - 1;
  if (!last) {
    std::vector<int> all(static_cast<std::size_t>(comm.world_size()));
    return end_with(comm, comm.all_gather_values(comm.rank(), all));
  }
  if (what == "abort") comm.abort("the GPU ran out of memory");
  if (what == "hang") std::this_thread::sleep_for(std::chrono::seconds(60));
  std::vector<int> pieces(static_cast<std::size_t>(comm.world_size()));
  const auto bytes = std::as_writable_bytes(std::span(pieces));
  return end_with(comm, comm.all_to_all(bytes, bytes));
}

}  // namespace
}  // namespace sluice::engine

int main(int argc, char** argv) { return argc == 3 ? sluice::engine::run(argv[1], argv[2]) : 2; }
