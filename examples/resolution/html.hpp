#pragma once

#include <string>
#include <vector>

namespace resolution::html {

/// Text with the characters & < > " ' written as entities, safe as content and inside attributes.
/// Bytes that are not UTF-8, and control characters, become U+FFFD.
std::string escaped(const std::string& text);

/// Escaped running text in which a percent sign stays on the line of its number.
std::string prose(const std::string& text);

/// A number made by words.hpp, in print typography: real minus signs, and a dash for "-".
std::string number(const std::string& text);

/// The element `<name attributes>content</name>`; `content` is HTML already.
std::string element(const std::string& name, const std::string& attributes,
                    const std::string& content);

/// The element `<div class="css_class">content</div>`.
std::string division(const std::string& css_class, const std::string& content);

std::string heading(const std::string& text);
std::string paragraph(const std::string& text, const std::string& css_class = "");

/// A figure: a title, a chart, and a caption that says what it shows.
std::string figure(const std::string& title, const std::string& chart, const std::string& caption);

/// A table with a caption for screen readers. Cells are HTML; the first cell of every row is its
/// header.
std::string table(const std::string& caption, const std::vector<std::string>& header,
                  const std::vector<std::vector<std::string>>& rows);

/// The whole page: document head, style sheet and body. The page loads nothing, and a content
/// security policy tells the browser so.
std::string page(const std::string& title, const std::string& body);

}  // namespace resolution::html
