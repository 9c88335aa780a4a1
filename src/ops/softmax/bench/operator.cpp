#include "op/tensor_operator.hpp"
#include "ops/softmax/bench/description.hpp"

KATT_REGISTER_OPERATOR(softmax)
