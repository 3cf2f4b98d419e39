// expect: deleted
#include <gdpo/update/pack.hpp>

auto dangling(const std::vector<int>& lengths) { return gdpo::update::pack(lengths, 4).order(); }
