# cmake --install build --prefix /opt/sluice: programs that any user can run, with the LibTorch they
# were linked with (cmake/Torch.cmake), the scripts that need no build, and configurations.

set(programs sluice aio_bench adam_bench swap_bench checkpoint_bench)
if(SLUICE_TORCH)
  list(APPEND programs model_bench step_bench)
endif()
install(TARGETS ${programs} RUNTIME DESTINATION bin COMPONENT programs)
install(PROGRAMS tools/prepare tools/tokens tools/trace_summary DESTINATION share/sluice/tools)
install(FILES tools/tool_packages.py tools/toolbox.py DESTINATION share/sluice/tools)
install(DIRECTORY tools/corpus DESTINATION share/sluice/tools FILES_MATCHING PATTERN "*.py")
install(DIRECTORY configs DESTINATION share/sluice)
