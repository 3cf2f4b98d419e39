// Arrays of a batch, copied to the device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <gdpo/loss.hpp>
#include <vector>

#include "next_device.hpp"

namespace conformance {

// The shape of a token array: `rows` of `width`. Packed tokens are one row.
struct TokensShape {
  bool packed;
  gdpo::index_t rows, width;
  template <class T>
  explicit TokensShape(const gdpo::TokenView<T>& of)
      : packed(of.rank() == 1), rows(packed ? 1 : of.extent(0)), width(of.extent(packed ? 0 : 1)) {}
  std::size_t size() const { return static_cast<std::size_t>(rows * width); }
  template <template <class> class Tokens, class T>
  Tokens<T> view(T* data) const {
    if (packed) return gdpo::view(data, width);
    return gdpo::view(data, rows, width);
  }
};

// Copies of arrays on the device, which live as long as this object.
template <class S>
class DeviceArrays {
 public:
  DeviceArrays() = default;
  DeviceArrays(const DeviceArrays&) = delete;
  DeviceArrays& operator=(const DeviceArrays&) = delete;

  // Replaces a view by one of a copy on the device. An absent array stays absent.
  void copy(gdpo::TokenView<S>& tokens) { copy(tokens, numbers_); }
  void copy(gdpo::TokenView<unsigned char>& flags) { copy(flags, flags_); }
  void copy(gdpo::TokenView<std::int64_t>& integers) { copy(integers, integers_); }
  void copy(gdpo::ColumnOf<double>& column) { copy(column, columns_); }
  void copy(gdpo::ColumnOf<gdpo::index_t>& offsets) { copy(offsets, offsets_); }

 private:
  template <class T>
  static void copy(gdpo::TokenView<T>& tokens, std::deque<OnDevice<T>>& arrays) {
    if (!tokens) return;
    if (tokens.shape().repeats) {  // one number a row
      const gdpo::index_t rows = tokens.shape().extent[0];
      std::vector<T> numbers;
      for (gdpo::index_t i = 0; i < rows; ++i) numbers.push_back(tokens.at(i, 0, 0));
      tokens = gdpo::repeated(gdpo::view(arrays.emplace_back(numbers).data(), rows));
      return;
    }
    const TokensShape shape(tokens);
    std::vector<T> values(shape.size());
    for (gdpo::index_t i = 0; i < shape.rows; ++i) {
      T* const to = values.data() + i * shape.width;
      const T* const from = tokens.row(i, 0, shape.width, to);
      if (from != to) std::copy(from, from + shape.width, to);
    }
    tokens = shape.template view<gdpo::TokenView>(arrays.emplace_back(values).data());
  }
  template <class R>
  static void copy(gdpo::ColumnOf<R>& column, std::deque<OnDevice<R>>& arrays) {
    if (!column) return;
    std::vector<R> values;
    for (gdpo::index_t i = 0; i < column.size(); ++i) values.push_back(column(i));
    column = gdpo::view(arrays.emplace_back(values).data(), column.size());
  }

  std::deque<OnDevice<S>> numbers_;
  std::deque<OnDevice<unsigned char>> flags_;
  std::deque<OnDevice<std::int64_t>> integers_;
  std::deque<OnDevice<double>> columns_;
  std::deque<OnDevice<gdpo::index_t>> offsets_;
};

}  // namespace conformance
