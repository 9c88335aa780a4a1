#include "op/description/describe.hpp"
#include "ops/softmax/bench/description.hpp"

KATT_REGISTER_OPERATOR(softmax)
