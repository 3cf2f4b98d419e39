#pragma once
// How many instructions a call executes, counted one by one by the debugging interface of Linux, so
// that no counter of the processor is needed: most virtual machines have none.
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

namespace gates {

/// The number of instructions of one run, which takes some microseconds each; 0 where a process may
/// not be traced, or after `most` of them. `run` must use one thread: it runs in a copy of the
/// process that has no other.
inline long instructions_of(const std::function<void()>& run, long most) {
  const pid_t child = fork();
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(1);
    raise(SIGSTOP);
    run();
    raise(SIGSTOP);
    _exit(0);
  }
  int status = 0;
  long steps = 0;
  bool done = false;
  if (child > 0 && waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
    while (steps < most && ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) == 0 &&
           waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
      done = WSTOPSIG(status) == SIGSTOP;
      if (done) break;
      ++steps;
    }
  }
  if (child > 0) kill(child, SIGKILL), waitpid(child, &status, 0);
  return done ? steps : 0;
}

}  // namespace gates
