# The simulated drive, the fault-injecting backend and the small vocabulary everything uses.
sluice_test(aio_sim_test COST 40
  ONE_THREAD "FaultBackendTest.*" "SimDrive*.*" "VirtualLoop.*"
  SOURCES
    fault_backend_queue_test.cc
    fault_backend_test.cc
    log_test.cc
    result_test.cc
    sim_drive_power_names_test.cc
    sim_drive_power_test.cc
    sim_drive_test.cc
    sim_drive_timing_test.cc
    text_test.cc
    units_test.cc
    virtual_loop_test.cc
  LINK sluice_aio_faults)
