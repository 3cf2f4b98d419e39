#pragma once
#include <gdpo/presets/textbook.hpp>  // the former name of that header
