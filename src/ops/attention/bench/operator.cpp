#include "op/tensor_operator.hpp"
#include "ops/attention/bench/description.hpp"

KATT_REGISTER_OPERATOR(attention)
