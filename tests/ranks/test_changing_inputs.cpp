#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "measure/measure.hpp"
#include "op/collective.hpp"
#include "op/registry.hpp"
#include "tests/message_of.hpp"
#include "tests/op/follows_inputs.hpp"
#include "tests/op/keeps_answer.hpp"

/// The inputs of operators that ranks compute together change between rounds, in the same way on all
/// of them. Run by CTest alone and under mpirun with 2, 3, 4 and 8 ranks.
namespace katt::bench {
namespace {

/// Small sizes that as many ranks can share; some lengths that they share unequally.
Point small_point(const Operator& op, const std::string& pass, Dtype dtype, int ranks) {
  const std::map<std::string, std::int64_t> sizes{
      {"ranks", ranks}, {"message_size", 4100}, {"batch", 2},  {"accumulation", ranks},
      {"seq_q", 21},    {"hidden", 40},         {"heads", 24}, {"kv_heads", 24},
      {"head_dim", 8},  {"intermediate", 48},   {"layers", 2}, {"vocab", 64}};
  Point point;
  point.pass = pass;
  point.backend = Backend::openmp;
  point.threads = 1;
  point.dtype = dtype;
  for (const AxisSpec& axis : op.axes()) {
    const auto size = sizes.find(axis.name);
    point.values[axis.name] = size == sizes.end() ? axis.fallback : AxisValue(size->second);
  }
  op.validate(point);
  return point;
}

/// Calls f(case, config) for every variant of every operator of ranks that can run a small point.
void each_variant(std::initializer_list<Dtype> dtypes,
                  const std::function<void(Case&, const Config&)>& f) {
  const ranks::Communicator group = ranks::world();
  for (const Operator* op : test::registry().all()) {
    const auto* const collective = dynamic_cast<const CollectiveOperator*>(op);
    if (collective == nullptr) continue;
    for (const std::string& pass : op->passes()) {
      for (const Dtype dtype : dtypes) {
        const Point point = small_point(*op, pass, dtype, group.size());
        const auto made = collective->make_case_on(group, point);
        for (const VariantInfo& variant : op->variants(point.backend, pass)) {
          const Config config{.variant = variant.name};
          SCOPED_TRACE(op->name() + ", " + pass + ", " + std::string(name_of(dtype)) + ", " +
                       variant.name + ", rank " + std::to_string(group.rank()));
          if (made->supports(config).is_ok()) f(*made, config);
        }
      }
    }
  }
}

TEST(ChangingInputs, OutputsAreThoseOfTheMoment) {
  each_variant({Dtype::f32, Dtype::bf16}, [](Case& made, const Config& config) {
    const auto candidate = made.prepare(config);
    test::run_once(*candidate);
    EXPECT_TRUE(candidate->verify().status.is_ok()) << "with the first inputs";
    EXPECT_EQ(test::expect_to_follow_inputs(made, *candidate, 5), 4);
  });
}

TEST(ChangingInputs, NoAnswerThatIsKeptPasses) {
  const ranks::Communicator group = ranks::world();
  const StopFlag stop{false};
  Largest largest_of_all;
  if (group.size() > 1) largest_of_all = [&](double value) { return largest(group, value); };
  each_variant({Dtype::f32}, [&](Case& made, const Config& config) {
    std::vector<Contender> contenders;
    contenders.push_back(enter([&] { return made.prepare(config); }));
    contenders.push_back(
        enter([&] { return std::make_unique<test::KeepsAnswer>(made.prepare(config)); }));
    for (Contender& contender : contenders) {
      contender.inputs = &made;
      EXPECT_TRUE(contender.measured.status.is_ok()) << "with the first inputs";
    }
    ASSERT_TRUE(measure(
        contenders, {.rounds = 7}, [] {}, stop, Bound(), largest_of_all));
    EXPECT_TRUE(contenders[0].measured.status.is_ok()) << contenders[0].measured.status.reason();
    EXPECT_FALSE(contenders[1].measured.status.is_ok());
    EXPECT_TRUE(test::contains(contenders[1].measured.status.reason(), "other inputs: "));
  });
}

}  // namespace
}  // namespace katt::bench
