#include "op/description/describe.hpp"
#include "ops/cross_entropy/bench/description.hpp"

KATT_REGISTER_OPERATOR(cross_entropy)
