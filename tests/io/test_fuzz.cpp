// Damaged files of every format that the program reads, see fuzz.hpp and docs/troubleshooting.md:
//   test_io --gtest_filter=Fuzz.NAME [--seed N] [--count N] [--first N]

#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "drivers/driver.hpp"
#include "fuzz.hpp"
#include "io/hdf5/result_contents.hpp"
#include "io/hdf5/result_file.hpp"
#include "io/safetensors.hpp"
#include "plan/forecast.hpp"
#include "plan/plan.hpp"
#include "plan/sweep_file.hpp"
#include "plan/tuning.hpp"
#include "result_columns.hpp"
#include "tests/op/follows_inputs.hpp"

#if defined(KATT_ADDRESS_SANITIZER)
/// A damaged size makes HDF5 ask for more memory than there is, which it expects to be told.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
/// Some of HDF5's own error paths forget what they allocated.
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }
#endif

namespace katt::test::fuzz {
namespace {

/// Files through the whole program cost a millisecond or two each, those of a text less.
constexpr std::uint64_t few = 60;
constexpr std::uint64_t many = 400;

bool is_built(const std::vector<std::string>& ops) {
  std::set<std::string> built;
  for (const bench::Operator* op : registry().all()) built.insert(op->name());
  return std::ranges::all_of(ops, [&](const std::string& op) { return built.contains(op); });
}

#define SKIP_WITHOUT_MODEL()                                                      \
  if (!is_built({"attention", "rope", "rmsnorm", "swiglu", "linear", "embedding", \
                 "linear_cross_entropy"}))                                        \
  GTEST_SKIP() << "this build lacks operators of the model"

/// Runs `katt WORDS… --threads 1`.
int katt_command(std::vector<std::string> words) {
  words.insert(words.begin(), "katt");
  words.insert(words.end(), {"--threads", "1"});
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return driver_main(static_cast<int>(words.size()), pointers.data());
}

using Shape = std::vector<hsize_t>;

std::size_t count_of(const Shape& shape) {
  std::size_t count = 1;
  for (const hsize_t extent : shape) count *= extent;
  return count;
}

/// An HDF5 file in the making, one of the forms in which other programs write theirs.
class CaseBuilder : public Hdf5Builder {
 public:
  enum class Form { contiguous, compressed, chunked };

  CaseBuilder(const fs::path& path, Form form) : Hdf5Builder(path), form_(form) {
    text("dtype", form == Form::chunked ? "bf16" : "f32");
  }

  CaseBuilder& tensor(const std::string& name, const Shape& shape) {
    std::vector<float> values(count_of(shape));
    testing::fill(values, name.size(), Dtype::bf16);
    const auto layout = layout_of(shape);
    dataset(name, H5T_IEEE_F32LE, shape, H5T_NATIVE_FLOAT, values.data(), layout.get());
    return *this;
  }
  CaseBuilder& integers(const std::string& name, const Shape& shape) {
    std::vector<std::int64_t> values(count_of(shape));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i % 3);
    const auto layout = layout_of(shape);
    dataset(name, H5T_STD_I64LE, shape, H5T_NATIVE_INT64, values.data(), layout.get());
    return *this;
  }

 private:
  [[nodiscard]] io::impl::Handle layout_of(const Shape& shape) const {
    io::impl::Handle creation(H5Pcreate(H5P_DATASET_CREATE));
    if (form_ == Form::contiguous) return creation;
    Shape chunk(shape);
    for (hsize_t& extent : chunk) extent = std::max<hsize_t>(1, extent / 2);
    H5Pset_chunk(creation.get(), static_cast<int>(chunk.size()), chunk.data());
    if (form_ == Form::chunked) {
      H5Pset_fletcher32(creation.get());
    } else {
      H5Pset_shuffle(creation.get());
      H5Pset_deflate(creation.get(), 4);
    }
    return creation;
  }

  Form form_;
};

using Form = CaseBuilder::Form;

struct OperatorCase {
  const char* op;
  Form form;
  std::function<void(CaseBuilder&)> fill;
};

const std::vector<OperatorCase>& operator_cases() {
  static const std::vector<OperatorCase> cases{
      {"attention", Form::contiguous,
       [](CaseBuilder& file) {
         for (const char* name : {"q", "dout"}) file.tensor(name, {1, 2, 5, 8});
         for (const char* name : {"k", "v"}) file.tensor(name, {1, 1, 6, 8});
         file.integer("causal", 1);
         file.real("scale", 0.25);
       }},
      {"attention", Form::compressed,
       [](CaseBuilder& file) {
         file.tensor("q", {2, 2, 4, 8}).tensor("mask", {1, 1, 4, 4}).integers("kv_len", {2});
         for (const char* name : {"k", "v"}) file.tensor(name, {2, 2, 4, 8});
         file.integer("window_left", 2);
         file.real("softcap", 20);
       }},
      {"attention", Form::chunked,
       [](CaseBuilder& file) {
         for (const char* name : {"q", "k", "v"}) file.tensor(name, {1, 1, 4, 16});
         file.integers("block_mask", {2, 2});
         file.integer("block_size", 2);
       }},
      {"rope", Form::contiguous,
       [](CaseBuilder& file) {
         file.tensor("x", {1, 2, 3, 8}).tensor("dout", {1, 2, 3, 8}).integers("positions", {1, 3});
         file.real("theta", 10000);
         file.integer("interleaved", 0);
         file.text("rope_scaling", "llama3");
         file.real("rope_factor", 8);
         file.real("low_freq_factor", 1);
         file.real("high_freq_factor", 4);
         file.integer("original_max_position", 8192);
       }},
      {"rmsnorm", Form::contiguous,
       [](CaseBuilder& file) {
         for (const char* name : {"x", "residual", "dout"}) file.tensor(name, {3, 16});
         file.tensor("weight", {16}).real("eps", 1e-6);
       }},
      {"rmsnorm_linear", Form::chunked,
       [](CaseBuilder& file) {
         for (const char* name : {"x", "residual"}) file.tensor(name, {3, 16});
         file.tensor("norm_weight", {16}).tensor("weight", {4, 16}).tensor("dout", {3, 4});
         file.real("eps", 1e-6);
       }},
      {"swiglu", Form::compressed,
       [](CaseBuilder& file) {
         for (const char* name : {"gate", "up", "dout"}) file.tensor(name, {3, 10});
       }},
      {"swiglu_mlp", Form::contiguous,
       [](CaseBuilder& file) {
         file.tensor("x", {3, 8}).tensor("w_down", {8, 12}).tensor("dout", {3, 8});
         for (const char* name : {"w_gate", "w_up"}) file.tensor(name, {12, 8});
       }},
      {"linear", Form::chunked,
       [](CaseBuilder& file) {
         file.tensor("x", {3, 8})
             .tensor("weight", {4, 8})
             .tensor("bias", {4})
             .tensor("dout", {3, 4});
       }},
      {"cross_entropy", Form::contiguous,
       [](CaseBuilder& file) {
         file.tensor("logits", {3, 9}).integers("targets", {3});
       }},
      {"linear_cross_entropy", Form::compressed,
       [](CaseBuilder& file) {
         file.tensor("hidden", {3, 8}).tensor("weight", {9, 8}).integers("targets", {3});
       }},
      {"ternary_linear", Form::contiguous,
       [](CaseBuilder& file) {
         file.tensor("x", {3, 8}).tensor("weight", {4, 8});
       }},
      {"embedding", Form::contiguous, [](CaseBuilder& file) {
         file.tensor("weight", {9, 8}).integers("ids", {3}).tensor("dout", {3, 8});
       }}};
  return cases;
}

TEST(Fuzz, OperatorCase) {
  run(
      [](const fs::path& folder) {
        Format format{.file = folder / "case.h5", .valid = {}};
        for (const OperatorCase& one : operator_cases()) {
          if (!is_built({one.op})) continue;
          {
            CaseBuilder file(format.file, one.form);
            one.fill(file);
          }
          format.valid.push_back({read_bytes(format.file), [=, file = format.file] {
                                    return katt_command({"run", one.op, "--in", file, "--out",
                                                         folder / "out.h5", "--overwrite"});
                                  }});
        }
        return format;
      },
      few);
}

TEST(Fuzz, ResultFile) {
  run(
      [](const fs::path& folder) {
        Format format{.file = folder / "result.h5", .valid = {}};
        auto columns = some_columns();
        columns.push_back({"code", io::ColumnKind::text, 16, true});
        const auto coded = [](const std::string& point, const std::string& run,
                              std::size_t samples) {
          io::Row row = some_row(point, run, samples);
          row.cells.emplace_back("0a");
          return row;
        };
        const auto resume = [=, file = format.file] {
          return status_of([&] {
            auto result = io::ResultFile::resume(file, columns);
            result.commit_run({{"status", "running"}});
            result.commit_rows({coded("new", result.run(), 5)}, {{"0a", {{"a.hpp", "11"}}}});
          });
        };
        auto result = io::ResultFile::create(format.file, columns);
        result.commit_run({{"status", "done"}, {"cores", std::int64_t{2}}});
        result.commit_ceilings({{"fma_f32", 470e9, "FLOP/s", 2, 0}});
        format.valid.push_back({read_bytes(format.file), resume});
        result.commit_rows({coded("a", result.run(), 5), coded("b", result.run(), 20)});
        format.valid.push_back({read_bytes(format.file), resume});
        // and as a part of a sweep that is merged: read whole, written again
        auto row = coded("c", result.run(), 3);
        row.profile = {.runs = 2, .time_s = 0.5, .rows = {{"katt::rope", 0, 1, 0.25}}};
        result.commit_rows({row}, {{"0a", {{"a.hpp", "11"}, {"b.hpp", "22"}}}});
        const auto merge = [=, file = format.file, out = folder / "merged.h5"] {
          return status_of([&] { io::write_result(out, columns, io::read_result(file, columns)); });
        };
        format.valid.push_back({read_bytes(format.file), merge});
        return format;
      },
      few);
}

const std::string config_json = R"({
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "hidden_act": "silu",
  "vocab_size": 32,
  "hidden_size": 16,
  "intermediate_size": 24,
  "num_hidden_layers": 1,
  "num_attention_heads": 2,
  "num_key_value_heads": 1,
  "head_dim": 8,
  "max_position_embeddings": 64,
  "rms_norm_eps": 1e-05,
  "initializer_range": 0.02,
  "attention_bias": false,
  "mlp_bias": false,
  "tie_word_embeddings": false,
  "rope_theta": 500000.0,
  "rope_scaling": {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3"
  },
  "eos_token_id": 2
}
)";

/// A folder with config.json: a model with random parameters.
fs::path random_model(const fs::path& folder) {
  fs::create_directories(folder / "random");
  write_bytes(folder / "random" / "config.json", config_json);
  return folder / "random";
}

/// `katt train` for a step, with what is added.
int train(const fs::path& model, const fs::path& data, const std::vector<std::string>& added) {
  std::vector<std::string> words{"train", "--model", model, "--data", data, "--steps",
                                 "1",     "--batch", "1",   "--seq",  "4"};
  words.insert(words.end(), added.begin(), added.end());
  return katt_command(words);
}

fs::path training_data(const fs::path& path, Form form) {
  CaseBuilder(path, form).integers("tokens", {40});
  return path;
}

/// A folder with config.json and model.safetensors, as `katt train --out` leaves them, and the
/// training state.
fs::path trained_model(const fs::path& folder) {
  const fs::path model = folder / "model";
  const fs::path data = training_data(folder / "tokens.h5", Form::contiguous);
  if (train(random_model(folder), data, {"--out", model}) != 0) {
    throw std::runtime_error("cannot train a model");
  }
  return model;
}

/// The files of trained_model() agree with one another; the folder stands for them all.
const std::vector<std::string> model_files{"/files/model", "config.json"};

int logits(const fs::path& model) {
  return katt_command({"logits", "--model", model, "--tokens", "1,2,3", "--out",
                       model.parent_path() / "out.h5", "--overwrite"});
}

TEST(Fuzz, TrainingData) {
  SKIP_WITHOUT_MODEL();
  run(
      [](const fs::path& folder) {
        Format format{.file = folder / "tokens.h5", .valid = {}};
        const fs::path model = random_model(folder);
        for (const Form form : {Form::contiguous, Form::compressed, Form::chunked}) {
          format.valid.push_back({read_bytes(training_data(format.file, form)),
                                  [=, file = format.file] { return train(model, file, {}); }});
        }
        return format;
      },
      few);
}

TEST(Fuzz, Safetensors) {
  SKIP_WITHOUT_MODEL();
  run(
      [](const fs::path& folder) {
        const fs::path model = trained_model(folder);
        const fs::path file = model / "model.safetensors";
        return Format{.file = file,
                      .damage = damage_header,
                      .valid = {{read_bytes(file), [=] { return logits(model); }}},
                      .companions = model_files};
      },
      few);
}

TEST(Fuzz, TrainingState) {
  SKIP_WITHOUT_MODEL();
  run(
      [](const fs::path& folder) {
        const fs::path out = trained_model(folder);
        const fs::path file = out / "training_state.safetensors";
        const auto go_on = [=] {
          return train(folder / "random", folder / "tokens.h5", {"--out", out, "--resume"});
        };
        return Format{.file = file, .damage = damage_header, .valid = {{read_bytes(file), go_on}}};
      },
      few);
}

TEST(Fuzz, ModelConfig) {
  SKIP_WITHOUT_MODEL();
  run(
      [](const fs::path& folder) {
        const fs::path model = trained_model(folder);
        const fs::path file = model / "config.json";
        const auto forecast = [=] {
          return katt_command({"memory", "--model", model, "--batch", "1", "--seq", "16"});
        };
        const auto run_it = [=] { return logits(model); };
        return Format{.file = file,
                      .damage = damage_text,
                      .valid = {{config_json, run_it}, {config_json, forecast}},
                      .companions = model_files};
      },
      few);
}

TEST(Fuzz, ShardIndex) {
  SKIP_WITHOUT_MODEL();
  run(
      [](const fs::path& folder) {
        const fs::path model = trained_model(folder);
        const io::Safetensors whole(model);
        std::string map;
        for (const std::string& name : whole.names()) {
          map += (map.empty() ? "\n    \"" : ",\n    \"") + name + "\": \"shard-1.safetensors\"";
        }
        const fs::path file = model / "model.safetensors.index.json";
        fs::rename(model / "model.safetensors", model / "shard-1.safetensors");
        const std::string index =
            "{\n  \"metadata\": {\"total_size\": 1},\n  \"weight_map\": {" + map + "\n  }\n}\n";
        return Format{.file = file,
                      .damage = damage_text,
                      .valid = {{index, [=] { return logits(model); }}},
                      .companions = model_files};
      },
      few);
}

TEST(Fuzz, SweepFile) {
  run(
      [](const fs::path& folder) {
        Format format{.file = folder / "sweep.toml", .damage = damage_text, .valid = {}};
        const auto plan = [file = format.file] {
          return status_of([&] {
            const bench::SweepRequest request = bench::read_sweep_file(file, registry());
            bench::check_memory(bench::plan_cases(request.entries, request.settings.seed));
          });
        };
        const std::string op = registry().all().front()->name();
        format.valid.push_back(
            {"op = \"" + op + "\"\nrounds = 9\ndtype = [\"f32\", \"bf16\"]\n", plan});
        if (is_built({"attention", "rmsnorm"})) {
          format.valid.push_back({R"(title = "all that a file may hold"
description = """
two lines
"""
budget_s = 0.05
seed = 3
cold = true
dtype = ["f32", "bf16"]

[axes]
variant = ["naive", "flash"]

[[sweep]]
op = "attention"
label = "sizes"
seq = "128:1024:x2"
heads = 4
kv_heads = 2
head_dim = [32, 64]
causal = [0, 1]
softcap = [0.0, 20.0]
tile = "64x64,auto"

[[sweep]]
op = "rmsnorm"
tokens = "8:32:+8"
hidden = 256
variant = "naive"
)",
                                  plan});
        }
        return format;
      },
      many);
}

TEST(Fuzz, TuningFile) {
  run(
      [](const fs::path& folder) {
        bench::Tuning tuning;
        for (const std::int64_t size : {128, 1024}) {
          bench::TunedTile tile;
          tile.op = "attention";
          tile.pass = "forward";
          tile.variant = "flash";
          tile.device = "a processor";
          tile.threads = 2;
          tile.axes = {{"seq_q", size}, {"scale", 0.5}, {"order", std::string("rows")}};
          tile.tile = {64, 64};
          tile.usual = {32, 64};
          tile.time_s = {.median = 1e-3, .lo = 1e-3, .hi = 1e-3};
          tuning.put(tile);
        }
        const fs::path file = folder / "tuning.json";
        const auto read = [=] {
          return status_of([&] { (void)bench::Tuning::read(file).json(); });
        };
        return Format{.file = file, .damage = damage_text, .valid = {{tuning.json(), read}}};
      },
      many);
}

}  // namespace
}  // namespace katt::test::fuzz
