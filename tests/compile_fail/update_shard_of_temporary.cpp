// expect: deleted
#include <gdpo/update/shard.hpp>

auto dangling(const std::vector<int>& lengths) { return gdpo::update::shard(lengths, 4).rows(0); }
