# A run that dies without warning continues from its checkpoint to the same bits; a damaged
# checkpoint is refused.
#   cmake -DPROGRAM=constrained -DWORK=folder -P resume.cmake
include(${CMAKE_CURRENT_LIST_DIR}/../run.cmake)
set(run --seed 7 --steps 220)

run(0 ${run} --checkpoint whole.json)
set(uninterrupted "${out}")
expect(uninterrupted "step 220, policy ")

# This run dies after step 130; its last checkpoint is that of step 100.
run(9 ${run} --checkpoint run.json --stop-after 130)
if(out)
  message(FATAL_ERROR "a run that dies has printed: ${out}")
endif()
expect_files(run.json whole.json)
file(COPY_FILE ${WORK}/run.json ${WORK}/step100.json)
run(0 --resume run.json --checkpoint run.json)
if(NOT out STREQUAL uninterrupted)
  message(FATAL_ERROR "resumed: ${out}uninterrupted: ${uninterrupted}")
endif()
file(SHA256 ${WORK}/whole.json whole)
file(SHA256 ${WORK}/run.json resumed)
if(NOT whole STREQUAL resumed)
  message(FATAL_ERROR "the checkpoints of step 200 differ")
endif()

# Another seed ends with other bits, so the comparison means something.
run(0 --seed 8 --steps 220 --checkpoint other.json)
if(out STREQUAL uninterrupted)
  message(FATAL_ERROR "another seed ends with the same bits")
endif()

# Damaged checkpoints: cut at several places, one digit changed, another file, an empty file, no
# file.
file(READ ${WORK}/step100.json text)
string(LENGTH "${text}" length)
math(EXPR half "${length} / 2")
foreach(kept 45 46 ${half})
  string(SUBSTRING "${text}" 0 ${kept} cut)
  file(WRITE ${WORK}/cut.json "${cut}")
  run(2 --resume cut.json)
  expect(err "constrained: cut.json: a checkpoint that was cut or altered")
endforeach()
string(REPLACE "\"steps_done\":100" "\"steps_done\":101" altered "${text}")
file(WRITE ${WORK}/altered.json "${altered}")
run(2 --resume altered.json)
expect(err "constrained: altered.json: a checkpoint that was cut or altered: its checksum differs")
file(WRITE ${WORK}/other.json "{}\n")
run(2 --resume other.json)
expect(err "constrained: other.json: no checkpoint of this program")
file(WRITE ${WORK}/empty.json "")
run(2 --resume empty.json)
expect(err "constrained: empty.json: no checkpoint of this program")
run(2 --resume absent.json)
expect(err "constrained: absent.json: cannot be opened")
run(2 --seed 7 --checkpoint no/such/folder.json)
expect(err "constrained: no/such/folder.json: cannot be written")
run(2 --stop-after 3)
expect(err "--stop-after requires --checkpoint")
run(2 --resume run.json --seed 3)
expect(err "--seed excludes --resume")

# A refused checkpoint stays as it was, and nothing is written beside it.
file(READ ${WORK}/altered.json after)
if(NOT after STREQUAL altered)
  message(FATAL_ERROR "a refused checkpoint was changed")
endif()
expect_files(altered.json cut.json empty.json other.json run.json step100.json whole.json)
