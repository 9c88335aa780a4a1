#include "nn/context/ring_attention/bench/inputs.hpp"

#include <algorithm>
#include <string_view>

#include "io/hdf5/case_file.hpp"
#include "op/reference/new_values.hpp"

namespace katt::ring_attention {

Inputs::Inputs(const bench::Point& point)
    : backward(point.pass == "backward"),
      dtype(point.dtype),
      problem_(bench::problem_of(attention_data(), point)) {
  bench::generate(problem_, attention_data().pass(backward).inputs, point.seed);
  HostProblem::operator=(attention::Description::host_problem(problem_));
}

Inputs::Inputs(const io::CaseFile& file)
    : backward(file.has("dout")),
      dtype(file.dtype()),
      problem_(bench::read_problem(attention_data(), file)) {
  if (backward) {
    problem_.values["dout"] =
        file.floats("dout", file.shape("q", 4, "(B, Hq, Sq, D)"), "(B, Hq, Sq, D)").values;
  }
  HostProblem::operator=(attention::Description::host_problem(problem_));
  if (batch == 0 || seq_q == 0 || seq_kv == 0) {
    file.reject("q", "holds no query or no key, expected some");
  }
}

bench::Work Inputs::work(Backend backend) const {
  const bench::Pass& pass = attention_data().pass(backward);
  return pass.work(bench::shapes_of(pass, problem_), backend);
}

std::vector<bench::InputChange> Inputs::change(std::uint64_t random, bool all) {
  std::vector<testing::RandomInput> changing;
  for (const char* name : {"q", "k", "v", "dout"}) {
    const bool is_derived_of = backward && std::string_view(name) != "dout";
    if (!problem_.has(name) || (is_derived_of && !all)) continue;
    changing.push_back({.name = name, .values = problem_.values[name], .row = head_dim});
  }
  expected_.reset();
  return testing::change_values(changing, random, all);
}

const testing::Expected& Inputs::expected() {
  if (!expected_) expected_ = attention::Description::expected(problem_);
  return *expected_;
}

testing::Errors compare(Inputs& inputs, const std::vector<Output>& outputs) {
  testing::Comparison reported, unreported;
  for (const testing::ExpectedPart& part : inputs.expected()) {
    const auto made = std::ranges::find(outputs, part.output, &Output::name);
    testing::add_all(part.unreported ? unreported : reported, part, made->values, made->shape,
                     inputs.dtype);
  }
  testing::Errors errors = reported.result();
  if (errors.status.is_ok()) errors.status = unreported.result().status;
  return errors;
}

}  // namespace katt::ring_attention
