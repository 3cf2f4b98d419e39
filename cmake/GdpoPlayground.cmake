# The target playground: examples/playground as one page for a browser, with the library compiled to
# WebAssembly by Emscripten: playground.html in the build folder. Without Emscripten there is none.

find_program(GDPO_EMCXX em++)
mark_as_advanced(GDPO_EMCXX)
if(NOT GDPO_EMCXX)
  if(GDPO_TEST_LINE STREQUAL "matrix")
    gdpo_leave_out("the playground" em++)
  endif()
  return()
endif()

set(folder ${PROJECT_SOURCE_DIR}/examples/playground)
set(GDPO_PLAYGROUND ${PROJECT_BINARY_DIR}/playground.html)
# Debian's acorn, with which Emscripten makes its script small, is where other nodes do not look.
# The minifier of pages that this Emscripten calls is a package that nobody has.
add_custom_command(OUTPUT ${GDPO_PLAYGROUND}
  COMMAND ${CMAKE_COMMAND} -E env NODE_PATH=/usr/share/nodejs ${GDPO_EMCXX} -std=c++17 -Oz
    -fexceptions -I${PROJECT_SOURCE_DIR}/include ${folder}/playground.cpp --no-entry
    --shell-file ${folder}/page.html -s SINGLE_FILE=1 -s ENVIRONMENT=web -s MINIFY_HTML=0
    -s EXPORTED_RUNTIME_METHODS=cwrap -s ALLOW_MEMORY_GROWTH=1
    -MMD -MF playground.d -MT ${GDPO_PLAYGROUND} -o ${GDPO_PLAYGROUND}
  DEPENDS ${folder}/playground.cpp ${folder}/page.html
  DEPFILE ${PROJECT_BINARY_DIR}/playground.d
  WORKING_DIRECTORY ${PROJECT_BINARY_DIR}
  COMMENT "The playground: ${GDPO_PLAYGROUND}" VERBATIM)
add_custom_target(playground DEPENDS ${GDPO_PLAYGROUND})
