// LLVM's OpenMP keeps what it allocates for its threads, which LeakSanitizer counts at the end of a program.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libomp.so\n"; }
