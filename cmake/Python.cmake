# SLUICE_HAS_PYTHON: whether the Python package is built, against the torch wheel that LibTorch is
# linked from. It requires the wheel (an archive of LibTorch has no Python), and the headers of its
# interpreter.
#
# Sets SLUICE_PYTHON_INCLUDES and SLUICE_PYTHON_SUFFIX, for extension modules.

set(SLUICE_HAS_PYTHON OFF)
set(missing "")
if(SLUICE_SANITIZE)
  set(missing "it is built without sanitizers")
elseif(NOT SLUICE_TORCH)
  set(missing "it needs LibTorch (SLUICE_TORCH)")
elseif(NOT SLUICE_TORCH_PYTHON)
  set(missing "the LibTorch that was found is no wheel of a virtual environment")
elseif(NOT SLUICE_PYTHON STREQUAL "off")
  execute_process(COMMAND "${SLUICE_TORCH_PYTHON}" -c
    "import sysconfig; print(sysconfig.get_path('include'), sysconfig.get_config_var('EXT_SUFFIX'), sep=';')"
    OUTPUT_VARIABLE answer OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  list(POP_FRONT answer SLUICE_PYTHON_INCLUDES SLUICE_PYTHON_SUFFIX)
  if(NOT EXISTS "${SLUICE_PYTHON_INCLUDES}/Python.h")
    set(missing "${SLUICE_TORCH_PYTHON} has no headers (Debian: python3-dev)")
  endif()
endif()
if(SLUICE_PYTHON STREQUAL "off")
  message(STATUS "Sluice: the Python package is left out (SLUICE_PYTHON=off)")
elseif(missing AND SLUICE_PYTHON STREQUAL "on")
  message(FATAL_ERROR "SLUICE_PYTHON is on, and the package cannot be built: ${missing}.")
elseif(missing)
  message(STATUS "Sluice: the Python package is left out: ${missing}")
else()
  set(SLUICE_HAS_PYTHON ON)
  message(STATUS "Sluice: the Python package, for ${SLUICE_TORCH_PYTHON}")
endif()
