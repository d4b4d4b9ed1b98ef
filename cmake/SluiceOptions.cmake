# The compile options of all of our targets. sluice_library() and sluice_program() apply them.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")

foreach(option_and_values IN ITEMS "SLUICE_CUDA;auto;on;off" "SLUICE_PYTHON;auto;on;off"
                                   "SLUICE_EXECUTOR;tbb;threads"
                                   "SLUICE_SANITIZE;;address,undefined;thread")
  list(POP_FRONT option_and_values option)
  if(NOT "${${option}}" IN_LIST option_and_values)
    list(JOIN option_and_values "', '" values)
    message(FATAL_ERROR "${option} is '${${option}}'; it must be one of '${values}'")
  endif()
endforeach()

# ccache treats paths below the source folder as relative, so clones of the project share compiled
# files.
find_program(SLUICE_CCACHE ccache)
if(SLUICE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}"
    CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros "${SLUICE_CCACHE}")
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${CMAKE_CXX_COMPILER_LAUNCHER}")
endif()

# Warnings are errors with the compilers that the project is tested with. With other versions, a new
# warning should not prevent a build.
set(tested_compiler OFF)
if((CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION MATCHES "^12\\.")
   OR (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION MATCHES "^14\\."))
  set(tested_compiler ON)
endif()
option(SLUICE_WERROR "Warnings are errors" ${tested_compiler})

find_package(Threads REQUIRED)

add_library(sluice_options INTERFACE)
target_compile_features(sluice_options INTERFACE cxx_std_20)
target_include_directories(sluice_options INTERFACE "${CMAKE_SOURCE_DIR}")
# One binary for any x86-64-v2 machine; newer instructions are selected at run time. Fused
# multiply-add is used only where the source requests it, because kernels of every width must return
# the same bits.
set(cxx_options -march=x86-64-v2 -ffp-contract=off
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wold-style-cast -Wcast-align
  # Options structs use designated initialisers; omitted members have their defaults.
  -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports overlaps in std::string that do not exist (PR 105651).
  list(APPEND cxx_options -Wno-restrict)
endif()
if(SLUICE_WERROR)
  list(APPEND cxx_options -Werror)
endif()
if(CMAKE_UNITY_BUILD)
  # A file-local name may equal a name that a later file of a unity build declares in a function.
  list(APPEND cxx_options -Wno-shadow)
endif()
if(SLUICE_SANITIZE)
  list(APPEND cxx_options -fsanitize=${SLUICE_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(sluice_options INTERFACE -fsanitize=${SLUICE_SANITIZE})
endif()
target_compile_options(sluice_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${cxx_options}>")
target_link_libraries(sluice_options INTERFACE Threads::Threads)

if(SLUICE_SANITIZE STREQUAL "thread")
  # Runs the test programs.
  set(CMAKE_CROSSCOMPILING_EMULATOR "${CMAKE_SOURCE_DIR}/tests/run_without_aslr")
endif()

# Code of the Python package must be position-independent. This is set by an option, because CMake's
# property sets another one for programs, and one precompiled header cannot serve both.
function(loaded_by_python target)
  if(SLUICE_HAS_PYTHON)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-fPIC>"
      "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-fPIC>")
  endif()
endfunction()

function(sluice_library name)
  add_library(${name} STATIC ${ARGN})
  target_link_libraries(${name} PUBLIC sluice_options)
  loaded_by_python(${name})
endfunction()

function(sluice_program name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE sluice_options)
endfunction()

# compiled_alone(files...): files of this folder that a unity build compiles separately, because
# their file-local names collide with those of other files in the room. The presets are unity
# builds, which read headers once for eight files; tools/lint checks each file separately.
function(compiled_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# precompiled_headers(name HEADERS... LINK targets...): headers that are compiled once, for targets
# with the same compile options. These are the targets of this folder and the ones below, unless
# they set their own optimisation. with_precompiled_headers(target name) uses the headers for a
# target.
function(precompiled_headers name)
  cmake_parse_arguments(ARG "" "" "HEADERS;LINK" ${ARGN})
  set(source "${CMAKE_CURRENT_BINARY_DIR}/${name}.cc")
  file(CONFIGURE OUTPUT "${source}" CONTENT "// Nothing but the precompiled headers.\n")
  add_library(${name} OBJECT "${source}")
  target_link_libraries(${name} PRIVATE sluice_options ${ARG_LINK})
  list(TRANSFORM ARG_HEADERS REPLACE "(.+)" "$<$<COMPILE_LANGUAGE:CXX>:<\\1$<ANGLE-R>>")
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
endfunction()

function(with_precompiled_headers target name)
  target_precompile_headers(${target} REUSE_FROM ${name})
  get_target_property(kind ${target} TYPE)
  if(name STREQUAL "torch_headers" AND kind STREQUAL "EXECUTABLE")
    loaded_by_python(${target})  # like the headers
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # -fpch-preprocess lets ccache see which headers are read. With it GCC forgets which contents
    # are system headers, and reports overlaps and overruns in std::string that do not exist (PR
    # 105329, 105651).
    set(options -fpch-preprocess -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${options}>")
  endif()
endfunction()

# The libraries that a room's walls are linked with: see sluice_room().
file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/walls.cc" CONTENT "int main() { return 0; }\n")

# sluice_room(name SOURCES... LINK targets... PRIVATE targets...): the library of a room, which is a
# folder with a README.md that says what it contains. It may only use what it links, and what those
# libraries link publicly. A static library itself links nothing, so this is enforced in two ways.
# All of its objects are linked into a program with only these libraries (<name>_walls, built with
# everything else), so a use of another room's function does not link. And every include of its
# files is checked with rooms.json (tests/tools/rooms_test.py), because inline code needs no
# linking.
function(sluice_room name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;PRIVATE" ${ARGN})
  sluice_library(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC ${ARG_LINK} PRIVATE ${ARG_PRIVATE})
  add_executable(${name}_walls "${CMAKE_BINARY_DIR}/walls.cc")
  target_link_libraries(${name}_walls PRIVATE sluice_options "$<LINK_LIBRARY:WHOLE_ARCHIVE,${name}>")
  set_target_properties(${name}_walls PROPERTIES UNITY_BUILD OFF
    RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/walls")
  add_room(${name})
endfunction()

# Makes this folder the room of a library, so that its includes are checked.
function(add_room name)
  file(RELATIVE_PATH folder "${CMAKE_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")
  set_property(GLOBAL APPEND PROPERTY SLUICE_ROOMS "${name}=${folder}")
endfunction()

# Writes rooms.json: for each room's library its folder, its sources, the libraries that it links,
# and the ones among them that it exports to its users.
function(write_rooms)
  get_property(rooms GLOBAL PROPERTY SLUICE_ROOMS)
  set(rows "")
  foreach(room IN LISTS rooms)
    string(REPLACE "=" ";" name_and_folder "${room}")
    list(GET name_and_folder 0 name)
    list(GET name_and_folder 1 folder)
    set(row "  {\"room\": \"${name}\", \"folder\": \"${folder}\"")
    foreach(key_and_property IN ITEMS "links;LINK_LIBRARIES" "hands_on;INTERFACE_LINK_LIBRARIES"
                                      "sources;SOURCES")
      list(GET key_and_property 0 key)
      list(GET key_and_property 1 property)
      get_target_property(values ${name} ${property})
      if(NOT key STREQUAL "sources")  # private links are exported as $<LINK_ONLY:...>
        list(FILTER values INCLUDE REGEX "^sluice(_|::)")
      endif()
      list(JOIN values "\", \"" values)
      string(APPEND row ", \"${key}\": [\"${values}\"]")
    endforeach()
    list(APPEND rows "${row}}")
  endforeach()
  list(JOIN rows ",\n" rows)
  file(WRITE "${CMAKE_BINARY_DIR}/rooms.json" "[\n${rows}\n]\n")
endfunction()
