#include "op/description/describe.hpp"
#include "ops/swiglu_mlp/bench/description.hpp"

KATT_REGISTER_OPERATOR(swiglu_mlp)
