// expect: std::vector<bool> cannot be viewed: use std::vector<unsigned char>
#include <gdpo/advantages.hpp>

auto use(const std::vector<bool>& flags) { return gdpo::view(flags); }
