// Draws why GDPO: eight completions, two rewards, and what GRPO and GDPO make of them, as SVG.
//
//     collapse > examples/collapse.svg
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <gdpo/advantages.hpp>
#include <string>
#include <vector>

namespace {

constexpr std::size_t completions = 8;
constexpr int top = 84, row_height = 34, width = 708;

// One completion is right, but long; four are short, but wrong; three are neither.
const std::vector<double> rewards = {1, 0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0};
const std::array<const char*, 3> kinds = {"right, long", "wrong, short", "wrong, long"};

std::size_t kind_of(std::size_t i) {
  const double right = rewards[2 * i], brief = rewards[2 * i + 1];
  return right == 1 ? 0 : brief == 1 ? 1 : 2;
}

int height_of(std::size_t row) { return top + static_cast<int>(row) * row_height; }

// A bar for each completion from the middle of the panel, and its number.
void panel(const char* title, const char* note, const char* color, int left,
           const std::vector<double>& advantages) {
  constexpr double half = 72, room = 46;
  const double zero = left + half + room;
  std::printf("<text class=\"title\" x=\"%d\" y=\"30\">%s</text>\n", left, title);
  std::printf("<text class=\"soft\" x=\"%d\" y=\"52\">%s</text>\n", left, note);
  double largest = 0;
  for (const double a : advantages) largest = (std::max)(largest, std::abs(a));
  for (std::size_t i = 0; i < completions; ++i) {
    const double a = advantages[i], length = half * std::abs(a) / largest;
    const int y = height_of(i);
    std::printf("<rect class=\"%s\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"20\" rx=\"2\"/>\n",
                color, a < 0 ? zero - length : zero, y, length);
    std::printf("<text x=\"%.1f\" y=\"%d\"%s>%s%.2f</text>\n",
                a < 0 ? zero - length - 6 : zero + length + 6, y + 15,
                a < 0 ? " text-anchor=\"end\"" : "", a < 0 ? "\u2212" : "", std::abs(a));
  }
  std::printf("<line class=\"axis\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>\n", zero, zero,
              top - 6, height_of(completions) - 8);
}

}  // namespace

int main() {
  const auto of = [](const auto& estimator) {
    return gdpo::advantages(gdpo::view(rewards.data(), completions, 2),
                            gdpo::groups_of(completions), estimator);
  };
  std::printf(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" role=\"img\" "
      "aria-label=\"GRPO gives the one right completion the advantage of four wrong ones; GDPO "
      "tells them apart\">\n"
      "<style>\n"
      "svg { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --soft: #57606a; "
      "--line: #d0d7de; --sum: #0072b2; --norm: #d55e00; --own: #008060 }\n"
      "@media (prefers-color-scheme: dark) { svg { --paper: #14171b; --ink: #e8eaed; "
      "--soft: #a5adb6; --line: #3a4149; --sum: #56b4e9; --norm: #f0a030; --own: #3fc49a } }\n"
      "text { font: 16px system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif; "
      "fill: var(--ink); font-variant-numeric: tabular-nums }\n"
      ".title { font-size: 19px; font-weight: 600 } .soft { fill: var(--soft); font-size: 15px }\n"
      ".paper { fill: var(--paper) } .sum { fill: var(--sum) } .norm { fill: var(--norm) }\n"
      ".on { fill: var(--own) } .off { fill: none; stroke: var(--line) }\n"
      ".axis { stroke: var(--line) }\n"
      "</style>\n",
      width, height_of(completions) + 8);
  std::printf("<rect class=\"paper\" width=\"100%%\" height=\"100%%\" rx=\"8\"/>\n");
  std::printf("<text class=\"title\" x=\"20\" y=\"30\">Two rewards</text>\n");
  std::printf("<text class=\"soft\" x=\"20\" y=\"52\">one prompt</text>\n");
  std::printf("<text class=\"soft\" x=\"150\" y=\"74\" text-anchor=\"middle\">right</text>\n");
  std::printf("<text class=\"soft\" x=\"198\" y=\"74\" text-anchor=\"middle\">short</text>\n");
  for (std::size_t i = 0; i < completions; ++i) {
    const int y = height_of(i);
    std::printf("<text x=\"20\" y=\"%d\">%s</text>\n", y + 15, kinds[kind_of(i)]);
    for (std::size_t c = 0; c < 2; ++c) {
      std::printf("<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"20\" height=\"20\" rx=\"3\"/>\n",
                  rewards[2 * i + c] == 1 ? "on" : "off", c == 0 ? 140 : 188, y);
    }
  }
  panel("GRPO", "adds, then normalizes", "sum", 232, of(gdpo::Grpo{}));
  panel("GDPO", "normalizes, then adds", "norm", 462, of(gdpo::Gdpo{}));
  std::printf("</svg>\n");
}
