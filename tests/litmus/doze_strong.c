#define SIDE(name) doze_strong_##name
#include "tests/litmus/doze_sides.h"
