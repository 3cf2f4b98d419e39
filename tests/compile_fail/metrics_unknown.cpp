// expect: Metrics is metrics::All, metrics::Means or metrics::None
#include <gdpo/loss.hpp>

auto use() { return gdpo::with_metrics<gdpo::LossMetrics>(gdpo::grpo_loss); }
