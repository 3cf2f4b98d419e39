// expect: deleted
#include "../support/dlpack_1.hpp"
// The structs stand before the header that uses them.
#include <gdpo/with/dlpack.hpp>

const DLTensor& dangling(DLManagedTensor* managed) { return gdpo::DlpackTensor(managed).tensor(); }
