#include <cstdio>

#include <nlohmann/json.hpp>

#include "core/execution.hpp"
#include "drivers/options/layout_options.hpp"
#include "drivers/options/model_options.hpp"
#include "drivers/options/prompts.hpp"
#include "drivers/runtime/claim.hpp"
#include "drivers/runtime/commands.hpp"
#include "drivers/runtime/messages.hpp"
#include "drivers/runtime/runtime.hpp"
#include "io/hdf5/case_file.hpp"
#include "nn/inference/session.hpp"
#include "record/json.hpp"

namespace katt::impl {

int logits_command(const Invocation& invocation) {
  constexpr const char* usage = "katt logits --model DIR --tokens 1,2,3 --out OUT.h5";
  CommandLine line("katt logits", "Logits of a LLaMA for every token of a prompt");
  ModelOptions options;
  LayoutOptions ranks;
  options.add_to(line);
  ranks.add_inference_to(line);
  line.option("--tokens", "token ids of the prompt: 1,2,3");
  line.option("--out", "file (HDF5) for the dataset logits, (tokens, vocabulary) f32",
              files({".h5"}));
  bool overwrite = false;
  line.flag("--overwrite", overwrite, "replace the file of --out");
  line.example("katt logits --model DIR --tokens 1,2,3 --out OUT.h5",
               "the dataset logits, a row a token");
  line.example("mpirun -n 2 katt logits --model DIR --tokens 1,2,3 --out OUT.h5 --tensor 2",
               "the same with every matrix in two parts");
  if (!line.parse(invocation)) return 0;
  options.resolve(line, usage);
  ranks.resolve(line);
  const auto tokens = parse_tokens(line.required("--tokens", usage));
  const std::string& target = line.required("--out", usage);

  const io::Outputs outputs =
      claim_outputs({{"--out", target}}, {{"--model", options.folder}}, overwrite);

  const Runtime runtime(options.threads, options.device);
  io::TensorFile result;
  std::vector<std::int64_t> shape;
  visit_backend(options.backend, options.threads, [&](const auto& exec) {
    const auto count = static_cast<std::int64_t>(tokens.size());
    const nn::SessionOptions of_session{.capacity = count, .groups = ranks.replicas().model};
    check_vocabulary(tokens, "--tokens", nn::read_config(options.folder).vocab_size);
    check_inference_fits(exec, options, of_session);
    const auto model =
        nn::open_model(exec, options.folder, options.dtype, options.seed, of_session.groups);
    nn::Session session(model, of_session);
    tell_threads(options.threads);
    tell_note(nn::parameters_note(options.folder));
    tell_note(positions_note(model.config(), count));
    tell_more(options.resolved_text());
    shape = {count, model.config().vocab_size};
    result.set("logits", {shape, session.append(tokens, true)});
  });
  result.set_attribute("dtype", std::string(name_of(options.dtype)));
  if (ranks::world().rank() != 0) return 0;
  result.write(target);
  tell_more("wrote " + target);
  if (options.json) {
    const nlohmann::ordered_json object{{"out", target}, {"logits", shape}};
    std::printf("%s\n", bench::dumped(object).c_str());
  }
  return 0;
}

}  // namespace katt::impl
