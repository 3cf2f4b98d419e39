#pragma once
// The former name of the header presets/textbook.hpp.
#include <gdpo/presets/textbook.hpp>
