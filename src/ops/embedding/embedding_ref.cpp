#include "ops/embedding/embedding_ref.hpp"

namespace katt::embedding {

namespace {

template <class Real>
std::vector<double> row_sum(std::span<const float> dout, std::span<const std::int64_t> ids,
                            std::int64_t hidden, std::int64_t id) {
  const auto n = static_cast<std::size_t>(hidden);
  std::vector<Real> sum(n, Real{0});
  for (std::size_t t = 0; t < ids.size(); ++t) {
    if (ids[t] != id) continue;
    for (std::size_t c = 0; c < n; ++c) sum[c] += static_cast<Real>(dout[t * n + c]);
  }
  return {sum.begin(), sum.end()};
}

}  // namespace

std::vector<double> reference_dweight(std::span<const float> dout,
                                      std::span<const std::int64_t> ids, std::int64_t hidden,
                                      std::int64_t id) {
  return row_sum<double>(dout, ids, hidden, id);
}

std::vector<double> unfused_dweight(std::span<const float> dout, std::span<const std::int64_t> ids,
                                    std::int64_t hidden, std::int64_t id, Dtype dtype) {
  std::vector<double> sum = row_sum<float>(dout, ids, hidden, id);
  for (double& value : sum) value = round_to(dtype, static_cast<float>(value));
  return sum;
}

}  // namespace katt::embedding
