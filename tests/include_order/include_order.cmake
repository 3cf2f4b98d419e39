# Compiles headers in several orders, without code. What a header means must not depend on those
# that stand before it, and a user's formatter sorts them as it likes.
#   cmake "-DCOMPILE=<compiler and its options>" -DINCLUDE=<folder that holds gdpo/>
#     "-DFOLDERS=<folders of other headers>" "-DHEADERS=<header>;..." -DWORK=<folder>
#     -DORDERS=sorted,reversed,random,... [-DSEED=<of the first random order>]
#     -P include_order.cmake
# makes one file for each order. With -DPAIRS=ON it makes one for each ordered pair of headers,
# which then stand alone. A random order prints its seed, which makes it again. A file that does
# not compile stays in WORK.
cmake_minimum_required(VERSION 3.22)

# Behind the compiler's own folders: the headers of another library may stand in one of those.
list(TRANSFORM FOLDERS PREPEND -idirafter)
set(failed)
set(compiled 0)

# gdpo_compile(<name> <header>...)
function(gdpo_compile name)
  set(text)
  foreach(header IN LISTS ARGN)
    string(APPEND text "#include <${header}>\n")
  endforeach()
  string(MAKE_C_IDENTIFIER ${name} file)
  set(file ${WORK}/${file}.cpp)
  file(WRITE ${file} "${text}")
  execute_process(COMMAND ${COMPILE} -I${INCLUDE} ${FOLDERS} -fsyntax-only ${file}
    RESULT_VARIABLE result ERROR_VARIABLE errors OUTPUT_VARIABLE errors)
  if(result EQUAL 0)
    file(REMOVE ${file})
  else()
    message("${name}: ${file} does not compile:\n${errors}")
    set(failed ${failed} ${name} PARENT_SCOPE)
  endif()
  math(EXPR compiled "${compiled} + 1")
  set(compiled ${compiled} PARENT_SCOPE)
endfunction()

string(REPLACE "," ";" ORDERS "${ORDERS}")
list(SORT HEADERS)
if(PAIRS)
  foreach(first IN LISTS HEADERS)
    foreach(second IN LISTS HEADERS)
      if(NOT first STREQUAL second)
        gdpo_compile("${first} then ${second}" ${first} ${second})
      endif()
    endforeach()
  endforeach()
endif()
if(NOT DEFINED SEED)
  string(RANDOM LENGTH 6 ALPHABET 123456789 SEED)
endif()
foreach(order IN LISTS ORDERS)
  set(ordered ${HEADERS})
  if(order STREQUAL "reversed")
    list(REVERSE ordered)
  elseif(order STREQUAL "random")
    set(order "random with -DSEED=${SEED}")
    # The first call seeds the numbers; each header then gets one, by which they are sorted.
    string(RANDOM LENGTH 8 ALPHABET 0123456789 RANDOM_SEED ${SEED} number)
    set(numbered)
    foreach(header IN LISTS HEADERS)
      string(RANDOM LENGTH 8 ALPHABET 0123456789 number)
      list(APPEND numbered ${number}:${header})
    endforeach()
    list(SORT numbered)
    list(TRANSFORM numbered REPLACE "^[0-9]+:" "" OUTPUT_VARIABLE ordered)
    math(EXPR SEED "${SEED} + 1")
  endif()
  message("${order}")
  gdpo_compile("${order}" ${ordered})
endforeach()

list(LENGTH HEADERS count)
message("${compiled} files of ${count} headers")
if(failed OR compiled EQUAL 0)
  list(LENGTH failed count)
  message(FATAL_ERROR "${count} of them do not compile")
endif()
