# sluice::torch: LibTorch, from a folder on CMAKE_PREFIX_PATH (or Torch_DIR), or else from the torch
# wheel in the virtual environment that tools/setup created (SLUICE_VENV).
#
# The wheel's own find_package(Torch) fails if no CUDA toolkit is installed, so the libraries are
# linked directly. The wheel and the LibTorch archive have the same folders.
#
# Sets SLUICE_TORCH_VERSION; SLUICE_TORCH_LIB, the folder of its libraries; and SLUICE_TORCH_PYTHON,
# the interpreter that can import this torch, which is empty for an archive.

set(own $ENV{CMAKE_PREFIX_PATH})
string(REPLACE ":" ";" own "${own}")
list(PREPEND own ${Torch_DIR} ${CMAKE_PREFIX_PATH})
set(venvs "${SLUICE_VENV}")
set(imported "")
if(NOT venvs AND SKBUILD)  # pip builds the package for its own environment
  # Its torch may be outside of the environment's own folder: --system-site-packages, a .pth file,
  # PYTHONPATH, or the system's Python, as in NVIDIA's containers. Finding it does not import it.
  execute_process(COMMAND "${Python3_EXECUTABLE}" -c "import importlib.util as u, os
found = u.find_spec('torch')
print(os.path.dirname(os.path.realpath(found.origin)) if found and found.origin else '')"
    OUTPUT_VARIABLE imported OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  get_filename_component(venvs "${Python3_EXECUTABLE}" DIRECTORY)
  get_filename_component(venvs "${venvs}" DIRECTORY)
elseif(NOT venvs)
  set(cache "$ENV{XDG_CACHE_HOME}")
  if(NOT cache)
    set(cache "$ENV{HOME}/.cache")
  endif()
  file(GLOB stamps "${cache}/sluice/venv-torch-*/.complete")
  list(SORT stamps COMPARE NATURAL ORDER DESCENDING)
  list(TRANSFORM stamps REPLACE "/[^/]*$" "" OUTPUT_VARIABLE venvs)
endif()
list(TRANSFORM venvs APPEND "/lib/python3.*/site-packages/torch")
set(torch_config "")
foreach(root IN LISTS own imported venvs)
  # A prefix may be the root, torch.utils.cmake_prefix_path, or the folder of the file itself.
  file(GLOB found "${root}/share/cmake/Torch/TorchConfig.cmake" "${root}/Torch/TorchConfig.cmake"
    "${root}/TorchConfig.cmake")
  if(found)
    list(GET found 0 torch_config)
    break()
  endif()
endforeach()
if(NOT torch_config AND SKBUILD)
  message(FATAL_ERROR "torch was not found: ${Python3_EXECUTABLE} cannot import it. Install torch "
    "first, and then the package without an environment of its own to build in: "
    "pip install --no-build-isolation . (with pip install scikit-build-core before it); or say "
    "where torch is by CMAKE_PREFIX_PATH=/path/to/site-packages/torch.")
elseif(NOT torch_config)
  message(FATAL_ERROR "LibTorch was not found. Run tools/setup, which fetches it; or say where "
    "yours is by CMAKE_PREFIX_PATH=/path/to/libtorch; or build without the engine: "
    "SLUICE_TORCH=OFF (tools/setup --no-torch).")
endif()
get_filename_component(torch_root "${torch_config}/../../../.." ABSOLUTE)
set(torch_lib "${torch_root}/lib")
set(SLUICE_TORCH_LIB "${torch_lib}")
set(SLUICE_TORCH_PYTHON "")
if(imported AND torch_root STREQUAL imported)
  set(SLUICE_TORCH_PYTHON "${Python3_EXECUTABLE}")
elseif(EXISTS "${torch_root}/../../../../bin/python" AND EXISTS "${torch_root}/__init__.py")
  get_filename_component(SLUICE_TORCH_PYTHON "${torch_root}/../../../../bin" ABSOLUTE)
  string(APPEND SLUICE_TORCH_PYTHON "/python")  # a link, which must not be resolved
endif()
file(GLOB nvidia_libs "${torch_root}/../nvidia/*/lib")
file(GLOB nvidia_includes "${torch_root}/../nvidia/cu*/include")

set(PACKAGE_VERSION "(of unknown version)")
include("${torch_root}/share/cmake/Torch/TorchConfigVersion.cmake" OPTIONAL)  # sets PACKAGE_VERSION
set(SLUICE_TORCH_VERSION "${PACKAGE_VERSION}")
if(EXISTS "${torch_root}/version.py")  # the wheel's, with its CUDA version: 2.11.0+cu130
  file(STRINGS "${torch_root}/version.py" version_line REGEX "^__version__ = '[^']+'")
  if(version_line MATCHES "'([^']+)'")
    set(SLUICE_TORCH_VERSION "${CMAKE_MATCH_1}")
  endif()
endif()

add_library(sluice_torch INTERFACE)
add_library(sluice::torch ALIAS sluice_torch)
target_include_directories(sluice_torch SYSTEM INTERFACE
  "${torch_root}/include" "${torch_root}/include/torch/csrc/api/include" ${nvidia_includes})
target_link_directories(sluice_torch INTERFACE "${torch_lib}")
# The wheel's libtorch.so exports parts of another libstdc++, such as std::filesystem::remove_all,
# which then jumps to address 0. The first library on the command line has priority.
target_link_options(sluice_torch INTERFACE
  "-Wl,--push-state,--no-as-needed,-lstdc++,--pop-state")
foreach(folder IN LISTS nvidia_libs)
  target_link_options(sluice_torch INTERFACE "-Wl,-rpath-link,${folder}")
endforeach()
# In the build folder programs use LibTorch in its place, which may be a cache folder that only its
# owner can read. `cmake --install` copies it, into the folders in which LibTorch's own libraries
# look for each other.
list(APPEND CMAKE_BUILD_RPATH "${torch_lib}" ${nvidia_libs})
set(installed_lib "lib/sluice")
if(SKBUILD)  # sluice_programs/bin/, in the same site-packages folder as torch
  set(installed_lib "..")
endif()
list(APPEND CMAKE_INSTALL_RPATH "$ORIGIN/../${installed_lib}/torch/lib")
install(DIRECTORY "${torch_lib}/" DESTINATION "${installed_lib}/torch/lib" COMPONENT libraries
  FILES_MATCHING PATTERN "*.so" PATTERN "*.so.*" PATTERN "libtorch_python*" EXCLUDE)
foreach(folder IN LISTS nvidia_libs)
  get_filename_component(package "${folder}" DIRECTORY)
  get_filename_component(package "${package}" NAME)
  list(APPEND CMAKE_INSTALL_RPATH "$ORIGIN/../${installed_lib}/nvidia/${package}/lib")
  install(DIRECTORY "${folder}/" DESTINATION "${installed_lib}/nvidia/${package}/lib"
    COMPONENT libraries FILES_MATCHING PATTERN "*.so" PATTERN "*.so.*")
endforeach()
set(SLUICE_TORCH_HAS_CUDA OFF)
if(EXISTS "${torch_lib}/libtorch_cuda.so")
  set(SLUICE_TORCH_HAS_CUDA ON)
  target_link_libraries(sluice_torch INTERFACE "${torch_lib}/libc10_cuda.so")
endif()
target_link_libraries(sluice_torch INTERFACE "${torch_lib}/libtorch_cpu.so" "${torch_lib}/libc10.so")
message(STATUS "Sluice: LibTorch ${PACKAGE_VERSION}, ${torch_root}")
