// expect: structs that list their fields
#include <gdpo/dist.hpp>

class Schedule {
 public:
  explicit Schedule(double rate) : rate_(rate) {}
  double operator()(int step) const { return rate_ * step; }

 private:
  double rate_;
};

void f() { gdpo::dist::agree_on(gdpo::dist::Single{}, Schedule(0.5)); }
