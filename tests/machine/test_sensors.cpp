#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include "machine/sensors.hpp"
#include "tests/message_of.hpp"
#include "tests/temporary_folder.hpp"

namespace katt::bench {
namespace {

/// A sysfs of our own.
class Sysfs : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << '\n';
  }
  void zone(const std::string& name, const std::string& what, const std::string& energy_uj) const {
    const std::string folder = "class/powercap/" + name + "/";
    write(folder + "name", what);
    write(folder + "energy_uj", energy_uj);
    write(folder + "max_energy_range_uj", "1000000");
  }
  void throttled(int processor, const std::string& core, const std::string& package) const {
    const std::string folder =
        "devices/system/cpu/cpu" + std::to_string(processor) + "/thermal_throttle/";
    write(folder + "core_throttle_count", core);
    write(folder + "package_throttle_count", package);
  }

  const test::TemporaryFolder folder_;
  const std::filesystem::path root_ = folder_.path();
};

TEST_F(Sysfs, JoulesAreThoseOfThePackages) {
  zone("intel-rapl:0", "package-0", "100000");
  zone("intel-rapl:1", "package-1", "200000");
  zone("intel-rapl:2", "psys", "7");            // holds the packages
  zone("intel-rapl:0:0", "core", "7");          // a part of a package
  zone("intel-rapl-mmio:0", "package-0", "7");  // the same package again
  const EnergyCounters energy(root_);
  EXPECT_EQ(energy.refusal(), "");
  const auto before = energy.read();
  zone("intel-rapl:0", "package-0", "350000");
  zone("intel-rapl:1", "package-1", "200500");
  zone("intel-rapl:2", "psys", "900000");
  EXPECT_NEAR(energy.joules_between(before, energy.read()), 0.2505, 1e-12);
}

TEST_F(Sysfs, ACounterWrapsAround) {
  zone("intel-rapl:0", "package-0", "999000");
  const EnergyCounters energy(root_);
  const auto before = energy.read();
  zone("intel-rapl:0", "package-0", "500");
  EXPECT_NEAR(energy.joules_between(before, energy.read()), 1.5e-3, 1e-12);
  EXPECT_TRUE(std::isnan(energy.joules_between({std::uint64_t{1} << 62}, energy.read())))
      << "beyond its range";
}

TEST_F(Sysfs, EnergyThatCannotBeReadIsRefused) {
  EXPECT_TRUE(test::contains(EnergyCounters(root_).refusal(), "has no RAPL"));
  EXPECT_TRUE(std::isnan(EnergyCounters(root_).joules_between({}, {})));
  zone("intel-rapl:0", "package-0", "1");
  EnergyCounters energy(root_);
  const auto before = energy.read();
  std::filesystem::remove(root_ / "class/powercap/intel-rapl:0/energy_uj");
  EXPECT_TRUE(energy.read().empty());
  EXPECT_TRUE(std::isnan(energy.joules_between(before, energy.read())));
  EXPECT_TRUE(test::contains(EnergyCounters(root_).refusal(), "energy_uj cannot be read"));
}

TEST_F(Sysfs, ThrottlesOfCoresAndPackagesAreSummed) {
  EXPECT_EQ(throttle_count({0, 1}, root_), std::nullopt);
  throttled(0, "3", "10");
  throttled(1, "4", "10");
  throttled(2, "100", "100");
  EXPECT_EQ(throttle_count({0, 1}, root_), 27U);
  EXPECT_EQ(throttle_count({}, root_), std::nullopt);
}

}  // namespace
}  // namespace katt::bench
