# Does what "Add a policy in five steps" of tests/README.md says, to a copy of the tree, and runs
# the tests that step 4 names, and those of the new loss by its name. They are compiled as one file.
#   cmake -DCXX=<compiler> -DSTEPS=<pages.py;steps;page;root> -DCOPY=<folder> -DFILES=<a,b,...>
#         -DOBJECTS=<objects or libraries of Catch2 with a main> -DINCLUDES=<of Eigen>
#         -P add_policy.cmake

function(gdpo_run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "exit status ${status}: ${command}")
  endif()
endfunction()

gdpo_run(${STEPS} ${COPY})
string(REPLACE "," ";" files "${FILES}")
list(TRANSFORM files REPLACE "(.+)" "#include \"${COPY}/\\1\"\n")
list(JOIN files "" all)
file(WRITE ${COPY}/all.cpp "${all}")
list(TRANSFORM INCLUDES PREPEND -isystem)
gdpo_run(${CXX} -std=c++17 -O0 -I${COPY}/include -I${COPY}/tests ${INCLUDES} ${COPY}/all.cpp
  ${OBJECTS} -o ${COPY}/tests_of_the_policy)
gdpo_run(${COPY}/tests_of_the_policy "[product],[runtime]")
