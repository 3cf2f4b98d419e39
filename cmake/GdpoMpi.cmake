# Looks for MPI, for programs that run on several ranks (processes). MPI_CXX_FOUND says whether
# MPI::MPI_CXX is there; GDPO_RUNS_MPI says whether programs can be started, too.
#
# gdpo_add_mpi_test(<name> <ranks> <exit status> <regex> <command>...)
#
# Adds a test with the label "ranks" that runs the command on that many ranks. It passes if the
# launcher (mpirun, mpiexec) ends with this exit status and the output matches the regular
# expression (gdpo_add_output_test). GDPO_OPEN_MPI says whether the launcher is that of Open MPI,
# because each launcher has its own words and exit statuses for ranks that fail.

find_package(MPI QUIET COMPONENTS CXX)
set(GDPO_RUNS_MPI FALSE)
set(GDPO_OPEN_MPI FALSE)
if(MPI_CXX_FOUND AND MPIEXEC_EXECUTABLE)
  set(GDPO_RUNS_MPI TRUE)
  execute_process(COMMAND ${MPIEXEC_EXECUTABLE} --version OUTPUT_VARIABLE version ERROR_QUIET)
  if(version MATCHES "Open MPI|OpenRTE")
    set(GDPO_OPEN_MPI TRUE)
  endif()
endif()

# Open MPI takes its settings from the environment, and other launchers do not read them: it may run
# as root, as containers do; there may be more ranks than processors, and a rank that waits leaves
# its processor to others; tests that run at the same time are not bound to the same processors; and
# processes need no right to read each other's memory, which containers often lack.
set(GDPO_MPI_ENVIRONMENT OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
  OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_btl_vader_single_copy_mechanism=none)

function(gdpo_add_mpi_test name ranks status prints)
  gdpo_add_output_test(${name} ${status} "${prints}" ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG}
    ${ranks} ${MPIEXEC_PREFLAGS} ${ARGN} ${MPIEXEC_POSTFLAGS})
  set_tests_properties(${name} PROPERTIES LABELS ranks PROCESSORS 2 TIMEOUT 60
    ENVIRONMENT "${GDPO_MPI_ENVIRONMENT}")
endfunction()
