// expect: deleted
#include "../support/dlpack_1.hpp"
// The structs stand before the header that uses them.
#include <gdpo/with/dlpack.hpp>

gdpo::DlpackTensor ended_twice(const gdpo::DlpackTensor& tensor) { return tensor; }
