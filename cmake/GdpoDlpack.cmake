# Looks for the header of DLPack, for gdpo/with/dlpack.hpp. The target gdpo_dlpack is there if it is
# found.
include_guard(GLOBAL)

find_path(GDPO_DLPACK_INCLUDE dlpack/dlpack.h)
mark_as_advanced(GDPO_DLPACK_INCLUDE)
if(GDPO_DLPACK_INCLUDE)
  add_library(gdpo_dlpack INTERFACE)
  target_include_directories(gdpo_dlpack SYSTEM INTERFACE ${GDPO_DLPACK_INCLUDE})
else()
  gdpo_leave_out("the example dlpack and tests of gdpo/with/dlpack.hpp" dlpack)
endif()
