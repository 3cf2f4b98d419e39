// expect: a Chain has each part once
#include <gdpo/prepass.hpp>

gdpo::prepass::Chain<gdpo::prepass::Gate, gdpo::prepass::Gate> chain{};
