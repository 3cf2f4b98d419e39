#pragma once
// The version number is defined here and nowhere else; CMakeLists.txt reads it from these lines.
#define GDPO_VERSION_MAJOR 0
#define GDPO_VERSION_MINOR 1
#define GDPO_VERSION_PATCH 0
