#include "op/description/describe.hpp"
#include "ops/linear_cross_entropy/bench/description.hpp"

KATT_REGISTER_OPERATOR(linear_cross_entropy)
