#include "op/description/describe.hpp"
#include "ops/ternary_linear/bench/description.hpp"

KATT_REGISTER_OPERATOR(ternary_linear)
