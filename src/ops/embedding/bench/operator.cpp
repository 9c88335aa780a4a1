#include "op/description/describe.hpp"
#include "ops/embedding/bench/description.hpp"

KATT_REGISTER_OPERATOR(embedding)
