#pragma once
// pack: distributes rows over packed micro-batches of bounded size.
#include <gdpo/core/until_moved.hpp>
#include <gdpo/math/check_fields.hpp>
#include <gdpo/update/engine/parts.hpp>
#include <string>
#include <utility>
#include <vector>

GDPO_BEGIN_NAMESPACE
namespace update {

/// What pack() does with a row that is longer than the budget.
enum class Oversize {
  /// It throws invalid_input.
  Refuse,
  /// The row gets a pack of its own, whose number of tokens is above the budget; open-instruct's
  /// pack_sequences has such packs too.
  Alone
};
/// The enumerators of Oversize with their words.
GDPO_DATA_INLINE constexpr auto enumerators(Oversize) {
  using E = Enumerator<Oversize>;
  return std::array{E{"refuse", Oversize::Refuse}, E{"alone", Oversize::Alone}};
}

/// Settings of pack().
struct PackSettings {
  Oversize oversize = Oversize::Refuse;  ///< What happens to a row longer than the budget.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("oversize", s.oversize, "what happens to a row longer than the budget");
  }
};

}  // namespace update

namespace detail {

/// The pack of each row, by first-fit decreasing.
struct PackedRows {
  TokenLengths lengths;
  index_t budget;
  std::vector<index_t> pack_of;  // (rows)
  index_t packs = 0;

  /// Throws invalid_input, in the name of `function`, for a row longer than the budget, unless such
  /// rows get packs `alone`. The budget is at least 1.
  PackedRows(const char* function, TokenLengths token_lengths, index_t pack_budget, bool alone)
      : lengths(std::move(token_lengths)),
        budget(pack_budget),
        pack_of(lengths.row_lengths.size()) {
    std::vector<SortEntry> longest_first(pack_of.size());
    for (std::size_t i = 0; i < longest_first.size(); ++i) {
      const index_t length = lengths.row_lengths[i];
      if (length > budget && !alone) {
        contract::fail(function, "lengths",
                       "the length " + std::to_string(length) + " for row " + std::to_string(i) +
                           " and a budget of " + std::to_string(budget),
                       "rows that are not longer than the budget, or Oversize::Alone");
      }
      longest_first[i] = {static_cast<std::uint64_t>(length), static_cast<index_t>(i)};
    }
    sort_largest_first(longest_first);
    const auto length_of = [](const SortEntry& row) { return static_cast<index_t>(row.key); };
    const auto put = [&](const SortEntry& row, index_t pack) {
      pack_of[static_cast<std::size_t>(row.index)] = pack;
      packs = (std::max)(packs, pack + 1);
    };
    // Two rows above half the budget do not fit together, so each of them begins a pack. Nothing
    // joins a row that is longer than the budget.
    std::vector<index_t> rooms;
    index_t tokens = lengths.total;  // of the other rows
    auto row = longest_first.begin();
    for (; row != longest_first.end() && length_of(*row) > budget - length_of(*row); ++row) {
      put(*row, packs);
      rooms.push_back((std::max)(budget - length_of(*row), index_t{-1}));
      tokens -= length_of(*row);
    }
    // Two packs that the others begin have more tokens together than the budget, because the later
    // one was begun with a row that the earlier one had no room for. So these packs are fewer than
    // 2 tokens / budget, or there is one.
    const index_t others = longest_first.end() - row;
    const index_t more = (std::min)(others, 2 * tokens / budget + 1);
    rooms.insert(rooms.end(), static_cast<std::size_t>(more), budget);
    FirstFit<index_t> room(rooms, -1);
    while (row != longest_first.end()) {
      const index_t length = length_of(*row), pack = room.first_with(length);
      index_t left = room.at(pack);
      do {  // the next row of this length goes into the same pack, if that has room
        put(*row++, pack);
        left -= length;
      } while (row != longest_first.end() && length_of(*row) == length && length <= left);
      room.set(pack, left);
    }
  }
};

}  // namespace detail

namespace update {

/// Rows in packs; pack() makes it.
///
/// The packed order has the rows of pack 0, then those of pack 1, and so on; the rows of a pack are
/// in ascending order. The views refer to memory of the Packing, which must outlive them. A pack
/// number that is negative or not below packs() throws invalid_input. A Packing that has been moved
/// from has no packs.
class Packing {
 public:
  /// What pack() has found.
  explicit Packing(const detail::PackedRows& packed)
      : inverse_(packed.pack_of.size()),
        offsets_(inverse_.size() + 1),
        pack_offsets_(inverse_.size() + static_cast<std::size_t>(packed.packs)),
        parts_(packed.pack_of, packed.packs, [&](std::size_t row, index_t k) {
          inverse_[row] = k;
          offsets_[static_cast<std::size_t>(k) + 1] = packed.lengths.row_lengths[row];
        }) {
    double room = 0;  // tokens of all packs with their padding, exact up to 2^53
    for (std::size_t p = 0; p < static_cast<std::size_t>(packed.packs); ++p) {
      index_t tokens = 0;
      for (auto k = static_cast<std::size_t>(parts_.offsets[p]);
           k < static_cast<std::size_t>(parts_.offsets[p + 1]); ++k) {
        tokens += offsets_[k + 1];
        offsets_[k + 1] += offsets_[k];
        pack_offsets_[k + p + 1] = tokens;
      }
      room += static_cast<double>((std::max)(packed.budget, tokens));
    }
    if (packed.packs > 0) waste_ = (room - static_cast<double>(offsets_.back())) / room;
  }

  /// Number of packs.
  index_t packs() const { return parts_.count(); }
  /// The rows of a pack, in the order of their tokens in the pack.
  View<const index_t, 1> rows(index_t pack) const& {
    detail::check_part("gdpo::update::Packing::rows", "pack", pack, packs());
    return parts_.of(pack);
  }
  View<const index_t, 1> rows(index_t pack) const&& = delete;  ///< Deleted: refers to freed memory.
  /// (rows of the pack + 1) Where the tokens of each row begin in the pack, from 0 to tokens(pack):
  /// the `offsets` (cu_seqlens) of a TokenBatch of this pack alone.
  View<const index_t, 1> offsets(index_t pack) const& {
    detail::check_part("gdpo::update::Packing::offsets", "pack", pack, packs());
    const auto p = static_cast<std::size_t>(pack);
    const index_t begin = parts_.offsets[p], end = parts_.offsets[p + 1];
    return {pack_offsets_.data() + begin + pack, {end - begin + 1}, {1}};
  }
  View<const index_t, 1> offsets(index_t pack) const&& =
      delete;  ///< Deleted: refers to freed memory.
  /// Number of tokens in a pack: at most the budget, unless the pack has one row that is longer.
  index_t tokens(index_t pack) const {
    detail::check_part("gdpo::update::Packing::tokens", "pack", pack, packs());
    const auto p = static_cast<std::size_t>(pack);
    return offsets_[static_cast<std::size_t>(parts_.offsets[p + 1])] -
           offsets_[static_cast<std::size_t>(parts_.offsets[p])];
  }

  /// (rows) The packed order: the row at each packed position.
  View<const index_t, 1> order() const& { return gdpo::view(parts_.rows); }
  View<const index_t, 1> order() const&& = delete;  ///< Deleted: refers to freed memory.
  /// (rows) The packed position of each row: inverse(order(k)) = k.
  View<const index_t, 1> inverse() const& { return gdpo::view(inverse_); }
  View<const index_t, 1> inverse() const&& = delete;  ///< Deleted: refers to freed memory.
  /// (packs + 1) The packed position at which each pack begins; the last entry is the number of
  /// rows.
  View<const index_t, 1> row_offsets() const& { return gdpo::view(parts_.offsets); }
  View<const index_t, 1> row_offsets() const&& = delete;  ///< Deleted: refers to freed memory.
  /// (rows + 1) Where the tokens of each packed position begin if all packs follow each other
  /// without padding; the last entry is the number of all tokens.
  View<const index_t, 1> offsets() const& { return gdpo::view(offsets_); }
  View<const index_t, 1> offsets() const&& = delete;  ///< Deleted: refers to freed memory.

  /// The share of padding if every pack is filled up to the budget: 1 - tokens / (packs budget).
  /// From 0 to 1. A pack of one row that is longer than the budget is not filled up. 0 without
  /// packs; 1 for packs without tokens. It is rounded once where these counts are below 2^53.
  double waste() const { return waste_; }

 private:
  std::vector<index_t> inverse_;  // (rows) of order()
  std::vector<index_t> offsets_;  // (rows + 1) over all packs
  // (rows + packs) the offsets of each pack, one after the other
  std::vector<index_t> pack_offsets_;
  detail::RowParts parts_;  // made last: it fills the others
  detail::UntilMoved<double> waste_;
};

/// Puts rows of different lengths into few packs of at most `budget` tokens.
///
/// A forward pass over a pack has no padding between rows, so fewer packs mean less work. A pack is
/// one packed TokenBatch:
///
///     const auto packing = gdpo::update::pack(lengths, 16384);
///     for (gdpo::index_t p = 0; p < packing.packs(); ++p) {
///       gdpo::TokenBatch<float> batch;
///       batch.offsets = packing.offsets(p);
///       batch.logp = forward(packing.rows(p));  // a view of packing.tokens(p) log-probs
///       batch.advantages = advantages_of(packing.rows(p));  // one for each of these rows
///       loss(batch, normalizer, gradient_of(p));
///     }
///
/// It is first-fit decreasing: the longest row first, rows of equal length in row order, each goes
/// into the first pack that has room for it, and a new pack is begun where none has. A row of
/// length 0 so goes into the first pack that is not oversize. It makes at most 11/9 of the fewest
/// possible packs + 6/9 (Johnson, Near-optimal bin packing algorithms, 1973; the constant 6/9:
/// Dosa, The tight bound of first fit decreasing bin-packing algorithm, 2007). open-instruct
/// (pack_sequences) closes a pack at the first row in batch order that does not fit, and OpenRLHF
/// (get_minimum_num_micro_batch_size) counts packs by first fit in batch order.
///
/// lengths: (rows) the tokens of each row, of any integer type, at least 0. budget: tokens that a
/// pack may have, at least 1. Oversize::Alone lets rows be longer; their packs come first, longest
/// row first. No rows make no packs. The result depends on the arguments alone: equal arguments on
/// several ranks give equal packs. Ranks with other rows may get other numbers of packs; where each
/// forward pass is a collective (FSDP), ranks with fewer packs have to run passes without rows.
///
/// Takes time O(rows log packs) and memory O(rows).
///
/// Errors: `invalid_input` for a budget below 1, a length below 0, more than 2^53 tokens, a row
/// longer than the budget with Oversize::Refuse, and a number that is no Oversize.
template <class T>
Packing pack(View<T, 1> lengths, index_t budget, PackSettings settings = {}) {
  constexpr const char* function = "gdpo::update::pack";
  if (budget < 1) {
    contract::fail(function, "budget", contract::text(budget), "a number of tokens of at least 1");
  }
  gdpo::detail::check_fields(function, "", settings);
  return Packing(detail::PackedRows(function, detail::TokenLengths(function, lengths), budget,
                                    settings.oversize == Oversize::Alone));
}
/// The same for lengths in a std::vector.
template <class T, class Allocator>
Packing pack(const std::vector<T, Allocator>& lengths, index_t budget, PackSettings settings = {}) {
  return pack(gdpo::view(lengths), budget, settings);
}

}  // namespace update
GDPO_END_NAMESPACE
