#pragma once

#include <string>
#include <vector>

namespace resolution::html {

/// Text with & < > " ' written as entities, safe as content and inside attributes; bytes that are not UTF-8 become
/// U+FFFD.
std::string escaped(const std::string& text);

/// Escaped running text in which a percent sign stays with its number.
std::string prose(const std::string& text);

/// A number made by words.hpp in print typography: minus signs and a dash for "-".
std::string number(const std::string& text);

/// <name attributes>content</name>; `content` is HTML already.
std::string element(const std::string& name, const std::string& attributes,
                    const std::string& content);

/// <div class="css_class">content</div>
std::string division(const std::string& css_class, const std::string& content);

std::string heading(const std::string& text);
std::string paragraph(const std::string& text, const std::string& css_class = "");

/// A figure: title, chart, and what it shows in words.
std::string figure(const std::string& title, const std::string& chart, const std::string& caption);

/// A table with a caption for screen readers; cells are HTML, the first of every row is its header.
std::string table(const std::string& caption, const std::vector<std::string>& header,
                  const std::vector<std::vector<std::string>>& rows);

/// The whole page: document head, style sheet and body. Loads nothing; a content policy says so to the browser.
std::string page(const std::string& title, const std::string& body);

}  // namespace resolution::html
