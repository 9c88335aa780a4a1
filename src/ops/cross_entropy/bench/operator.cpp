#include "op/tensor_operator.hpp"
#include "ops/cross_entropy/bench/description.hpp"

KATT_REGISTER_OPERATOR(cross_entropy)
