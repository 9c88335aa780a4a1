#include "op/description/describe.hpp"
#include "ops/rmsnorm/bench/description.hpp"

KATT_REGISTER_OPERATOR(rmsnorm)
