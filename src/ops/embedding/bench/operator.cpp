#include "op/tensor_operator.hpp"
#include "ops/embedding/bench/description.hpp"

KATT_REGISTER_OPERATOR(embedding)
