# sluice::torch: LibTorch, from a folder on CMAKE_PREFIX_PATH (or Torch_DIR) or else from the torch
# wheel in the virtual environment that tools/setup made (SLUICE_VENV).
#
# The wheel's own find_package(Torch) ends with an error where no CUDA toolkit is installed, so the
# libraries are linked directly; wheel and LibTorch archive have the same folders.

if(Torch_DIR)
  cmake_path(GET Torch_DIR PARENT_PATH torch_share)  # <root>/share/cmake/Torch
endif()
find_file(SLUICE_TORCH_CONFIG share/cmake/Torch/TorchConfig.cmake
  HINTS "${torch_share}/../.." NO_CMAKE_SYSTEM_PATH)
set(torch_config "${SLUICE_TORCH_CONFIG}")
if(NOT torch_config)
  set(venvs "${SLUICE_VENV}")
  if(NOT venvs)
    set(cache "$ENV{XDG_CACHE_HOME}")
    if(NOT cache)
      set(cache "$ENV{HOME}/.cache")
    endif()
    file(GLOB stamps "${cache}/sluice/venv-torch-*/.complete")
    list(SORT stamps COMPARE NATURAL ORDER DESCENDING)
    foreach(stamp IN LISTS stamps)
      cmake_path(GET stamp PARENT_PATH venv)
      list(APPEND venvs "${venv}")
    endforeach()
  endif()
  foreach(venv IN LISTS venvs)
    file(GLOB found
      "${venv}/lib/python3.*/site-packages/torch/share/cmake/Torch/TorchConfig.cmake")
    if(found AND NOT torch_config)
      list(GET found 0 torch_config)
    endif()
  endforeach()
endif()
if(NOT torch_config)
  message(FATAL_ERROR "LibTorch was not found. Run tools/setup, which fetches it; or say where "
    "yours is by CMAKE_PREFIX_PATH=/path/to/libtorch; or build without the engine: "
    "SLUICE_TORCH=OFF (tools/setup --no-torch).")
endif()
cmake_path(GET torch_config PARENT_PATH torch_root)
cmake_path(APPEND torch_root "../../.." OUTPUT_VARIABLE torch_root)
cmake_path(NORMAL_PATH torch_root)
set(torch_lib "${torch_root}/lib")
file(GLOB nvidia_libs "${torch_root}/../nvidia/*/lib")
file(GLOB nvidia_includes "${torch_root}/../nvidia/cu*/include")

set(torch_version "of unknown version")
if(EXISTS "${torch_root}/include/torch/headeronly/version.h")
  file(STRINGS "${torch_root}/include/torch/headeronly/version.h" version_line
    REGEX "define TORCH_VERSION ")
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" torch_version "${version_line}")
endif()

add_library(sluice_torch INTERFACE)
add_library(sluice::torch ALIAS sluice_torch)
target_include_directories(sluice_torch SYSTEM INTERFACE
  "${torch_root}/include" "${torch_root}/include/torch/csrc/api/include" ${nvidia_includes})
target_link_directories(sluice_torch INTERFACE "${torch_lib}")
target_link_options(sluice_torch INTERFACE "-Wl,-rpath,${torch_lib}")
foreach(folder IN LISTS nvidia_libs)
  target_link_options(sluice_torch INTERFACE "-Wl,-rpath-link,${folder}" "-Wl,-rpath,${folder}")
endforeach()
set(SLUICE_TORCH_HAS_CUDA OFF)
if(EXISTS "${torch_lib}/libtorch_cuda.so")
  set(SLUICE_TORCH_HAS_CUDA ON)
  # Its operators register themselves when it is loaded: a linker must not drop it as unused.
  target_link_libraries(sluice_torch INTERFACE
    -Wl,--push-state,--no-as-needed "${torch_lib}/libtorch_cuda.so" -Wl,--pop-state
    "${torch_lib}/libc10_cuda.so")
endif()
target_link_libraries(sluice_torch INTERFACE
  "${torch_lib}/libtorch.so" "${torch_lib}/libtorch_cpu.so" "${torch_lib}/libc10.so")
message(STATUS "Sluice: LibTorch ${torch_version}, ${torch_root}")
