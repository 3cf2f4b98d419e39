#pragma once

#include <string>
#include <vector>

#include "charts.hpp"
#include "output_file.hpp"
#include "surrogates.hpp"

namespace resolution {

/// The page with a pair of charts for each shape.
std::string to_html(const Surrogates& surrogates);

/// A table of a few ratios for each shape, for a terminal of 100 columns.
std::string to_text(const Surrogates& surrogates);

/// The curves:
///     {"shapes": [{"parts": [...], "settings": [...], "losses": [...], "x": "ratio",
///                  "points": [...], "curves": [{"advantage": 1, "value": [...],
///                  "derivative": [...], "inside": [[0.8, 1.2]]}, {"advantage": -1, ...}]}, ...]}
/// A number that is not finite is null.
std::string to_json(const Surrogates& surrogates);

/// One SVG file in `folder` for each shape that is pictured: picture_name() of it.
std::vector<OutputFile> to_pictures(const Surrogates& surrogates, const std::string& folder);
/// The name of the picture of a shape, after its first loss: "verl_vanilla.svg".
std::string picture_name(const LossShape& shape);

/// The words, pictures and names of all losses in Markdown, for the page of the library. `folder`
/// is where the pictures lie, seen from the page: empty, or a path with a slash at its end.
std::string to_markdown(const Surrogates& surrogates, const std::string& folder);

/// Both charts of a shape: for A = 1 and for A = -1.
std::vector<charts::Panel> panels(const LossShape& shape);

}  // namespace resolution
