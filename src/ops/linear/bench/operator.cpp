#include "op/description/describe.hpp"
#include "ops/linear/bench/description.hpp"

KATT_REGISTER_OPERATOR(linear)
