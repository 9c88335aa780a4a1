#pragma once

#include <gtest/gtest.h>

#include "tests/ops/suite_checks.hpp"

/// Checks that hold for every operator with a description (OP/bench/description.hpp): a test writes
/// a struct of cases and instantiates the suite,
///
///   struct Cases : testing::SuiteDefaults {
///     using Op = Description;
///     static std::vector<testing::Extents> shapes() {
///       return testing::extents_of({"tokens", "hidden"}, {{3, 64}});
///     }
///   };
///   INSTANTIATE_TYPED_TEST_SUITE_P(Softmax, OperatorSuite, Cases);
///
/// The last shape is the one of the tests that need one only; the first is that of the finite
/// differences, so few elements. The checks are compiled once (suite_checks.hpp).
namespace katt {

template <class Cases>
class OperatorSuite : public ::testing::Test {};
TYPED_TEST_SUITE_P(OperatorSuite);

TYPED_TEST_P(OperatorSuite, MatchesTheReferenceForEveryShapeStrideVariantAndBackend) {
  testing::matches_the_reference(testing::cases_of<TypeParam>());
}
TYPED_TEST_P(OperatorSuite, GradientsOfTheReferenceAreThoseOfFiniteDifferences) {
  testing::has_the_gradients_of_finite_differences(testing::cases_of<TypeParam>());
}
TYPED_TEST_P(OperatorSuite, ThreadsDoNotChangeABit) {
  testing::threads_do_not_change_a_bit(testing::cases_of<TypeParam>());
}
TYPED_TEST_P(OperatorSuite, AnOutputMayBeAnInput) {
  testing::an_output_may_be_an_input(testing::cases_of<TypeParam>());
}
TYPED_TEST_P(OperatorSuite, AllocatesNothingAndRefusesWhatItDoesNotKnow) {
  testing::allocates_nothing_and_refuses(testing::cases_of<TypeParam>());
}

REGISTER_TYPED_TEST_SUITE_P(OperatorSuite, MatchesTheReferenceForEveryShapeStrideVariantAndBackend,
                            GradientsOfTheReferenceAreThoseOfFiniteDifferences,
                            ThreadsDoNotChangeABit, AnOutputMayBeAnInput,
                            AllocatesNothingAndRefusesWhatItDoesNotKnow);

}  // namespace katt
