# CUDA code is built if nvcc is found; a GPU is needed only to run it. Sets SLUICE_HAS_CUDA.

set(SLUICE_HAS_CUDA OFF)
if(NOT SLUICE_CUDA STREQUAL "off")
  # Turing and later: the toolkit no longer supports older GPUs.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 75 80 86 89 90)
  endif()
  if(NOT CMAKE_CUDA_COMPILER)
    find_program(SLUICE_NVCC nvcc HINTS "$ENV{CUDA_HOME}/bin" /usr/local/cuda/bin)
    if(SLUICE_NVCC AND NOT DEFINED ENV{CUDACXX})
      set(ENV{CUDACXX} "${SLUICE_NVCC}")
    endif()
    unset(CMAKE_CUDA_COMPILER CACHE)  # "not found" last time may be found now
    include(CheckLanguage)
    check_language(CUDA)
  endif()
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    set(CMAKE_CUDA_STANDARD 17)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(SLUICE_HAS_CUDA ON)
    find_package(CUDAToolkit REQUIRED)
    # Every multiply and add is rounded separately, as on the host: see sluice_options.
    set(cuda_options --fmad=false -Xcompiler=-Wall,-Wextra,-ffp-contract=off)
    target_compile_options(sluice_options INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_options}>")
    message(STATUS "Sluice: CUDA ${CMAKE_CUDA_COMPILER_VERSION}, ${CMAKE_CUDA_COMPILER}")
  elseif(SLUICE_CUDA STREQUAL "on")
    message(FATAL_ERROR "SLUICE_CUDA is on, and no working nvcc was found on PATH, in CUDACXX, in "
      "CUDA_HOME or in /usr/local/cuda. Install the CUDA toolkit, say where it is by "
      "CUDACXX=/path/to/nvcc, or use SLUICE_CUDA=off (tools/setup --cuda=off).")
  endif()
endif()
if(NOT SLUICE_HAS_CUDA)
  message(STATUS "Sluice: CUDA left out (SLUICE_CUDA=${SLUICE_CUDA})")
endif()
