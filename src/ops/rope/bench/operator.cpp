#include "op/description/describe.hpp"
#include "ops/rope/bench/description.hpp"

KATT_REGISTER_OPERATOR(rope)
