// main() of the test executables under Catch2 2.13: compiled once, because it takes longer than most tests.
#define CATCH_CONFIG_MAIN
#include "catch.hpp"
