// expect: deleted
#include <gdpo/update/step.hpp>

gdpo::update::Step dangling(gdpo::dist::Single{}, 1,
                            [](gdpo::index_t) { return gdpo::Normalizer{}; });
