// LLVM's OpenMP library never frees what it allocates for its threads. Without this suppression,
// LeakSanitizer reports that at the end of the program.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libomp.so\n"; }
