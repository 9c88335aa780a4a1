#include "drivers/driver.hpp"

int main(int argc, char** argv) { return katt::driver_main(argc, argv); }
