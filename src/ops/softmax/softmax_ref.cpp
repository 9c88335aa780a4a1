#include "ops/softmax/softmax_ref.hpp"

#include <algorithm>
#include <cmath>

namespace katt::softmax {

std::vector<double> reference_row(std::span<const float> x) {
  const double largest = *std::max_element(x.begin(), x.end());
  std::vector<double> out;
  double sum = 0;
  for (const float value : x) {
    out.push_back(std::exp(value - largest));
    sum += out.back();
  }
  for (double& value : out) value /= sum;
  return out;
}

std::vector<double> reference_gradient(std::span<const float> x, std::span<const float> dout) {
  std::vector<double> p = reference_row(x);
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) sum += p[i] * dout[i];
  for (std::size_t i = 0; i < p.size(); ++i) p[i] *= dout[i] - sum;
  return p;
}

std::vector<double> unfused_row(std::span<const float> x, Dtype dtype) {
  const float largest = *std::max_element(x.begin(), x.end());
  std::vector<double> out;
  float sum = 0;
  for (const float value : x) {
    const float e = round_to(dtype, std::exp(value - largest));
    out.push_back(e);
    sum += e;
  }
  for (double& value : out) value = round_to(dtype, static_cast<float>(value) / sum);
  return out;
}

std::vector<double> unfused_gradient(std::span<const float> x, std::span<const float> dout,
                                     Dtype dtype) {
  std::vector<double> p = unfused_row(x, dtype);
  float sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) sum += static_cast<float>(p[i]) * dout[i];
  for (std::size_t i = 0; i < p.size(); ++i) {
    p[i] = round_to(dtype, static_cast<float>(p[i]) * (dout[i] - sum));
  }
  return p;
}

}  // namespace katt::softmax
