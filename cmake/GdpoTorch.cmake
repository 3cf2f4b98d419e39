# Looks for LibTorch. Torch_FOUND says whether it is there. gdpo_gates uses it wherever it is found,
# tests and examples where GDPO_TORCH asks for them: its headers are slow to compile. The lines of
# the matrix (GDPO_TEST_LINE) do not look: their other compiler, sanitizers and instruction sets try
# the calls that the adapter makes.
#
# gdpo_link_torch(<target>)
#
# Links LibTorch, whose headers count as those of the system and so give no warnings, and sets the
# C++ standard. Each release compiles as a few standards only: clang++ does not take 1.13 as C++20,
# and 2.15 asks for C++20.

if(GDPO_TEST_LINE MATCHES "^(|matrix)$")
  find_package(Torch QUIET)
endif()

function(gdpo_link_torch target)
  set(standard 20)
  if(Torch_VERSION VERSION_LESS 2)
    set(standard 17)
  endif()
  target_link_libraries(${target} PRIVATE torch)
  set_target_properties(${target} PROPERTIES CXX_STANDARD ${standard})
endfunction()
