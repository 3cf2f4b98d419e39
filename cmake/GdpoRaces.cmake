# The test of the kernels on threads (tests/support/threaded_grid.hpp) under ThreadSanitizer. Where
# that does not run, it looks for changed bits alone: most races change some.
include(CheckCXXSourceRuns)
set(CMAKE_REQUIRED_FLAGS -fsanitize=thread)
check_cxx_source_runs("#include <sanitizer/tsan_interface.h>\n\
int main() { return __tsan_create_fiber(0) ? 0 : 1; }" GDPO_RUNS_THREAD_SANITIZER)
unset(CMAKE_REQUIRED_FLAGS)

file(GLOB_RECURSE files CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/unit/*_test.cpp)
set(race_tests)
foreach(file IN LISTS files)
  gdpo_read_labels(${file} labels)
  if("races" IN_LIST labels)
    list(APPEND race_tests ${file})
  endif()
endforeach()
add_executable(gdpo_races ${race_tests})
target_link_libraries(gdpo_races PRIVATE gdpo_dev gdpo_catch)
target_include_directories(gdpo_races PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
# Nearly all of its time is spent compiling it, so it is not optimized.
target_compile_options(gdpo_races PRIVATE -O0)
if(GDPO_RUNS_THREAD_SANITIZER)
  target_compile_options(gdpo_races PRIVATE -fsanitize=thread)
  target_link_options(gdpo_races PRIVATE -fsanitize=thread)
else()
  message(STATUS "${CMAKE_CXX_COMPILER} has no ThreadSanitizer that runs here: "
    "races of kernels are seen where they change bits")
endif()
add_test(NAME races COMMAND gdpo_races)
set_tests_properties(races PROPERTIES LABELS races COST 100
  ENVIRONMENT "TSAN_OPTIONS=halt_on_error=1:exitcode=66")
