#include "charts.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

#include "html.hpp"
#include "html_style.hpp"
#include "words.hpp"

namespace resolution::charts {
namespace {

using html::division;
using html::element;
using html::escaped;
using html::picture_style;

/// The width in pixels of a plot on a page of 360 pixels, without the room for the ticks.
constexpr double narrowest = 250;

/// A length in pixels, with one digit after the decimal point.
std::string px(double value) { return fixed(value, 1); }

/// A position or a length across: a share of the width.
std::string across(double share) { return fixed(100 * share, 2) + "%"; }

std::string attribute(const std::string& name, const std::string& value) {
  return name + "=\"" + value + "\" ";
}
std::string attribute(const std::string& name, double value) { return attribute(name, px(value)); }

std::string class_of(Tone tone) {
  return tone == Tone::Sum    ? "sum"
         : tone == Tone::Norm ? "norm"
         : tone == Tone::Own  ? "own"
                              : "idle";
}

std::string fill(Tone tone) { return attribute("class", "fill " + class_of(tone)); }

std::string curve(const std::string& path, Tone tone, bool broad = false) {
  return element("path",
                 attribute("d", path) +
                     attribute("class", "curve " + class_of(tone) + (broad ? " broad" : "")),
                 "");
}

/// `x` and `width` are shares of the width.
std::string rectangle(double x, double y, double width, double height, Tone tone) {
  return element("rect",
                 attribute("x", across(x)) + attribute("y", y) + attribute("width", across(width)) +
                     attribute("height", std::max(0.0, height)) + fill(tone),
                 "");
}

/// A line across the whole plot.
std::string horizontal(double y, const std::string& css_class) {
  return element("line",
                 attribute("x1", across(0)) + attribute("x2", across(1)) + attribute("y1", y) +
                     attribute("y2", y) + attribute("class", css_class),
                 "");
}

/// A text `shift` pixels to the right of `x`, a share of the width.
std::string text(double x, double shift, double y, const std::string& words,
                 const std::string& anchor = "start", const std::string& css_class = "soft small") {
  return element("text",
                 attribute("x", across(x)) + attribute("dx", shift) + attribute("y", y) +
                     attribute("text-anchor", anchor) + attribute("class", css_class),
                 escaped(words));
}

/// A layer for paths: x runs from 0 to 100 over the whole width, y is in pixels.
std::string stretched(double height, const std::string& paths) {
  return element("svg",
                 attribute("viewBox", "0 0 100 " + px(height)) +
                     attribute("preserveAspectRatio", "none") + attribute("width", "100%") +
                     attribute("height", height),
                 paths);
}

/// The marker of a point of line number `shape`, around (0, 0): circle, square or triangle, in
/// turn.
std::string marker(std::size_t shape, Tone tone) {
  return element("path",
                 attribute("d", shape % 3 == 0   ? "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z"
                                : shape % 3 == 1 ? "M-3.5 -3.5h7v7h-7z"
                                                 : "M0 -5l5 8.6h-10z") +
                     fill(tone),
                 "");
}

/// A drawing around (0, 0), moved to a point.
std::string at(double x, double y, const std::string& drawing) {
  return element("svg", attribute("x", across(x)) + attribute("y", y), drawing);
}

/// The drawing area between `left` pixels for the numbers of the y axis and `right` pixels.
std::string plot(double left, double right, double height, const std::string& content) {
  return element("svg",
                 attribute("class", "plot") + attribute("height", height) +
                     attribute("style", "--left:" + px(left) + "px;--right:" + px(right) + "px"),
                 content);
}

/// A whole chart. `form` is one more class of the style sheet.
std::string chart(const std::string& summary, const std::string& content,
                  const std::string& form = "") {
  return element("div",
                 attribute("class", form.empty() ? "chart" : "chart " + form) +
                     attribute("role", "img") + attribute("aria-label", escaped(summary)),
                 content);
}

/// The pixels that a text of the charts needs, estimated from its number of characters.
double room_for(const std::string& words) { return 7.7 * static_cast<double>(width_of(words)); }

std::string tick_text(double value, int digits = 4) { return html::number(compact(value, digits)); }

/// Texts are written at each tick or at every second, third, ... of `count` ticks over the whole
/// width, so that on the narrowest page none touches the next. `widest` is in pixels.
std::size_t every(std::size_t count, double widest) {
  const double needed = (widest + 2) * static_cast<double>(count - 1);
  return static_cast<std::size_t>(std::max(1.0, std::ceil(needed / narrowest)));
}

/// The length of an axis. An axis without length counts as 1 long.
double length_of(const Axis& axis) { return axis.most > axis.least ? axis.most - axis.least : 1; }

/// The round number that divides `length` into up to about `count` steps.
double round_step(double length, int count) {
  const double raw = length / count;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  return power * (raw <= power ? 1 : raw <= 2 * power ? 2 : raw <= 5 * power ? 5 : 10);
}

/// The multiples of `step` on an axis.
std::vector<double> ticks_on(const Axis& axis, double step) {
  std::vector<double> values;
  for (double i = std::ceil(axis.least / step - 1e-9); i * step <= axis.most + 1e-9 * step; ++i)
    values.push_back(i * step);
  return values;
}

/// The vertical scale of a plot: what it measures, in pixels from the top.
struct Scale {
  Axis axis;
  double top, bottom;

  double operator()(double value) const {
    return bottom - (value - axis.least) / length_of(axis) * (bottom - top);
  }
};

/// The numbers and lines of a y axis, and the room that they need on the left.
struct Grid {
  std::string content;
  double room = 0;
};
Grid grid_of(const Scale& y, const std::vector<double>& values,
             const std::function<std::string(double)>& words) {
  Grid grid;
  for (const double value : values) {
    grid.content += horizontal(y(value), "axis") + text(0, -8, y(value) + 4, words(value), "end");
    grid.room = std::max(grid.room, room_for(words(value)) + 8);
  }
  return grid;
}

/// The name of a line: where the line ends, and what stands before its name in a key.
struct Name {
  std::string label;
  double y = 0;
  std::string sample;
  std::string css_class;
};

/// Heights in ascending order, moved so that each is `step` below the one before it and none is
/// below `bottom`.
std::vector<double> apart(std::vector<double> y, double step, double bottom) {
  for (std::size_t i = 1; i < y.size(); ++i) y[i] = std::max(y[i], y[i - 1] + step);
  for (std::size_t i = y.size(); i-- > 0; bottom = y[i] - step) y[i] = std::min(y[i], bottom);
  return y;
}

/// A plot with the names of its lines. Short names always stand at the ends of the lines, names
/// that no width has room for always in the key; the style sheet chooses for the others.
std::string named(const std::string& above, const Grid& grid, double bottom, double height,
                  const std::string& content, std::vector<Name> names, const std::string& summary) {
  constexpr double line_height = 16;
  constexpr double margin = 14;
  constexpr double short_room = 96;
  constexpr double most_room = 220;
  std::stable_sort(names.begin(), names.end(),
                   [](const Name& a, const Name& b) { return a.y < b.y; });
  double room = margin;
  std::vector<double> places;
  std::string key;
  for (const Name& name : names) {
    room = std::max(room, room_for(name.label) + margin);
    places.push_back(name.y + 4);
    key += element("span", "",
                   element("svg",
                           attribute("width", "16") + attribute("height", "12") +
                               attribute("viewBox", "-8 -6 16 12"),
                           name.sample) +
                       escaped(name.label));
  }
  places = apart(places, line_height, bottom);
  const bool at_ends = room <= most_room && (places.empty() || places.front() >= line_height / 2);
  const bool in_key = !at_ends || room > short_room;
  std::string ends;
  for (std::size_t i = 0; at_ends && i < names.size(); ++i)
    ends += text(1, 10, places[i], names[i].label, "start", "end " + names[i].css_class);
  return chart(summary,
               (in_key ? division("names", key) : "") + above +
                   plot(grid.room, at_ends ? room : margin, height, grid.content + content + ends),
               at_ends && in_key ? "either" : "");
}

/// A point of a curve, in shares of the width and as a value of the y axis.
struct Point {
  double x, value;
};

/// How many neighbors one point of a curve stands for.
std::size_t neighbors(std::size_t values, std::size_t most_points) {
  return (values + most_points - 1) / most_points;
}

/// The points of a curve: means of neighbors, each in the middle of its neighbors.
std::vector<Point> thinned(const std::vector<double>& values, std::size_t most_points) {
  const std::size_t together = neighbors(values.size(), most_points);
  const double last = static_cast<double>(std::max<std::size_t>(values.size(), 2) - 1);
  std::vector<Point> points;
  for (const double mean : means_of_neighbors(values, most_points)) {
    const std::size_t first = points.size() * together;
    const std::size_t end = std::min(first + together, values.size());
    points.push_back({static_cast<double>(first + end - 1) / 2 / last, mean});
  }
  return points;
}

/// The points without those that lie on a straight line between others, as far as a picture
/// of usual width shows.
std::vector<Point> without_straight(const std::vector<Point>& all, const Scale& at_y) {
  constexpr double usual_width = 400;
  constexpr double invisible = 0.15;  // pixels
  if (all.size() < 3) return all;
  const Point &first = all.front(), &last = all.back();
  const double rise = at_y(last.value) - at_y(first.value), run = last.x - first.x;
  std::size_t furthest = 0;
  double most = invisible;
  for (std::size_t i = 1; i + 1 < all.size(); ++i) {
    const double line = at_y(first.value) + rise * (all[i].x - first.x) / run;
    const double distance =
        std::abs(at_y(all[i].value) - line) / std::hypot(1.0, rise / (usual_width * run));
    if (distance > most) most = distance, furthest = i;
  }
  if (furthest == 0) return {first, last};
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(furthest);
  std::vector<Point> points = without_straight({all.begin(), middle + 1}, at_y);
  const std::vector<Point> rest = without_straight({middle, all.end()}, at_y);
  points.insert(points.end(), rest.begin() + 1, rest.end());
  return points;
}

/// Curves between their axes, not yet in a plot.
struct Drawing {
  Grid grid;
  double bottom = 0, height = 0;
  std::string content;
  std::vector<Name> names;
};

/// `draws` makes the points of a curve.
Drawing drawing_of(const std::vector<Curve>& curves, const Axis& x, const Scale& at_y,
                   const std::string& behind,
                   const std::function<std::vector<Point>(const Curve&)>& draws) {
  Drawing drawing;
  drawing.bottom = at_y.bottom, drawing.height = at_y.bottom + 38;
  drawing.grid = grid_of(at_y, ticks_on(at_y.axis, round_step(length_of(at_y.axis), 4)),
                         [](double tick) { return tick_text(tick); });
  std::string& content = drawing.content;
  const double step = round_step(length_of(x), x.whole ? 3 : 4);
  for (const double tick : ticks_on(x, x.whole ? std::max(1.0, step) : step)) {
    content +=
        text((tick - x.least) / length_of(x), 0, at_y.bottom + 18, tick_text(tick, 6), "middle");
  }
  content += text(0.5, 0, at_y.bottom + 34, x.name, "middle") + behind;
  std::string paths;
  std::string points;
  for (const Curve& c : curves) {
    const std::vector<Point> all = draws(c);
    const auto known = [&](std::size_t p) { return p < all.size() && std::isfinite(all[p].value); };
    std::string path;
    double last = at_y.bottom;
    for (std::size_t p = 0; p < all.size(); ++p) {
      if (!known(p)) continue;
      const bool first = p == 0 || !known(p - 1);
      last = at_y(all[p].value);
      path += (first ? "M" : "L") + fixed(100 * all[p].x, 2) + " " + px(last);
      if (first && !known(p + 1)) points += at(all[p].x, last, marker(0, c.tone));
    }
    paths += curve(path, c.tone, c.broad);
    drawing.names.push_back(
        {c.label, last, curve("M-8 0h16", c.tone, c.broad), "small " + class_of(c.tone)});
  }
  content += stretched(drawing.height, paths) + points;
  return drawing;
}

/// The curves of a panel over its bands.
Drawing drawing_of(const Panel& panel) {
  const Scale at_y{panel.y, panel.band_name.empty() ? 8.0 : 24.0, 168};
  std::string behind;
  const Band* widest = nullptr;
  const auto share = [&](double x) { return (x - panel.x.least) / length_of(panel.x); };
  for (const Band& band : panel.bands) {
    behind +=
        element("rect",
                attribute("x", across(share(band.least))) + attribute("y", at_y.top) +
                    attribute("width", across((band.most - band.least) / length_of(panel.x))) +
                    attribute("height", at_y.bottom - at_y.top) + attribute("class", "band"),
                "");
    if (!widest || band.most - band.least > widest->most - widest->least) widest = &band;
  }
  if (widest) {
    const double middle = share((widest->least + widest->most) / 2);
    const double half = room_for(panel.band_name) / narrowest / 2;
    behind += text(std::min(std::max(middle, half), 1 - half), 0, at_y.top - 6, panel.band_name,
                   "middle");
  }
  return drawing_of(panel.curves, panel.x, at_y, behind, [&](const Curve& c) {
    // Each run of finite values by itself, with what is not finite between them.
    std::vector<Point> points;
    std::vector<Point> run;
    const auto end_run = [&] {
      const std::vector<Point> kept = without_straight(run, at_y);
      points.insert(points.end(), kept.begin(), kept.end());
      run.clear();
    };
    for (const Point& point : thinned(c.values, c.values.size())) {
      if (std::isfinite(point.value)) {
        run.push_back(point);
        continue;
      }
      end_run();
      points.push_back(point);
    }
    end_run();
    return points;
  });
}

}  // namespace

std::vector<double> means_of_neighbors(const std::vector<double>& values, std::size_t most_points) {
  const std::size_t together = neighbors(values.size(), most_points);
  std::vector<double> means;
  for (std::size_t first = 0; first < values.size(); first += together) {
    double sum = 0;
    double count = 0;
    for (std::size_t i = first; i < std::min(first + together, values.size()); ++i) {
      if (!std::isfinite(values[i])) continue;
      sum += values[i];
      ++count;
    }
    means.push_back(sum / count);
  }
  return means;
}

std::vector<double> ticks(double most, int count) {
  if (!(most > 0)) return {0};
  return ticks_on({"", 0, most}, round_step(most, count));
}

std::string bars(const std::vector<Bar>& bars, double most, const std::string& summary,
                 const Limit* limit) {
  std::size_t widest = 0;
  double lowest = 0;
  for (const Bar& bar : bars) {
    widest = std::max(widest, width_of(bar.text));
    if (std::isfinite(bar.value)) lowest = std::min(lowest, bar.value);
  }
  const auto share = [&](double value) {
    return (value - lowest) / ((most > 0 ? most : 1) - lowest);
  };
  const auto mark = [&](const std::string& css_class, const std::string& style) {
    return element("i", attribute("class", css_class) + attribute("style", style), "");
  };
  const std::string zero = mark("zero", "left:" + across(share(0)));

  // The track of a bar leaves room for the longest value on its right.
  const std::string track = attribute("class", "track") +
                            attribute("style", "margin-right:" + std::to_string(widest + 1) + "ch");
  std::string content;
  if (limit != nullptr) {
    const double place = share(limit->value);
    content += element(
        "span", track,
        element("span",
                attribute("class", "limit") +
                    attribute("style", place > 0.5
                                           ? "text-align:right;margin-right:" + across(1 - place)
                                           : "margin-left:" + across(place)),
                escaped(limit->text)));
  }
  for (const Bar& bar : bars) {
    const double value = std::isfinite(bar.value) ? bar.value : 0;
    const double from = share(std::min(value, 0.0));
    const double to = share(std::max(value, 0.0));
    content += element("span", attribute("class", "label"), escaped(bar.label));
    content += element(
        "span", track,
        mark("fill " + class_of(bar.tone), "left:" + across(from) + ";width:" + across(to - from)) +
            zero + (limit == nullptr ? "" : mark("dashed", "left:" + across(share(limit->value)))) +
            element("span", attribute("class", "value") + attribute("style", "left:" + across(to)),
                    escaped(html::number(bar.text))));
  }
  return chart(summary, division("bars", content));
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
  constexpr double height = 172;
  constexpr double filled = 0.86;  // of the width of a bin
  const Scale y{{"", 0, highest}, 18, 150};
  const double bin = 1 / static_cast<double>(data.shares.size());
  const auto bar = [&](std::size_t i, double from, double to, Tone color) {
    return rectangle(bin * (static_cast<double>(i) + (1 - filled) / 2), y(to), bin * filled,
                     y(from) - y(to), color);
  };

  const Grid grid = grid_of(y, ticks(highest, 3), [](double tick) {
    return html::number(percent(tick, tick * 100 < 1 && tick > 0 ? 1 : 0));
  });
  const std::size_t middle = data.shares.size() / 2;
  std::string content;
  for (std::size_t i = 0; i < data.shares.size(); ++i) {
    // In the middle bin the zeros lie below the other small values.
    const double floor = i == middle ? std::min(data.zero_share, highest) : 0;
    content += bar(i, floor, std::min(floor + data.shares[i], highest), tone);
  }
  if (data.zero_share > 0) {
    content += bar(middle, 0, std::min(data.zero_share, highest), Tone::Idle);
    // A slanted gap shows that the bar was cut.
    if (data.zero_share + data.shares[middle] > highest) {
      const std::string left = px(50 - 100 * bin), across_bin = px(200 * bin);
      content += stretched(
          height, element("path",
                          attribute("d", "M" + left + " " + px(y.top + 12) + "l" + across_bin +
                                             " -5v4l-" + across_bin + " 5z") +
                              attribute("class", "gap"),
                          ""));
    }
    content += text(0.5 + bin, 0, y.top - 5, "0: " + html::number(percent(data.zero_share, 1)));
  }
  const std::vector<double> values = ticks(most, 3);
  const std::size_t stride = every(2 * values.size() - 1, room_for(tick_text(-values.back())));
  for (std::size_t i = 0; i < values.size(); i += stride) {
    const double offset = values[i] / most / 2;
    content += text(0.5 + offset, 0, y.bottom + 16, tick_text(values[i]), "middle");
    if (i > 0) content += text(0.5 - offset, 0, y.bottom + 16, tick_text(-values[i]), "middle");
  }
  return chart(summary, plot(grid.room, 6, height, grid.content + content));
}

std::string lines(const std::vector<std::size_t>& x, const std::vector<Line>& lines,
                  const std::string& x_name, const std::string& summary) {
  double highest = 0;
  for (const Line& l : lines)
    highest = std::max(highest, *std::max_element(l.values.begin(), l.values.end()));
  const Scale y{{"", 0, highest}, 12, 290};
  const double height = y.bottom + 44;
  const double steps = static_cast<double>(std::max<std::size_t>(x.size() - 1, 1));

  std::string content;
  const std::size_t stride = every(x.size(), room_for(std::to_string(x.back())));
  for (std::size_t i = 0; i < x.size(); i += stride) {
    content +=
        text(static_cast<double>(i) / steps, 0, y.bottom + 18, std::to_string(x[i]), "middle");
  }
  content += text(0.5, 0, y.bottom + 38, x_name, "middle", "soft");
  std::vector<Name> names;
  std::string paths;
  std::string markers;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Line& l = lines[i];
    std::string path;
    for (std::size_t p = 0; p < l.values.size(); ++p) {
      const double share = static_cast<double>(p) / steps;
      path += (p == 0 ? "M" : "L") + fixed(100 * share, 2) + " " + px(y(l.values[p]));
      markers += at(share, y(l.values[p]), marker(i, l.tone));
    }
    paths += curve(path, l.tone);
    names.push_back({l.label, y(l.values.back()), marker(i, l.tone), ""});
  }
  return named("", grid_of(y, ticks(highest, 5), [](double tick) { return tick_text(tick); }),
               y.bottom, height, content + stretched(height, paths) + markers, names, summary);
}

std::string curves(const std::vector<Curve>& curves, const Axis& x, const Axis& y,
                   const std::string& summary, const Limit* limit, std::size_t most_points) {
  const Scale at_y{y, 8, 152};
  std::string behind;
  if (limit != nullptr) {
    behind = horizontal(at_y(limit->value), "dashed") +
             text(1, -2, at_y(limit->value) - 5, limit->text, "end");
  }
  Drawing drawing = drawing_of(curves, x, at_y, behind, [most_points](const Curve& c) {
    return thinned(c.values, most_points);
  });
  if (curves.size() == 1) drawing.names.clear();
  return named(element("div", attribute("class", "soft small"), escaped(y.name)), drawing.grid,
               drawing.bottom, drawing.height, drawing.content, drawing.names, summary);
}

std::string panel(const Panel& panel, const std::string& summary) {
  const Drawing drawing = drawing_of(panel);
  return named(element("div", attribute("class", "small"),
                       element("b", "", escaped(panel.title)) + " " +
                           element("span", attribute("class", "soft"), escaped(panel.y.name))),
               drawing.grid, drawing.bottom, drawing.height, drawing.content, drawing.names,
               summary);
}

std::string picture(const std::vector<Panel>& panels, const std::string& summary) {
  constexpr double panel_width = 360;
  constexpr double margin = 12;
  constexpr double title_height = 30;
  double height = 0;
  double left = 0;
  std::string content;
  for (const Panel& panel : panels) {
    const Drawing drawing = drawing_of(panel);
    std::vector<Name> names = drawing.names;
    std::stable_sort(names.begin(), names.end(),
                     [](const Name& a, const Name& b) { return a.y < b.y; });
    double room = margin;
    std::vector<double> places;
    for (const Name& name : names) {
      room = std::max(room, room_for(name.label) + margin);
      places.push_back(name.y + 4);
    }
    places = apart(places, 16, drawing.bottom);
    std::string ends;
    for (std::size_t i = 0; i < names.size(); ++i)
      ends += text(1, 8, places[i], names[i].label, "start", names[i].css_class);
    const double from = left + margin + drawing.grid.room;
    content += element("text", attribute("x", left + margin) + attribute("y", 22.0),
                       element("tspan", attribute("class", "title"), escaped(panel.title)) +
                           element("tspan", attribute("class", "soft small") + attribute("dx", 8.0),
                                   escaped(panel.y.name)));
    content += element("svg",
                       attribute("x", from) + attribute("y", title_height) +
                           attribute("width", left + panel_width - room - from) +
                           attribute("height", drawing.height),
                       drawing.grid.content + drawing.content + ends);
    height = std::max(height, title_height + drawing.height + margin);
    left += panel_width;
  }
  return element("svg",
                 attribute("xmlns", "http://www.w3.org/2000/svg") +
                     attribute("viewBox", "0 0 " + px(left) + " " + px(height)) +
                     attribute("role", "img") + attribute("aria-label", escaped(summary)),
                 element("style", "", picture_style) +
                     element("rect",
                             attribute("class", "paper") + attribute("width", "100%") +
                                 attribute("height", "100%") + attribute("rx", "8"),
                             "") +
                     content);
}

}  // namespace resolution::charts
