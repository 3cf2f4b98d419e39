// Prints what include/gdpo/loss/surrogates/README.md says of each surrogate, as Markdown, from the
// words and curves of gdpo-resolution --surrogates. The test pages.surrogates compares it with the
// page, and the target `pages` puts it there.
#include <cstdio>

#include "surrogates_report.hpp"

int main() {
  std::printf("<!-- table: surrogates -->\n%s<!-- end -->\n",
              resolution::to_markdown(resolution::all_surrogates(), "").c_str());
  return 0;
}
