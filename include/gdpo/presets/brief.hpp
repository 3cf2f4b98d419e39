#pragma once
#include <gdpo/presets/per_group.hpp>  // the former name of that header
