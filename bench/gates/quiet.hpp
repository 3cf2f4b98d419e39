#pragma once
// Was the machine ours? Processor time that others used, the hypervisor's other guests included, as far as Linux tells.
#include <time.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <string>

namespace gates {

/// Seconds: passed, spent by all processors of the machine, spent by this process.
struct Load {
  double wall, machine, own;

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
    double user, nice, system, idle, iowait, irq, softirq, steal;  // user includes guests
    if (!(stat >> cpu >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal))
      return std::numeric_limits<double>::quiet_NaN();
    return (user + nice + system + irq + softirq + steal) /
           static_cast<double>(sysconf(_SC_CLK_TCK));
  }
};

/// Cores that others kept busy between two moments; NaN where the system does not tell.
inline double cores_of_others(const Load& from, const Load& to) {
  const double seconds = (to.machine - from.machine) -
                         (to.own - from.own);  // below 0: the machine counts in hundredths
  return seconds < 0 ? 0 : seconds / (to.wall - from.wall);
}

}  // namespace gates
