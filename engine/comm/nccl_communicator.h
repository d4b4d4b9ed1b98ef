// make_nccl_communicator: device memory by NCCL, host memory and everything else by another
// transport.
//
// How:     calls with a stream use NCCL; those without use `host`, which also distributes NCCL's
//          unique id and reports failed ranks. An all_to_all is a group of sends and receives, in
//          pieces of at most max_send_bytes.
// Device:  the caller's current CUDA device, in make_nccl_communicator() and later.
// Memory:  NCCL's own on the GPU, some hundred MiB.
// Threads: one of its own, which aborts NCCL when another rank has failed. This ends kernels that
//          wait for that rank, and releases threads that wait for the stream.
// Errors:  kUnsupported: no NCCL; on a stream: all_to_all in place. Otherwise as communicator.h;
//          NCCL's message is reported if no rank is known to have failed.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "aio/result.h"
#include "engine/comm/communicator.h"

namespace sluice::engine {

struct NcclOptions {
  std::string library = "libnccl.so.2";
  // Whether the work enqueued on a stream is done: cuda_stream_done() of nccl_cuda.h.
  std::function<Result<bool>(void* stream)> stream_done;
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);
  std::chrono::milliseconds collective_timeout = std::chrono::minutes(10);
  std::uint64_t max_send_bytes = std::uint64_t{64} << 20;
};

// A collective: all ranks of `host` call it.
Result<std::unique_ptr<Communicator>> make_nccl_communicator(std::unique_ptr<Communicator> host,
                                                             const NcclOptions& options);
// A collective. `host` must outlive the result.
Result<std::unique_ptr<Communicator>> make_nccl_communicator(Communicator& host,
                                                             const NcclOptions& options);

}  // namespace sluice::engine
