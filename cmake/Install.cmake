# cmake --install build --prefix /opt/sluice: installs programs that any user can run, the LibTorch
# that they were linked with (cmake/Torch.cmake), the scripts that need no build, and
# configurations. A wheel has the same folders in sluice_programs/, without LibTorch.

set(programs sluice aio_bench adam_bench swap_bench checkpoint_bench)
if(SLUICE_TORCH)
  list(APPEND programs sluice_engine model_bench step_bench)
endif()
if(SKBUILD)
  install(TARGETS sluice sluice_engine aio_bench RUNTIME DESTINATION sluice_programs/bin
    COMPONENT python)
  set(share sluice_programs/share/sluice)
  set(component_of_scripts python)
else()
  set(share share/sluice)
  set(component_of_scripts scripts)
endif()
# tools/setup --program builds some of them.
install(CODE [[
  if(NOT EXISTS "$<TARGET_FILE:sluice>")
    message(FATAL_ERROR "sluice is not built yet, so there is nothing to install: run tools/setup, "
      "or tools/setup --program sluice")
  endif()
]] COMPONENT programs)
install(TARGETS ${programs} RUNTIME DESTINATION bin COMPONENT programs OPTIONAL)
if(TARGET sluice_mpi)  # the program looks for it in its own folder
  install(TARGETS sluice_mpi LIBRARY DESTINATION bin COMPONENT programs OPTIONAL)
endif()
install(PROGRAMS tools/hub tools/prepare tools/tokens tools/trace_summary DESTINATION ${share}/tools
  COMPONENT ${component_of_scripts})
install(FILES tools/tool_packages.py tools/toolbox.py DESTINATION ${share}/tools
  COMPONENT ${component_of_scripts})
install(DIRECTORY tools/corpus DESTINATION ${share}/tools COMPONENT ${component_of_scripts}
  FILES_MATCHING PATTERN "*.py")
install(DIRECTORY configs DESTINATION ${share} COMPONENT ${component_of_scripts})
install(PROGRAMS tools/sluice-log DESTINATION share/sluice/tools COMPONENT shells)
install(DIRECTORY python/sluice_log DESTINATION share/sluice/python COMPONENT shells
  FILES_MATCHING PATTERN "*.py")

# Files that the program generates: its command-line completion and manual pages. Also a link to the
# logger, which the program looks for in its own folder.
install(CODE [[
  set(sluice "$<TARGET_FILE:sluice>")
  set(share "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/share")
  function(install_what_it_prints path)
    execute_process(COMMAND "${sluice}" ${ARGN} OUTPUT_VARIABLE text RESULT_VARIABLE failed)
    if(failed)
      message(WARNING "sluice ${ARGN} failed (${failed}): ${path} is not installed")
      return()
    endif()
    message(STATUS "Installing: ${share}/${path}")
    file(WRITE "${share}/${path}" "${text}")
  endfunction()
  install_what_it_prints(bash-completion/completions/sluice completion bash)
  install_what_it_prints(zsh/site-functions/_sluice completion zsh)
  install_what_it_prints(fish/vendor_completions.d/sluice.fish completion fish)
  execute_process(COMMAND "${sluice}" man --names OUTPUT_VARIABLE names)
  string(REGEX MATCHALL "[^\n]+" names "${names}")
  foreach(name IN LISTS names)
    string(REGEX REPLACE "^sluice-?" "" command "${name}")
    install_what_it_prints("man/man1/${name}.1" man ${command})
  endforeach()
  file(MAKE_DIRECTORY "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/bin")
  file(CREATE_LINK ../share/sluice/tools/sluice-log
    "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/bin/sluice-log" SYMBOLIC)
]] COMPONENT shells)
