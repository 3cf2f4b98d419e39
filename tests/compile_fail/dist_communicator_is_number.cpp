// expect: a communicator needs: int rank() const, int size() const, and void all_gather(
#include <gdpo/dist.hpp>

void f() { gdpo::dist::all_merge(4, gdpo::Normalizer{}); }
