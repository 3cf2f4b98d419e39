#include "charts.hpp"

#include <algorithm>
#include <cmath>

#include "html.hpp"
#include "words.hpp"

namespace resolution::charts {
namespace {

using html::element;
using html::escaped;

/// A coordinate, with one digit after the decimal point.
std::string px(double value) { return fixed(value, 1); }

std::string attribute(const std::string& name, const std::string& value) {
  return name + "=\"" + value + "\" ";
}
std::string attribute(const std::string& name, double value) { return attribute(name, px(value)); }

std::string name_of(Tone tone) {
  return tone == Tone::Sum    ? "sum"
         : tone == Tone::Norm ? "norm"
         : tone == Tone::Own  ? "own"
                              : "idle";
}

std::string fill(Tone tone) { return attribute("class", "fill-" + name_of(tone)); }

std::string curve(const std::string& path, Tone tone) {
  return element("path", attribute("d", path) + attribute("class", "curve line-" + name_of(tone)),
                 "");
}

std::string rectangle(double x, double y, double width, double height, Tone tone) {
  return element("rect",
                 attribute("x", x) + attribute("y", y) + attribute("width", std::max(0.0, width)) +
                     attribute("height", std::max(0.0, height)) + fill(tone),
                 "");
}

std::string line(double x1, double y1, double x2, double y2, const std::string& css_class) {
  return element("line",
                 attribute("x1", x1) + attribute("y1", y1) + attribute("x2", x2) +
                     attribute("y2", y2) + attribute("class", css_class),
                 "");
}

std::string text(double x, double y, const std::string& words, const std::string& anchor = "start",
                 const std::string& css_class = "") {
  return element("text",
                 attribute("x", x) + attribute("y", y) + attribute("text-anchor", anchor) +
                     (css_class.empty() ? "" : attribute("class", css_class)),
                 escaped(words));
}

std::string picture(double width, double height, const std::string& summary,
                    const std::string& content) {
  return element("svg",
                 attribute("viewBox", "0 0 " + px(width) + " " + px(height)) +
                     attribute("role", "img") + attribute("aria-label", escaped(summary)),
                 content);
}

/// The width that a text needs in the font of the charts, estimated from its number of characters.
double room_for(const std::string& words) { return 7.5 * static_cast<double>(width_of(words)) + 8; }

std::string tick_text(double value) { return html::number(compact(value, 4)); }

/// The marker of a point of line number `shape`: circle, square or triangle, in turn.
std::string marker(std::size_t shape, double x, double y, Tone tone) {
  if (shape % 3 == 0) {
    return element("circle",
                   attribute("cx", x) + attribute("cy", y) + attribute("r", 4) + fill(tone), "");
  }
  if (shape % 3 == 1) return rectangle(x - 3.5, y - 3.5, 7, 7, tone);
  return element("path", attribute("d", "M" + px(x) + " " + px(y - 5) + "l5 8.6h-10z") + fill(tone),
                 "");
}

}  // namespace

std::vector<double> ticks(double most, int count) {
  if (!(most > 0)) return {0};
  const double raw = most / count;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  const double step = power * (raw <= power ? 1 : raw <= 2 * power ? 2 : raw <= 5 * power ? 5 : 10);
  std::vector<double> values;
  for (int i = 0; i * step <= most * (1 + 1e-9); ++i) values.push_back(i * step);
  return values;
}

std::string bars(const std::vector<Bar>& bars, double most, const std::string& summary,
                 const Limit* limit) {
  constexpr double width = 520;
  constexpr double row = 27;
  constexpr std::size_t label_width = 27;
  double left = 0;
  double right = 0;
  double lowest = 0;
  for (const Bar& bar : bars) {
    left = std::max(left, room_for(shortened(bar.label, label_width)));
    right = std::max(right, room_for(bar.text));
    if (std::isfinite(bar.value)) lowest = std::min(lowest, bar.value);
  }
  const double top = limit == nullptr ? 2 : 22;
  const double bottom = top + row * static_cast<double>(bars.size());
  const double scale = (width - left - right) / ((most > 0 ? most : 1) - lowest);
  const double zero = left - lowest * scale;

  std::string content;
  for (std::size_t i = 0; i < bars.size(); ++i) {
    const Bar& bar = bars[i];
    const double y = top + row * static_cast<double>(i);
    const double value = std::isfinite(bar.value) ? bar.value : 0;
    content += text(left - 10, y + 18, shortened(bar.label, label_width), "end");
    content += rectangle(zero + std::min(value, 0.0) * scale, y + 4, std::abs(value) * scale,
                         row - 8, bar.tone);
    content += text(zero + std::max(value, 0.0) * scale + 7, y + 18, html::number(bar.text));
  }
  content += line(zero, top, zero, bottom, "axis");
  if (limit != nullptr) {
    const double x = zero + limit->value * scale;
    content +=
        line(x, top - 4, x, bottom, "mark") + text(x, top - 8, limit->text, "end", "soft small");
  }
  return picture(width, bottom + 4, summary, content);
}

Histogram histogram_of(const std::vector<double>& values, double most, double tolerance) {
  constexpr std::size_t bins = 41;
  Histogram data;
  data.shares.assign(bins, 0);
  const double one = 1 / static_cast<double>(std::max<std::size_t>(values.size(), 1));
  for (const double value : values) {
    if (std::abs(value) < tolerance) {
      data.zero_share += one;
    } else if (std::isfinite(value)) {
      const double place = (value / most + 1) / 2 * static_cast<double>(bins);
      data.shares[std::min(bins - 1, static_cast<std::size_t>(std::max(0.0, place)))] += one;
    }
  }
  return data;
}

std::string histogram(const Histogram& data, double most, double highest, Tone tone,
                      const std::string& summary) {
  constexpr double width = 320;
  constexpr double left = 34;
  constexpr double top = 18;
  constexpr double bottom = 150;
  const double bin = (width - left - 6) / static_cast<double>(data.shares.size());
  const double scale = (bottom - top) / highest;
  const double centre = left + bin * static_cast<double>(data.shares.size()) / 2;

  std::string content;
  for (const double tick : ticks(highest, 3)) {
    const double y = bottom - tick * scale;
    content +=
        line(left, y, width - 6, y, "axis") +
        text(left - 5, y + 4, html::number(percent(tick, tick * 100 < 1 && tick > 0 ? 1 : 0)),
             "end", "soft small");
  }
  const std::size_t middle = data.shares.size() / 2;
  const double zeros = std::min(data.zero_share, highest) * scale;
  for (std::size_t i = 0; i < data.shares.size(); ++i) {
    // In the middle bin the zeros lie below the other small values.
    const double floor = bottom - (i == middle ? zeros : 0);
    const double height = std::min(data.shares[i] * scale, floor - top);
    content +=
        rectangle(left + bin * static_cast<double>(i) + 0.5, floor - height, bin - 1, height, tone);
  }
  if (data.zero_share > 0) {
    content += rectangle(centre - bin / 2 + 0.5, bottom - zeros, bin - 1, zeros, Tone::Idle);
    // A slanted gap shows that the bar was cut.
    if (data.zero_share + data.shares[middle] > highest) {
      content += element("path",
                         attribute("d", "M" + px(centre - bin) + " " + px(top + 12) + "l" +
                                            px(2 * bin) + " -5v4l" + px(-2 * bin) + " 5z") +
                             attribute("class", "fill-paper"),
                         "");
    }
    content += text(centre + bin, top - 5, "0: " + html::number(percent(data.zero_share, 1)),
                    "start", "soft small");
  }
  content += line(left, bottom, width - 6, bottom, "axis");
  for (const double tick : ticks(most, 3)) {
    const double offset = tick / most * (width - left - 6) / 2;
    content += text(centre + offset, bottom + 16, tick_text(tick), "middle", "soft small");
    if (tick > 0)
      content += text(centre - offset, bottom + 16, tick_text(-tick), "middle", "soft small");
  }
  return picture(width, bottom + 22, summary, content);
}

std::string lines(const std::vector<std::size_t>& x, const std::vector<Line>& lines,
                  const std::string& x_name, const std::string& summary) {
  constexpr double width = 520;
  constexpr double left = 44;
  constexpr double top = 12;
  constexpr double bottom = 290;
  double highest = 0;
  double right = 0;
  for (const Line& l : lines) {
    highest = std::max(highest, *std::max_element(l.values.begin(), l.values.end()));
    right = std::max(right, room_for(l.label) + 12);
  }
  const auto at_x = [&](std::size_t i) {
    return left + 12 +
           static_cast<double>(i) * (width - left - 12 - right) /
               static_cast<double>(std::max<std::size_t>(x.size() - 1, 1));
  };
  const auto at_y = [&](double value) { return bottom - value / highest * (bottom - top); };

  std::string content;
  for (const double tick : ticks(highest, 5)) {
    content += line(left, at_y(tick), width - right, at_y(tick), "axis") +
               text(left - 6, at_y(tick) + 4, tick_text(tick), "end", "soft small");
  }
  for (std::size_t i = 0; i < x.size(); ++i)
    content += text(at_x(i), bottom + 18, std::to_string(x[i]), "middle", "soft small");
  content += text((left + width - right) / 2, bottom + 38, x_name, "middle", "soft");

  std::vector<std::size_t> from_top(lines.size());
  for (std::size_t i = 0; i < lines.size(); ++i) from_top[i] = i;
  std::stable_sort(from_top.begin(), from_top.end(), [&](std::size_t a, std::size_t b) {
    return lines[a].values.back() > lines[b].values.back();
  });
  double next_free = 0;  // names do not overlap: each is a line below the one above it
  for (const std::size_t i : from_top) {
    const Line& l = lines[i];
    std::string path;
    std::string markers;
    for (std::size_t p = 0; p < l.values.size(); ++p) {
      path += (p == 0 ? "M" : "L") + px(at_x(p)) + " " + px(at_y(l.values[p]));
      markers += marker(i, at_x(p), at_y(l.values[p]), l.tone);
    }
    content += curve(path, l.tone);
    const double y = std::max(at_y(l.values.back()) + 4, next_free);
    next_free = y + 16;
    content += markers + text(at_x(l.values.size() - 1) + 12, y, l.label);
  }
  return picture(width, bottom + 44, summary, content);
}

std::string curves(const std::vector<Curve>& curves, const Axis& x, const Axis& y,
                   const std::string& summary, const Limit* limit) {
  constexpr double width = 320;
  constexpr double left = 40;
  constexpr double top = 26;
  constexpr double bottom = 170;
  double right = 8;
  if (curves.size() > 1) {
    for (const Curve& c : curves) right = std::max(right, room_for(c.label));
  }
  const auto at_x = [&](double value) {
    return left + (value - x.least) / (x.most - x.least) * (width - left - right);
  };
  const auto at_y = [&](double value) {
    return bottom - (value - y.least) / (y.most - y.least) * (bottom - top);
  };

  std::string content = text(0, 10, y.name, "start", "soft small");
  const double step = ticks(y.most - y.least, 4)[1];
  for (double i = std::ceil(y.least / step - 1e-9); i * step <= y.most + 1e-9 * step; ++i) {
    content += line(left, at_y(i * step), width - right, at_y(i * step), "axis") +
               text(left - 6, at_y(i * step) + 4, tick_text(i * step), "end", "soft small");
  }
  for (const double tick : ticks(x.most - x.least, 3)) {
    content +=
        text(at_x(x.least + tick), bottom + 18, tick_text(x.least + tick), "middle", "soft small");
  }
  content += text((left + width - right) / 2, bottom + 34, x.name, "middle", "soft small");
  if (limit != nullptr) {
    content += line(left, at_y(limit->value), width - right, at_y(limit->value), "mark") +
               text(width - right - 2, at_y(limit->value) - 5, limit->text, "end", "soft small");
  }

  std::vector<const Curve*> from_top;
  for (const Curve& c : curves) from_top.push_back(&c);
  std::stable_sort(from_top.begin(), from_top.end(), [](const Curve* a, const Curve* b) {
    return a->values.back() > b->values.back();
  });
  double next_free = 0;  // names do not overlap: each is a line below the one above it
  for (const Curve* c : from_top) {
    std::string path;
    for (std::size_t p = 0; p < c->values.size(); ++p) {
      const double share = static_cast<double>(p) /
                           static_cast<double>(std::max<std::size_t>(c->values.size() - 1, 1));
      path += (p == 0 ? "M" : "L") + px(at_x(x.least + share * (x.most - x.least))) + " " +
              px(at_y(c->values[p]));
    }
    content += curve(path, c->tone);
    if (curves.size() == 1) continue;
    const double place = std::max(at_y(c->values.back()) + 4, next_free);
    next_free = place + 15;
    content += text(width - right + 6, place, c->label, "start", "small text-" + name_of(c->tone));
  }
  return picture(width, bottom + 38, summary, content);
}

}  // namespace resolution::charts
