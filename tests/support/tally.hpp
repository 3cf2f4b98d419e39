#pragma once
// Counts the random cases that a test cannot decide, so that a test that leaves out nearly all of
// them fails.

/// Use: `if (tally.leaves_out(condition)) continue;` in the loop, and after it
/// `CHECK(tally.share_left_out() < 0.1);`.
class Tally {
 public:
  bool leaves_out(bool undecided) {
    ++cases_;
    left_out_ += undecided ? 1 : 0;
    return undecided;
  }
  /// The share of cases left out. It is NaN, which is below no bound, where there was no case at
  /// all.
  double share_left_out() const {
    return static_cast<double>(left_out_) / static_cast<double>(cases_);
  }

 private:
  int cases_ = 0, left_out_ = 0;
};
