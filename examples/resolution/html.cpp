#include "html.hpp"

#include "html_style.hpp"
#include "words.hpp"

namespace resolution::html {
std::string escaped(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = character_length(text, i);
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool is_control = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F;
    if (length == 0 || is_control) {
      out += "\xEF\xBF\xBD";
      ++i;
      continue;
    }
    switch (text[i]) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out.append(text, i, length);
    }
    i += length;
  }
  return out;
}

std::string prose(const std::string& text) {
  std::string out = escaped(text);
  for (std::size_t at = 0; (at = out.find(" %", at)) != std::string::npos;)
    out.replace(at, 1, "\u00A0");
  return out;
}

std::string number(const std::string& text) {
  if (text == "-") return "\u2013";
  std::string out;
  for (const char c : text)
    out += c == '-' ? std::string("\u2212") : c == ' ' ? std::string("\u00A0") : std::string(1, c);
  return out;
}

std::string element(const std::string& name, const std::string& attributes,
                    const std::string& content) {
  return "<" + name + (attributes.empty() ? "" : " " + attributes) + ">" + content + "</" + name +
         ">\n";
}

std::string division(const std::string& css_class, const std::string& content) {
  return element("div", "class=\"" + css_class + "\"", content);
}

std::string heading(const std::string& text) { return element("h2", "", escaped(text)); }

std::string paragraph(const std::string& text, const std::string& css_class) {
  return element("p", css_class.empty() ? "" : "class=\"" + css_class + "\"", prose(text));
}

std::string figure(const std::string& title, const std::string& chart, const std::string& caption) {
  return element("figure", "",
                 element("h3", "", escaped(title)) + chart +
                     (caption.empty() ? "" : element("figcaption", "", escaped(caption))));
}

std::string table(const std::string& caption, const std::vector<std::string>& header,
                  const std::vector<std::vector<std::string>>& rows) {
  std::string head;
  for (const std::string& cell : header) head += element("th", "scope=\"col\"", cell);
  std::string body;
  for (const auto& row : rows) {
    std::string cells;
    for (std::size_t c = 0; c < row.size(); ++c) {
      cells += c == 0 ? element("th", "scope=\"row\"", row[c]) : element("td", "", row[c]);
    }
    body += element("tr", "", cells);
  }
  return element(
      "div", "class=\"scroll\" tabindex=\"0\"",
      element("table", "",
              element("caption", "", escaped(caption)) +
                  element("thead", "", element("tr", "", head)) + element("tbody", "", body)));
}

std::string page(const std::string& title, const std::string& body) {
  return std::string("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n") +
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
         "<meta name=\"color-scheme\" content=\"light dark\">\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
         "'unsafe-inline'\">\n" +
         element("title", "", escaped(title)) + element("style", "", style_sheet) +
         "</head>\n<body>\n" + element("main", "", body) + "</body>\n</html>\n";
}

}  // namespace resolution::html
