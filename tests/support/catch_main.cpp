// main() of the test executables under Catch2 2.13. It has a file of its own because it takes
// longer to compile than most tests.
#define CATCH_CONFIG_MAIN
#include "catch.hpp"
