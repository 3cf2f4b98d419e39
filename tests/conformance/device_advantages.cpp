#include "device_advantages.hpp"

#include <cstdint>
#include <deque>
#include <gdpo/cuda/advantage/device_advantages.hpp>
#include <type_traits>

#include "next_device.hpp"

namespace conformance {
namespace {

using gdpo::index_t;

template <class T>
std::vector<std::remove_const_t<T>> values_of(gdpo::View<T, 1> view) {
  std::vector<std::remove_const_t<T>> values;
  for (index_t i = 0; i < view.extent[0]; ++i) values.push_back(view(i));
  return values;
}

bool side_by_side(const gdpo::ById& groups) {
  for (index_t i = 0; i < groups.order().extent[0]; ++i) {
    if (groups.order()(i) != i) return false;
  }
  return true;
}

template <class T>
class RewardsOnDevice {
 public:
  explicit RewardsOnDevice(const gdpo::RewardBatch<T, gdpo::ById>& host) : host_(host) {
    std::vector<T> rewards;
    for (index_t i = 0; i < rows(); ++i) {
      for (index_t c = 0; c < host.rewards.extent[1]; ++c) rewards.push_back(host.rewards(i, c));
    }
    rewards_ = OnDevice<T>(rewards);
    order_ = OnDevice<index_t>(values_of(host.groups.order()));
    offsets_ = OnDevice<index_t>(values_of(host.groups.offsets()));
    for (const auto column :
         {&Host::tokens, &Host::valid, &Host::baseline, &Host::penalty, &Host::weights}) {
      if (!(host.*column)) {
        columns_.emplace_back();
        continue;
      }
      std::vector<double> values;
      for (index_t i = 0; i < rows(); ++i) values.push_back((host.*column)(i));
      columns_.emplace_back(values);
    }
  }

  template <class Estimator>
  std::vector<double> operator()(const Estimator& estimator) {
    const index_t groups = host_.groups.count(rows());
    const auto offsets = gdpo::view(static_cast<const index_t*>(offsets_.data()), groups + 1);
    if (side_by_side(host_.groups)) return run(gdpo::by_offsets(offsets), estimator);
    return run(gdpo::cuda::sorted_groups(
                   gdpo::view(static_cast<const index_t*>(order_.data()), rows()), offsets),
               estimator);
  }

 private:
  using Host = gdpo::RewardBatch<T, gdpo::ById>;

  index_t rows() const { return host_.rewards.extent[0]; }
  gdpo::Column column(std::size_t k, const gdpo::Column& host) {
    if (!host) return {};
    return gdpo::view(static_cast<const double*>(columns_[k].data()), rows());
  }
  template <class Groups, class Estimator>
  std::vector<double> run(const Groups& groups, const Estimator& estimator) {
    const gdpo::RewardBatch<T, Groups> batch{
        gdpo::view(static_cast<const T*>(rewards_.data()), rows(), host_.rewards.extent[1]),
        groups,
        column(0, host_.tokens),
        column(1, host_.valid),
        column(2, host_.baseline),
        column(3, host_.penalty),
        column(4, host_.weights)};
    OnDevice<T> out(std::vector<T>(static_cast<std::size_t>(rows())));
    TestScratch scratch(gdpo::cuda::scratch_bytes(estimator, batch));
    gdpo::advantages_into(next_device(), batch, estimator, gdpo::view(out.data(), rows()),
                          scratch());
    const std::vector<T> values = out.host();
    return {values.begin(), values.end()};
  }

  const Host& host_;
  OnDevice<T> rewards_;
  OnDevice<index_t> order_, offsets_;
  std::deque<OnDevice<double>> columns_;
};

}  // namespace

template <class T>
std::vector<double> on_device(const gdpo::RewardBatch<T, gdpo::ById>& batch,
                              const DeviceEstimator& estimator) {
  RewardsOnDevice<T> rewards(batch);
  return std::visit([&](const auto& of) { return rewards(of); }, estimator);
}
template std::vector<double> on_device(const gdpo::RewardBatch<double, gdpo::ById>&,
                                       const DeviceEstimator&);
template std::vector<double> on_device(const gdpo::RewardBatch<float, gdpo::ById>&,
                                       const DeviceEstimator&);

}  // namespace conformance
