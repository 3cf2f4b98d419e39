#pragma once
// Whether the machine was quiet: the processor time that others used meanwhile, other guests of the
// hypervisor included, as far as Linux reports it.
#include <time.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <string>

namespace gates {

/// A moment, in seconds.
struct Load {
  double wall;     ///< of the clock
  double machine;  ///< that all processors of the machine have been busy
  double own;      ///< of processor time that this process has used

  static Load now() {
    const auto seconds = [](clockid_t clock) {
      timespec t;
      clock_gettime(clock, &t);
      return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
    };
    return {seconds(CLOCK_MONOTONIC), machine_seconds(), seconds(CLOCK_PROCESS_CPUTIME_ID)};
  }

 private:
  static double machine_seconds() {
    std::ifstream stat("/proc/stat");
    std::string cpu;
    // `user` includes the guests of this machine.
    double user, nice, system, idle, iowait, irq, softirq, steal;
    if (!(stat >> cpu >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal))
      return std::numeric_limits<double>::quiet_NaN();
    return (user + nice + system + irq + softirq + steal) /
           static_cast<double>(sysconf(_SC_CLK_TCK));
  }
};

/// How many cores others kept busy between two moments; NaN where the system does not tell.
inline double cores_of_others(const Load& from, const Load& to) {
  // The difference can be below 0, because the time of the machine is counted in hundredths of a
  // second.
  const double seconds = (to.machine - from.machine) - (to.own - from.own);
  return seconds < 0 ? 0 : seconds / (to.wall - from.wall);
}

}  // namespace gates
