# What every target of ours is compiled with. sluice_library() and sluice_program() apply it.

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

# ccache sees paths below the source folder as relative ones, so clones of the project share what
# they compiled.
find_program(SLUICE_CCACHE ccache)
if(SLUICE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}"
    CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros "${SLUICE_CCACHE}")
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${CMAKE_CXX_COMPILER_LAUNCHER}")
endif()

# Warnings are errors with the compilers that the project is tested with; another version's new
# warning should not keep anyone from building.
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
# One binary for any x86-64-v2 machine; newer instructions are chosen at run time. No fused
# multiply-add unless the source says so: kernels of every width must return the same bits.
set(cxx_options -march=x86-64-v2 -ffp-contract=off
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wold-style-cast -Wcast-align
  # Options structs are filled by designated initialisers: what is left out has its default.
  -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 sees overlaps in std::string that are not there (PR 105651).
  list(APPEND cxx_options -Wno-restrict)
endif()
if(SLUICE_WERROR)
  list(APPEND cxx_options -Werror)
endif()
if(CMAKE_UNITY_BUILD)
  # What a file keeps to itself may have the name of what a later one declares in a function.
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

# What the Python package is linked from can be loaded anywhere. By option, since CMake's property asks
# for something else of programs, and one precompiled header cannot serve both.
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

# compiled_alone(files...): files of this folder that a unity build compiles each by itself, since they
# keep to themselves what others of the room have under the same name. The presets are unity builds,
# which read headers once for eight files; tools/lint sees each file by itself.
function(compiled_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# precompiled_headers(name HEADERS... LINK targets...): headers that are compiled once, for targets that
# are compiled with the same options: those of this folder and the ones below, unless these have an
# optimisation of their own. with_precompiled_headers(target name) declares each.
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
    loaded_by_python(${target})  # as the headers are
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # For ccache, to see which ones are read. GCC forgets which of what they hold are the system's,
    # and warns of overlaps and overruns in std::string that are not there (PR 105329, 105651).
    set(options -fpch-preprocess -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${options}>")
  endif()
endfunction()

# What a room's walls are linked from: see sluice_room().
file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/walls.cc" CONTENT "int main() { return 0; }\n")

# sluice_room(name SOURCES... LINK targets... PRIVATE targets...): the library of a room, which is a
# folder with a README.md that says what lives there. It may use what it links and what those link
# publicly, and nothing else. That is held twice, as a static library by itself links nothing: all of
# its objects are linked into a program with just these (<name>_walls, built with everything else), so
# a function of another room does not link; and every include of its files is looked up in
# rooms.json (tests/tools/rooms_test.py), since what is inline needs no linking.
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

# Makes this folder the room of a library: its includes are looked up.
function(add_room name)
  file(RELATIVE_PATH folder "${CMAKE_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")
  set_property(GLOBAL APPEND PROPERTY SLUICE_ROOMS "${name}=${folder}")
endfunction()

# Writes rooms.json: for each library of a room its folder, its sources, the libraries that it links,
# and those of them that it hands on to what links it.
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
      if(NOT key STREQUAL "sources")  # what is linked privately is handed on as $<LINK_ONLY:...>
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
