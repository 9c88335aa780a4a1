#include "op/description/describe.hpp"
#include "ops/rmsnorm_linear/bench/description.hpp"

KATT_REGISTER_OPERATOR(rmsnorm_linear)
