#include "engine/comm/nccl_api.h"

#include <dlfcn.h>

namespace sluice::engine::nccl {

Result<Api> open_nccl(const std::string& library) {
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return Error(ErrorCode::kUnsupported,
                 std::string("several GPUs need NCCL, which cannot be loaded: ") + ::dlerror());
  }
  Api api{};
  const char* missing = nullptr;
  const auto look_up = [&]<typename Function>(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(::dlsym(handle, name));
    if (function == nullptr) missing = name;
  };
  look_up(api.get_version, "ncclGetVersion");
  look_up(api.get_unique_id, "ncclGetUniqueId");
  look_up(api.comm_init_rank_config, "ncclCommInitRankConfig");
  look_up(api.comm_split, "ncclCommSplit");
  look_up(api.comm_get_async_error, "ncclCommGetAsyncError");
  look_up(api.comm_abort, "ncclCommAbort");
  look_up(api.comm_finalize, "ncclCommFinalize");
  look_up(api.comm_destroy, "ncclCommDestroy");
  look_up(api.get_error_string, "ncclGetErrorString");
  look_up(api.get_last_error, "ncclGetLastError");
  look_up(api.group_start, "ncclGroupStart");
  look_up(api.group_end, "ncclGroupEnd");
  look_up(api.all_gather, "ncclAllGather");
  look_up(api.broadcast, "ncclBroadcast");
  look_up(api.send, "ncclSend");
  look_up(api.receive, "ncclRecv");
  if (missing != nullptr) {
    return Error(ErrorCode::kUnsupported,
                 library + " has no " + missing + ": NCCL 2.18 or newer is needed");
  }
  return api;
}

}  // namespace sluice::engine::nccl
