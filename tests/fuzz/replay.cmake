# gdpo_fuzz_replay at the command line: inputs as digits, lines and files, and what cannot be read.
#   cmake -DPROGRAM=gdpo_fuzz_replay -DWORK=folder -P replay.cmake
include(${CMAKE_CURRENT_LIST_DIR}/../tool/run.cmake)

# Digits, the files of a folder and the lines of a file are the same inputs: sorted, each once,
# whatever their bytes. Digits may be longer than a file's name may be.
string(REPEAT ff 150 long)
run(0 --into folder 0d0a 00 ${long} 3ff30300f2f3 00)
expect(out "4 inputs in folder")
run(0 --into lines.txt folder)
file(READ ${WORK}/lines.txt lines)
if(NOT lines STREQUAL "00\n0d0a\n3ff30300f2f3\n${long}\n")
  message(FATAL_ERROR "other inputs than were given:\n${lines}")
endif()
run(0 --into again lines.txt)
file(GLOB files RELATIVE ${WORK}/folder ${WORK}/folder/*)
foreach(file IN LISTS files)
  file(SHA256 ${WORK}/folder/${file} given)
  file(SHA256 ${WORK}/again/${file} written)
  if(NOT given STREQUAL written)
    message(FATAL_ERROR "${file} is not as it was")
  endif()
endforeach()

# The calls of each line are made. A line without a newline at the end of the file counts, and an
# empty line is the input without bytes.
run(0 lines.txt)
expect(out "4 inputs, 0 failures")
run(0 folder lines.txt 3ff30300f2f3)
expect(out "9 inputs, 0 failures")
file(WRITE ${WORK}/unfinished.txt "00\n\n3ff3")
run(0 unfinished.txt)
expect(out "3 inputs, 0 failures")

# No input is no success.
file(WRITE ${WORK}/empty.txt "")
run(1 empty.txt)
expect(out "0 inputs, 0 failures")
run(1)
run(2 --into lines.txt empty.txt)
expect(err "--into: given no inputs; needed: at least one")
run(2 --into)
expect(err "--into: given nothing; needed: FILE.txt or FOLDER")

# What cannot be read is named, with its line.
foreach(line IN ITEMS 3ff 3FF3 "3f f3" "<<<<<<< ours")
  file(WRITE ${WORK}/malformed.txt "00\n${line}\n00\n")
  run(2 malformed.txt)
  expect(err "malformed.txt:2: given \"${line}\"; needed: pairs of the digits 0 to 9 and a to f")
endforeach()
run(2 nowhere)
expect(err "INPUT: given \"nowhere\"; needed: a file, a folder, or hexadecimal digits")
run(2 --into folder 00)
expect(err "--into: given \"folder\", which is not empty; needed: a new folder")
