# What the example shows: the default controller keeps both limits, and settles where other rules
# swing.
#   cmake -DPROGRAM=constrained -DWORK=folder -P comparison.cmake
include(${CMAKE_CURRENT_LIST_DIR}/../run.cmake)

run(0 --seeds 2 --json a.json --html a.html)
# The verdict allows a mean violation of 0.01 std; over 20 seeds it is 0 to 0.004.
expect(out "gdpo's default meets both constraints")
expect_files(a.html a.json)
file(READ ${WORK}/a.html page LIMIT 15)
expect(page "<!DOCTYPE html>")

# The default undershoots, oscillates and violates less than dual ascent with the same integral
# gain. Over 20 seeds, undershoot is 0.02 against 0.2, oscillation 0.008 against 0.04, and total
# violation 42 against 96.
file(READ ${WORK}/a.json json)
foreach(measure undershoot_alignment undershoot_quality oscillation_alignment oscillation_quality
    total_violation)
  string(JSON ours GET "${json}" controllers default ${measure} mean)
  string(JSON dual_ascent GET "${json}" controllers dual_ascent ${measure} mean)
  if(NOT ours LESS dual_ascent)
    message(FATAL_ERROR "${measure}: ${ours}, dual ascent's ${dual_ascent}")
  endif()
endforeach()

# Without constraints both limits are missed by more than one std.
foreach(measure violation_alignment violation_quality)
  string(JSON alone GET "${json}" controllers feedback_alone ${measure} mean)
  if(NOT alone GREATER 1)
    message(FATAL_ERROR "${measure}: ${alone} with feedback alone")
  endif()
endforeach()

# JSON on standard output, for one seed, with the hinge as a completion's violation.
run(0 --seeds 1 --steps 40 --hinge --json -)
string(JSON signal GET "${out}" signal)
if(NOT signal STREQUAL "hinge")
  message(FATAL_ERROR "signal: ${signal}")
endif()

# Mistakes, and the help.
run(2 --steps 2)
expect(err "constrained: --steps: Value 2 not in range")
run(2 --seeds 1 --steps 4 --json no/such/folder.json)
expect(err "no/such/folder.json: cannot be written")
run(2 --unknown)
run(0 --help)
expect(out "--resume")
expect_files(a.html a.json)
