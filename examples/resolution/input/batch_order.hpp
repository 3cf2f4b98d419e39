#pragma once

#include <string>
#include <vector>

namespace resolution {

/// The order of batches, as a list of their numbers, by the texts that tell them apart, column by
/// column. Texts of a column that differ in their numbers alone ("9", "10" or "step_9.jsonl",
/// "step_10.jsonl") are sorted by these; others keep the order in which they came. `texts` has a
/// list of the same length for each batch.
std::vector<std::size_t> order_of_batches(const std::vector<std::vector<std::string>>& texts);

}  // namespace resolution
