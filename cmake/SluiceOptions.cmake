# What every target of ours is compiled with. sluice_library() and sluice_program() apply it.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")

find_program(SLUICE_CCACHE ccache)
if(SLUICE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${SLUICE_CCACHE}")
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${SLUICE_CCACHE}")
endif()

find_package(Threads REQUIRED)

add_library(sluice_options INTERFACE)
target_compile_features(sluice_options INTERFACE cxx_std_20)
target_include_directories(sluice_options INTERFACE "${CMAKE_SOURCE_DIR}")
# One binary for any x86-64-v2 machine; newer instructions are chosen at run time. No fused
# multiply-add unless the source says so: kernels of every width must return the same bits.
target_compile_options(sluice_options INTERFACE -march=x86-64-v2 -ffp-contract=off
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wold-style-cast -Wcast-align
  -Werror
  # Options structs are filled by designated initialisers: what is left out has its default.
  -Wno-missing-field-initializers
  # GCC 12 sees overlaps in std::string that are not there (PR 105651).
  -Wno-restrict)
target_link_libraries(sluice_options INTERFACE Threads::Threads)

if(SLUICE_SANITIZE)
  target_compile_options(sluice_options INTERFACE -fsanitize=${SLUICE_SANITIZE}
    -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(sluice_options INTERFACE -fsanitize=${SLUICE_SANITIZE})
endif()

function(sluice_library name)
  add_library(${name} STATIC ${ARGN})
  target_link_libraries(${name} PUBLIC sluice_options)
endfunction()

function(sluice_program name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE sluice_options)
endfunction()
