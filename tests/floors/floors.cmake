# Reads every include of the library and checks it against a floor plan: a header may include its
# own room and the rooms below it, never a room above it. Prints the plan.
#   cmake -DINCLUDE=<folder that holds gdpo/> -P floors.cmake
#
# A room is a folder of gdpo/, or a group of front doors. It has up to four stories:
#   calls    headers of the room that include its engine, or a call of it
#   engine   engine/: how calls run on the host. No other room includes it
#   shared   shared/: what the engine and other rooms run alike, such as the formulas that kernels
#            of devices share with the host. It includes neither engine nor calls of its room, and
#            a header that only the engine and calls include belongs to the engine
#   axes     the others: what a user composes or reads
# The engine includes no call of its room.
#
# Every header begins with a comment that says what it is for.
cmake_minimum_required(VERSION 3.22)

# The rooms, from the ground up.
set(rooms core math storage lanes stats group tokens advantage loss prepass mismatch logits value
  constraint diagnose dist update front_doors cuda/device cuda/advantage cuda/tokens
  cuda/prepass cuda/mismatch cuda/loss cuda/logits cuda/value cuda.hpp presets runtime.hpp with
  gdpo.hpp)

# The room of a header.
function(gdpo_room header variable)
  if(header MATCHES "^(cuda/[a-z]+|[a-z]+)/")
    set(room ${CMAKE_MATCH_1})
  elseif(header IN_LIST rooms)
    set(room ${header})
  else()
    set(room front_doors)
  endif()
  set(${variable} ${room} PARENT_SCOPE)
endfunction()

file(GLOB_RECURSE headers RELATIVE ${INCLUDE}/gdpo ${INCLUDE}/gdpo/*.hpp)
foreach(header IN LISTS headers)
  gdpo_room(${header} room)
  if(NOT room IN_LIST rooms)
    message(SEND_ERROR "${header}: the floor plan has no room \"${room}\"; "
      "enter it in ${CMAKE_CURRENT_LIST_FILE}")
  endif()
  list(APPEND headers_of_${room} ${header})
  file(STRINGS ${INCLUDE}/gdpo/${header} includes REGEX "^#include <gdpo/")
  list(TRANSFORM includes REPLACE "^#include <gdpo/(.+)>.*$" "\\1")
  set(includes_of_${header} ${includes})
  file(STRINGS ${INCLUDE}/gdpo/${header} begin LIMIT_COUNT 2)
  if(NOT begin MATCHES "^#pragma once;//+ " OR begin MATCHES "clang-format")
    message(SEND_ERROR "${header} does not say after \"#pragma once\" what it is for")
  endif()
  foreach(included IN LISTS includes)
    gdpo_room(${included} below)
    list(FIND rooms ${room} floor)
    list(FIND rooms ${below} floor_below)
    if(floor_below GREATER floor)
      message(SEND_ERROR "${header} (${room}) includes ${included} (${below}), "
        "which stands above it")
    endif()
    if(header MATCHES "/shared/" AND included MATCHES "/shared/")
      list(APPEND used_elsewhere ${included})
    endif()
    if(room STREQUAL below)
      continue()
    endif()
    list(APPEND below_${room} ${below})
    if(included MATCHES "/engine/")
      message(SEND_ERROR "${header} includes ${included}, the private engine of another room: "
        "what several rooms need is a header of ${below}/shared/")
    elseif(included MATCHES "/shared/")
      list(APPEND used_elsewhere ${included})
    endif()
  endforeach()
endforeach()

# The calls of a room: the headers that include its engine, directly or through other headers of the
# room.
function(gdpo_calls room variable)
  set(engine ${headers_of_${room}})
  list(FILTER engine INCLUDE REGEX "/engine/")
  set(reaching ${engine})
  set(calls)
  set(found TRUE)
  while(found)
    set(found FALSE)
    foreach(header IN LISTS headers_of_${room})
      if(header IN_LIST reaching)
        continue()
      endif()
      foreach(included IN LISTS includes_of_${header})
        if(included IN_LIST reaching)
          list(APPEND reaching ${header})
          list(APPEND calls ${header})
          set(found TRUE)
          break()
        endif()
      endforeach()
    endforeach()
  endwhile()
  foreach(header IN LISTS engine)
    foreach(included IN LISTS includes_of_${header})
      if(included IN_LIST calls)
        message(SEND_ERROR "${header} includes ${included}, which includes the engine itself: "
          "an engine includes axes and shared/ alone")
      endif()
    endforeach()
  endforeach()
  foreach(header IN LISTS calls)
    if(header MATCHES "/shared/")
      message(SEND_ERROR "${header} includes the engine, directly or through a call")
    endif()
  endforeach()
  set(${variable} ${calls} PARENT_SCOPE)
endfunction()

function(gdpo_print story)
  set(names)
  foreach(header IN LISTS ARGN)
    string(REGEX REPLACE "^([a-z]+/)*(.+)[.]hpp$" "\\2" name ${header})
    list(APPEND names ${name})
  endforeach()
  list(SORT names)
  list(JOIN names " " names)
  if(names)
    message("  ${story}${names}")
  endif()
endfunction()

list(REVERSE rooms)
foreach(room IN LISTS rooms)
  if(NOT headers_of_${room})
    message(SEND_ERROR "no header stands in the room \"${room}\" of the floor plan")
  endif()
  list(REMOVE_DUPLICATES below_${room})
  list(SORT below_${room})
  list(JOIN below_${room} " " below)
  message("${room}  ->  ${below}")
  gdpo_calls(${room} calls)
  set(engine ${headers_of_${room}})
  list(FILTER engine INCLUDE REGEX "/engine/")
  set(shared ${headers_of_${room}})
  list(FILTER shared INCLUDE REGEX "/shared/")
  foreach(header IN LISTS shared)
    if(NOT header IN_LIST used_elsewhere)
      message(SEND_ERROR "${header}: only its room includes it; its place is ${room}/engine/")
    endif()
  endforeach()
  set(axes ${headers_of_${room}})
  if(engine OR shared)
    list(REMOVE_ITEM axes ${engine} ${shared} ${calls})
    gdpo_print("calls   " ${calls})
    gdpo_print("engine  " ${engine})
    gdpo_print("shared  " ${shared})
    gdpo_print("axes    " ${axes})
  else()
    gdpo_print("" ${axes})
  endif()
endforeach()
