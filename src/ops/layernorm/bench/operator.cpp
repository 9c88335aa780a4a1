#include "op/description/describe.hpp"
#include "ops/layernorm/bench/description.hpp"

KATT_REGISTER_OPERATOR(layernorm)
