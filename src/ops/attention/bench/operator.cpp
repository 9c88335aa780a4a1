#include "op/description/describe.hpp"
#include "ops/attention/bench/description.hpp"

KATT_REGISTER_OPERATOR(attention)
