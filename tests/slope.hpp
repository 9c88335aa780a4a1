#pragma once

/// Derivatives of references.
namespace katt::test {

/// The derivative of loss() by a number that it reads, as a central difference.
template <class T, class Loss>
double slope(T& value, T step, const Loss& loss) {
  const T before = value;
  value = before + step;
  const double up = value, above = loss();
  value = before - step;
  const double down = value, below = loss();
  value = before;
  return (above - below) / (up - down);
}

}  // namespace katt::test
