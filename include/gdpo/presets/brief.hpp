#pragma once
// The former name of the header presets/per_group.hpp.
#include <gdpo/presets/per_group.hpp>
