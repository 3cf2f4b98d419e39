// Indices as tests read them.
#pragma once
#include <gdpo/core/view.hpp>
#include <vector>

/// An index of the library as one of the standard library.
inline std::size_t at(gdpo::index_t i) { return static_cast<std::size_t>(i); }

/// The numbers of a view.
inline std::vector<gdpo::index_t> list(gdpo::View<const gdpo::index_t, 1> v) {
  std::vector<gdpo::index_t> all;
  for (gdpo::index_t i = 0; i < v.extent[0]; ++i) all.push_back(v(i));
  return all;
}
