# cmake -DSOURCE=DIR -DOUT=FILE -P WriteCommit.cmake: writes the commit of the sources as a C++
# header. The header is touched only if it changes, so that a build recompiles one file after a
# commit.
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND git -C "${SOURCE}" describe --always --abbrev=12 --dirty=-changed
    --exclude=*
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed OR NOT commit)
  set(commit "unknown")  # an archive, or a checkout that git does not trust
endif()
file(CONFIGURE OUTPUT "${OUT}" CONTENT "#define SLUICE_COMMIT \"${commit}\"\n")
