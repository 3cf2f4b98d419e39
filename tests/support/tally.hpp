#pragma once
// Random cases that a test cannot decide are counted, so that a test that leaves out nearly all of them fails.

/// `if (tally.leaves_out(condition)) continue;` in the loop, `CHECK(tally.share_left_out() < 0.1);` behind it.
class Tally {
 public:
  bool leaves_out(bool undecided) {
    ++cases_;
    left_out_ += undecided ? 1 : 0;
    return undecided;
  }
  /// NaN, which is below no bound, where there was no case at all.
  double share_left_out() const {
    return static_cast<double>(left_out_) / static_cast<double>(cases_);
  }

 private:
  int cases_ = 0, left_out_ = 0;
};
