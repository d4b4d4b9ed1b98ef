// comm_check: the collectives on real GPUs with NCCL; needs two or more GPUs and libnccl.so.2.
//
//   comm_check [--ranks N] [--library PATH] [--no-kill]
//
// Checks every collective on every group against the suite's oracle, and measures all_gather and
// all_to_all at 32 and 256 MiB. Sizes are of the gathered whole; results are GB/s that reach a GPU
// from the others, the median of 5 runs of 10. Finally one rank is killed in the middle, and all
// others must name it within 5 s. Without a launcher it starts N ranks (2) on this host; with one
// it is one rank, and kills none. Exits with 0 if all checks passed.
#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "engine/comm/nccl_communicator.h"
#include "engine/comm/nccl_cuda.h"
#include "engine/comm/rank_context.h"
#include "engine/comm/tcp_communicator.h"
#include "engine/comm/tcp_socket.h"
#include "tests/engine/comm/collective_suite.h"

extern char** environ;

namespace sluice::engine {
namespace {

using Seconds = std::chrono::duration<double>;
using std::chrono::steady_clock;

constexpr std::size_t kMemoryBytes = std::size_t{1} << 30;

void check_cuda(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  static_cast<void>(std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(result)));
  std::exit(1);
}

// One allocation, handed out from its beginning.
class GpuMemory final : public SuiteMemory {
 public:
  explicit GpuMemory(Communicator& comm) : comm_(comm) {
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    check_cuda(cudaMalloc(&memory_, kMemoryBytes), "cudaMalloc");
  }
  void* stream() override { return stream_; }
  std::span<std::byte> take(std::size_t size_bytes) override {
    std::byte* const begin = static_cast<std::byte*>(memory_) + used_;
    used_ += (size_bytes + 255) / 256 * 256;
    if (used_ > kMemoryBytes) std::abort();
    check_cuda(cudaMemsetAsync(begin, 0, size_bytes, stream_), "cudaMemset");
    return {begin, size_bytes};
  }
  void reset() override {
    finish();
    used_ = 0;
  }
  void write(std::span<std::byte> to, std::span<const std::byte> from) override {
    check_cuda(
        cudaMemcpyAsync(to.data(), from.data(), from.size(), cudaMemcpyHostToDevice, stream_),
        "a copy to the GPU");
    finish();
  }
  void read(std::span<std::byte> to, std::span<const std::byte> from) override {
    finish();
    check_cuda(cudaMemcpyAsync(to.data(), from.data(), to.size(), cudaMemcpyDeviceToHost, stream_),
               "a copy from the GPU");
    finish();
  }
  void finish() {
    const Status status = comm_.finish(stream_);
    if (status.ok()) return;
    static_cast<void>(std::fprintf(stderr, "%s\n", status.error().message().c_str()));
    std::exit(1);
  }

 private:
  Communicator& comm_;
  cudaStream_t stream_ = nullptr;
  void* memory_ = nullptr;
  std::size_t used_ = 0;
};

template <typename Collective>
void measure(Communicator& comm, GpuMemory& memory, const char* what, std::size_t whole_bytes,
             const Collective& collective) {
  constexpr int kRepeats = 10;
  std::vector<double> seconds;
  for (int run = 0; run < 6; ++run) {
    if (!comm.barrier().ok()) return;
    const auto begin = steady_clock::now();
    for (int i = 0; i < kRepeats; ++i) {
      const Status status = collective();
      if (!status.ok()) comm.abort(status.error().message());
    }
    memory.finish();
    if (run > 0) seconds.push_back(Seconds(steady_clock::now() - begin).count() / kRepeats);
  }
  std::sort(seconds.begin(), seconds.end());
  const double ranks = comm.world_size();
  const double arrived = static_cast<double>(whole_bytes) * (ranks - 1) / ranks;
  if (comm.rank() == 0) {
    std::printf("%-10s %4zu MiB: %8.0f us, %6.1f GB/s (%.1f to %.1f)\n", what, whole_bytes >> 20U,
                seconds[2] * 1e6, arrived / seconds[2] / 1e9, arrived / seconds.back() / 1e9,
                arrived / seconds.front() / 1e9);
    static_cast<void>(std::fflush(stdout));
  }
}

void measure_all(Communicator& comm, GpuMemory& memory) {
  const auto ranks = static_cast<std::size_t>(comm.world_size());
  for (const std::size_t mib : {32, 256}) {
    const std::size_t piece_bytes = (mib << 20U) / ranks / 256 * 256;
    const auto all = memory.take(piece_bytes * ranks);
    const auto sent = memory.take(piece_bytes * ranks);
    const CollectiveOptions options{.stream = memory.stream()};
    const auto mine = all.subspan(static_cast<std::size_t>(comm.rank()) * piece_bytes, piece_bytes);
    measure(comm, memory, "all_gather", all.size(),
            [&] { return comm.all_gather(mine, all, options); });
    measure(comm, memory, "all_to_all", all.size(),
            [&] { return comm.all_to_all(sent, all, options); });
    memory.reset();
  }
}

// Gathers until the last rank is killed.
int check_killed(Communicator& comm, GpuMemory& memory) {
  const int victim = comm.world_size() - 1;
  const std::size_t piece_bytes = std::size_t{32} << 20U;
  const auto all = memory.take(piece_bytes * static_cast<std::size_t>(comm.world_size()));
  const auto mine = all.subspan(static_cast<std::size_t>(comm.rank()) * piece_bytes, piece_bytes);
  Status status = comm.barrier();
  const auto begin = steady_clock::now();
  for (int i = 0; status.ok(); ++i) {
    if (comm.rank() == victim && i == 100) ::raise(SIGKILL);
    status = comm.all_gather(mine, all, {.stream = memory.stream()});
    if (status.ok() && i % 10 == 0) status = comm.finish(memory.stream());
  }
  const double seconds = Seconds(steady_clock::now() - begin).count();
  const std::string words = status.error().message();
  std::printf("rank %d, %.2f s after the beginning: %s\n", comm.rank(), seconds, words.c_str());
  const bool named = words.find("rank " + std::to_string(victim) + " ") != std::string::npos;
  return named && seconds < 5 + 2 ? 0 : 1;
}

struct Options {
  int ranks = 2;
  std::string library = "libnccl.so.2";
  bool kill = true;
};

int run_rank(const TcpOptions& tcp, const Options& options, bool kill) {
  check_cuda(cudaSetDevice(tcp.context.device), "cudaSetDevice");
  auto host = make_tcp_communicator(tcp);
  auto comm = host.ok()
                  ? make_nccl_communicator(std::move(*host), {.library = options.library,
                                                              .stream_done = cuda_stream_done})
                  : Result<std::unique_ptr<Communicator>>(host.error());
  if (!comm.ok()) {
    static_cast<void>(std::fprintf(stderr, "%s\n", comm.error().message().c_str()));
    return 1;
  }
  GpuMemory memory(**comm);
  SuiteOptions suite{.memory = &memory, .large_piece_bytes = 72U << 20U, .device = true};
  std::vector<int> local_ranks(static_cast<std::size_t>(tcp.context.world));
  const Status gathered = (*comm)->all_gather_values(tcp.context.local_rank, local_ranks);
  if (!gathered.ok()) return 1;
  // Ranks are started host by host.
  int host_number = -1;
  for (const int local_rank : local_ranks) {
    if (local_rank == 0) ++host_number;
    suite.places.push_back({std::to_string(host_number), local_rank});
  }
  auto complaints = check_collectives(**comm, suite);
  if (complaints.empty()) complaints = check_parts(**comm, suite);
  for (const std::string& complaint : complaints) {
    static_cast<void>(std::fprintf(stderr, "%s\n", complaint.c_str()));
  }
  if (!complaints.empty()) {
    (*comm)->abort("a collective did not do what the oracle says");
    return 1;
  }
  if ((*comm)->rank() == 0) std::printf("%d ranks: every collective is right\n", tcp.context.world);
  measure_all(**comm, memory);
  return kill && tcp.context.world > 1 ? check_killed(**comm, memory) : 0;
}

int start_ranks(const Options& options) {
  auto listener = listen_at("127.0.0.1", 0, Reach::kThisHost);
  if (!listener.ok()) return 1;
  std::vector<pid_t> children;
  for (int rank = 0; rank < options.ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      const TcpOptions tcp{.context = {rank, options.ranks, rank, options.ranks, rank},
                           .master_address = "127.0.0.1",
                           .master_port = port_of(*listener),
                           .listening_socket = rank == 0 ? listener->release() : -1};
      const int code = run_rank(tcp, options, options.kill);
      static_cast<void>(std::fflush(stdout));
      ::_exit(code);
    }
    children.push_back(child);
  }
  bool right = true;
  for (std::size_t rank = 0; rank < children.size(); ++rank) {
    int status = 0;
    ::waitpid(children[rank], &status, 0);
    const bool killed = options.kill && rank + 1 == children.size() && WIFSIGNALED(status) &&
                        WTERMSIG(status) == SIGKILL;
    right &= killed || status == 0;
  }
  return right ? 0 : 1;
}

int run(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--no-kill") {
      options.kill = false;
    } else if (word == "--ranks" && i + 1 < argc) {
      options.ranks = std::atoi(argv[++i]);
    } else if (word == "--library" && i + 1 < argc) {
      options.library = argv[++i];
    } else {
      static_cast<void>(
          std::fprintf(stderr, "comm_check [--ranks N] [--library PATH] [--no-kill]\n"));
      return 2;
    }
  }
  Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view variable = *entry;
    const std::size_t equals = variable.find('=');
    if (equals == std::string_view::npos) continue;
    environment[std::string(variable.substr(0, equals))] = variable.substr(equals + 1);
  }
  const auto launch = read_launch(environment);
  if (!launch.ok()) {
    static_cast<void>(std::fprintf(stderr, "%s\n", launch.error().message().c_str()));
    return 2;
  }
  if (launch->launcher == Launcher::kNone) return start_ranks(options);
  return run_rank({.context = launch->context,
                   .master_address = launch->master_address,
                   .master_port = launch->master_port},
                  options, false);
}

}  // namespace
}  // namespace sluice::engine

int main(int argc, char** argv) { return sluice::engine::run(argc, argv); }
