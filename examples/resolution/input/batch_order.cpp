#include "batch_order.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace resolution {
namespace {

/// A text divided into its numbers and the rest.
struct Divided {
  std::string rest;  ///< with one # for each number
  /// The numbers without leading zeros, with their lengths before them: in this form, any number of
  /// digits compares as it should.
  std::vector<std::pair<std::size_t, std::string>> numbers;
};

Divided divided(const std::string& text) {
  Divided d;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] < '0' || text[i] > '9') {
      d.rest.push_back(text[i++]);
      continue;
    }
    std::size_t end = i;
    while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
    while (i + 1 < end && text[i] == '0') ++i;
    d.numbers.emplace_back(end - i, text.substr(i, end - i));
    d.rest.push_back('#');
    i = end;
  }
  return d;
}

/// The place of each batch in the order by one column; equal texts have the same place.
std::vector<std::size_t> places_by(const std::vector<std::vector<std::string>>& texts,
                                   std::size_t column) {
  std::vector<Divided> values;
  for (const auto& batch : texts) values.push_back(divided(batch[column]));
  const bool only_numbers_differ = std::all_of(values.begin(), values.end(), [&](const Divided& d) {
    return d.rest == values.front().rest;
  });
  std::vector<std::size_t> places;
  if (only_numbers_differ) {
    std::map<std::vector<std::pair<std::size_t, std::string>>, std::size_t> place_of;
    for (const Divided& d : values) place_of.emplace(d.numbers, 0);
    std::size_t next = 0;
    for (auto& [numbers, place] : place_of) place = next++;
    for (const Divided& d : values) places.push_back(place_of[d.numbers]);
  } else {
    std::map<std::string, std::size_t> place_of;
    for (const auto& batch : texts)
      places.push_back(place_of.emplace(batch[column], place_of.size()).first->second);
  }
  return places;
}

}  // namespace

std::vector<std::size_t> order_of_batches(const std::vector<std::vector<std::string>>& texts) {
  std::vector<std::size_t> order(texts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const std::size_t columns = texts.empty() ? 0 : texts.front().size();
  // A stable sort by the last column first orders by the first column last, which decides.
  for (std::size_t column = columns; column-- > 0;) {
    const std::vector<std::size_t> places = places_by(texts, column);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return places[a] < places[b]; });
  }
  return order;
}

}  // namespace resolution
