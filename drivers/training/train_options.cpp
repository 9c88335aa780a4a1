#include "drivers/training/train_options.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/json_input.hpp"
#include "io/outputs.hpp"
#include "plan/axes.hpp"
#include "plan/toml_document.hpp"
#include "training/saving.hpp"
#include "training/state_file.hpp"

namespace katt::impl {

namespace {

constexpr const char* train_usage =
    "katt train --model DIR (--data FILE.h5 | --text FILE) --steps N --batch B --seq S --lr X";
constexpr std::size_t max_config_bytes = 1 << 20;

bool same_content(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code ignored;
  const auto bytes = std::filesystem::file_size(a, ignored);
  return std::filesystem::file_size(b, ignored) == bytes && bytes <= max_companion_bytes &&
         io::impl::read_text(a, bytes, "a file") == io::impl::read_text(b, bytes, "a file");
}

}  // namespace

TrainCommandLine::TrainCommandLine()
    : line_("katt train", "Train a LLaMA: AdamW, accumulation, mixed precision, checkpointing") {
  const auto add = [&](const char* name, const char* help, Values values = {}) {
    line_.option(name, help, std::move(values));
  };
  model.add_to(line_);
  add("--config", "TOML file with any of these options by name, e.g. batch = 4", files({".toml"}));
  add("--data", "HDF5 file with token ids, dataset tokens (N)", files({".h5"}));
  add("--text", "any file, a token a byte", files({""}));
  add("--steps", "steps of the whole run");
  add("--batch", "rows of a microbatch (default: 1)");
  add("--seq", "tokens of a row (default: 128)");
  add("--accumulation", "microbatches of a step (default: 1)");
  add("--lr", "learning rate (default: 1e-3)");
  add("--schedule", "constant (default) or cosine", one_of({"constant", "cosine"}));
  add("--warmup", "steps over which the rate rises (default: 0)");
  add("--min-lr", "rate at the end of a cosine (default: 0)");
  add("--beta1", "AdamW (default: 0.9)");
  add("--beta2", "AdamW (default: 0.95)");
  add("--eps", "AdamW (default: 1e-8)");
  add("--weight-decay", "of tensors of rank 2 and more (default: 0.1)");
  add("--clip", "largest norm of the gradient; 0: any (default: 1)");
  add("--loss-scale", "dynamic (default in f16) or a factor (default else: 1)");
  add("--growth-interval", "good steps after which a dynamic scale grows (default: 200)");
  add("--growth-factor", "by which a dynamic scale grows, more than 1 (default: 2)");
  add("--backoff-factor", "of a dynamic scale when a gradient is not finite (default: 0.5)");
  add("--master-dtype", "of what the optimizer updates: f32 (default), or that of --dtype",
      dtype_values());
  add("--ternary",
      "1: the projections of the blocks are ternary, BitNet b1.58 (default: as config.json says)");
  add("--checkpoint-blocks",
      "computed again backward: all, none, cheap, every:K, 0,2,5, n1:8,product:3 or budget:BYTES",
      one_of({"all", "none", "cheap", "every:", "budget:"}));
  add("--out", "folder to write the trained model to, and all that --resume needs", folders());
  add("--log", "HDF5 file with loss, grad_norm, lr and time_s of every step", files({".h5"}));
  add("--save-every", "steps between saves (default: 0, at the end only)");
  add("--save-shards",
      "files that a save is written to, by as many ranks at once (default: one for each 2 GiB of "
      "the model)");
  layout.add_to(line_);
  add("--micro-batches", "of a step of a rank, for a pipeline (default: as --batch says)");
  line_.flag("--checkpoint", checkpoint_, "the same as --checkpoint-blocks all");
  line_.flag("--profile", profile_, "tell where the time of a step goes, by phase and operator");
  line_.flag("--resume", resume, "continue the run in --out; start it if there is none");
  line_.flag("--overwrite", overwrite, "replace the model in --out and the file of --log");
  line_.footer(
      "Of several ranks (mpirun -n P katt train), what --tensor, --pipeline and --context leave is "
      "data "
      "parallel; --batch x --accumulation rows make a step in every layout.\n"
      "SIGTERM and SIGINT save and stop after the step.");
  line_.example("katt train --model DIR --text FILE --steps 300 --dtype bf16 --out TUNED",
                "fine-tune on the bytes of a file");
  line_.example("katt train --model DIR --data FILE.h5 --steps 300 --out TUNED --resume",
                "go on where the run was stopped or killed");
  line_.example(
      "mpirun -n 4 katt train --model DIR --text FILE --steps 300 --batch 2 --tensor 2 --zero 1",
      "two replicas of a model in two parts");
}

bool TrainCommandLine::parse(const Invocation& invocation) {
  if (!line_.parse(invocation)) return false;
  read_config();
  model.resolve(line_, train_usage);
  layout.resolve(line_);
  (void)line_.required("--steps", train_usage);
  if (!line_.text("--data") == !line_.text("--text")) {
    throw InputError("--data or --text: expected one of them: " + std::string(train_usage));
  }
  return true;
}

void TrainCommandLine::read_config() {
  const auto& path = line_.text("--config");
  if (!path) return;
  const auto document = bench::parse_toml(
      *path, io::impl::read_text(*path, max_config_bytes, "a TOML file of options"));
  if (document.axes || document.sweeps) {
    throw InputError(*path + ": holds tables, expected keys that are options of katt train");
  }
  for (const bench::TomlKey& key : document.top.keys) {
    const std::string name = dashed(key.name);
    const auto where = [&] { return *path + ":" + std::to_string(key.line) + ": " + key.name; };
    if (key.text.empty()) throw InputError(where() + ": is empty, expected a value");
    bool* const flag = name == "--checkpoint"  ? &checkpoint_
                       : name == "--profile"   ? &profile_
                       : name == "--resume"    ? &resume
                       : name == "--overwrite" ? &overwrite
                                               : nullptr;
    if (flag != nullptr) {
      if (key.text != "0" && key.text != "1") {
        throw InputError(where() + " " + key.text + ": expected true or false");
      }
      *flag = *flag || key.text == "1";
    } else if (name == "--config" || !line_.set_default(name, key.text)) {
      const std::string near = line_.suggestion(name);
      throw InputError(where() + ": is no option of katt train" +
                       (near.empty() ? "" : "; " + near));
    }
  }
}

std::vector<std::string> TrainCommandLine::companions(bool present) const {
  std::vector<std::string> found;
  for (const char* name : {"generation_config.json", "tokenizer.json", "tokenizer_config.json",
                           "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
                           "vocab.json", "merges.txt", "chat_template.jinja"}) {
    std::error_code ignored;
    if (std::filesystem::exists(std::filesystem::path(model.folder) / name, ignored) == present) {
      found.emplace_back(name);
    }
  }
  return found;
}

bool TrainCommandLine::may_replace(const std::filesystem::path& file) const {
  if (overwrite || training::holds_run(file.parent_path())) return overwrite || resume;
  if (!resume || file.filename() == "config.json") return false;  // which ends a save
  std::error_code ignored;
  const std::string name = file.filename().string();
  const std::filesystem::path original = std::filesystem::path(model.folder) / name;
  const std::vector<std::string> copied = companions();
  if (std::ranges::find(copied, name) != copied.end()) return same_content(file, original);
  // a killed process leaves its lock
  return std::filesystem::exists(io::lock_of(file.parent_path() / training::state_file), ignored);
}

void TrainCommandLine::check_output() const {
  const std::filesystem::path out = line_.text("--out").value_or("");
  std::error_code ignored;
  if (resume && overwrite) throw InputError("--resume and --overwrite exclude each other");
  for (const char* name : {"--save-every", "--save-shards"}) {
    if (line_.text(name) && out.empty()) throw InputError(std::string(name) + ": needs --out");
  }
  if (resume && out.empty()) throw InputError("--resume: needs --out, the run to continue");
  // asked before the run is: another process may be in its first save, which ends with the log
  const auto& log = line_.text("--log");
  const bool has_log = log && std::filesystem::is_regular_file(*log, ignored);
  std::vector<io::NamedPath> inputs, targets;
  for (const char* name : {"--text", "--data", "--config"}) {
    if (line_.text(name)) inputs.push_back({name, *line_.text(name)});
  }
  const bool continues = resume && training::holds_run(out);  // it reads its own save
  if (!continues || !io::same_file(out, model.folder)) inputs.push_back({"--model", model.folder});
  std::vector<std::string> files = companions();
  files.insert(files.begin(), "config.json");
  for (const char* name : {training::state_file, "model.safetensors"}) {
    files.insert(files.begin(), {name, io::index_of(name).string()});
    for (const std::string& shard : training::shards_in(out, name)) {
      if (!shard.starts_with(".")) files.push_back(shard);
    }
  }
  for (const std::string& name : files) {
    if (out.empty()) break;
    targets.push_back({"--out", out / name});
    if (std::filesystem::is_directory(out / name, ignored)) {
      throw InputError("--out " + out.string() + ": holds a folder " + name + ", expected a file");
    }
    if (!std::filesystem::exists(out / name, ignored) || may_replace(out / name)) continue;
    throw InputError("--out " + out.string() + ": holds " + name +
                     (resume ? " and no run to continue; expected another folder or --overwrite"
                             : "; expected --resume to continue it or --overwrite to replace it"));
  }
  if (log) targets.push_back({"--log", *log});
  if (has_log && !resume && !overwrite) {
    throw InputError("--log " + *log +
                     ": exists; expected a new file, --resume to continue the run or --overwrite");
  }
  if (has_log && resume && !continues) {
    throw InputError("--log " + *log + ": exists, and " + out.string() +
                     " holds no run to continue; expected a new file");
  }
  io::check_distinct(targets, inputs);
}

}  // namespace katt::impl
