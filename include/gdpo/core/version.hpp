#pragma once
// The one place of the version number; CMake reads it from here.
#define GDPO_VERSION_MAJOR 0
#define GDPO_VERSION_MINOR 1
#define GDPO_VERSION_PATCH 0
