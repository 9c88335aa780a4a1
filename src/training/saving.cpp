#include "training/saving.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "core/error.hpp"
#include "core/execution.hpp"
#include "io/atomic_file.hpp"
#include "memory/transfer.hpp"
#include "training/state_file.hpp"

namespace katt::training {

namespace {

namespace fs = std::filesystem;

constexpr const char* model_file = "model.safetensors";
constexpr std::int64_t shard_bytes = std::int64_t{2} << 30;
/// Number of elements that are sent, or read, at a time.
constexpr std::int64_t chunk_elements = std::int64_t{1} << 20;

std::string stem_of(const std::string& file) { return fs::path(file).stem().string(); }

std::byte* address(const StateArray& array, std::int64_t element) {
  return array.data + static_cast<std::size_t>(element) * size_of(array.dtype);
}

/// A tensor of the model and the rank that writes it.
struct OwnedTensor {
  int stage = 0;
  std::size_t index = 0;  ///< in the layout of the stage
  int writer = 0;
};

/// Some rows of a tensor of an array.
struct Chunk {
  const StateArray* array = nullptr;
  OwnedTensor tensor;
  std::int64_t first_row = 0, rows = 0;
};

/// The writer of each tensor, as every rank computes it for itself.
class Plan {
 public:
  Plan(const RunArrays& run, int shards) : layout_(run.options.groups.place.layout) {
    for (int stage = 0; stage < layout_.pipeline; ++stage) {
      for (int tensor = 0; tensor < layout_.tensor; ++tensor) {
        ranks::Place place;
        place.layout = layout_;
        place.stage = stage;
        place.tensor = tensor;
        parts_.emplace_back(run.config, nn::Slice(run.config, place));
      }
    }
    share_out(shards);
    for (const int writer : writers_) chunks_[writer] = chunks_of(run, writer);
  }

  /// Ranks that write, in the order of their shards; rank 0 is the first.
  [[nodiscard]] const std::vector<int>& writers() const { return writers_; }
  [[nodiscard]] const std::vector<OwnedTensor>& tensors() const { return tensors_; }
  [[nodiscard]] bool writes(int rank) const { return chunks_.contains(rank); }
  /// The tensors of a writer, in the order of its files.
  [[nodiscard]] const std::vector<Chunk>& chunks(int writer) const { return chunks_.at(writer); }
  [[nodiscard]] std::size_t rounds() const {
    std::size_t most = 0;
    for (const auto& [writer, chunks] : chunks_) most = std::max(most, chunks.size());
    return most;
  }

  [[nodiscard]] const nn::ParameterLayout& part(const ranks::Place& place) const {
    return parts_[static_cast<std::size_t>(place.stage * layout_.tensor + place.tensor)];
  }
  [[nodiscard]] const nn::Parameter& parameter(const OwnedTensor& tensor, int tensor_rank) const {
    ranks::Place place;
    place.stage = tensor.stage;
    place.tensor = tensor_rank;
    return part(place).parameters()[tensor.index];
  }

  /// The elements of its flat arrays that a rank sends to the writer of a chunk. When several ranks
  /// hold them, the rank at the writer's place sends.
  [[nodiscard]] std::vector<Piece> sent(const Chunk& chunk, const ranks::Place& place,
                                        const Sharing& sharing) const {
    const ranks::Place writer(layout_, chunk.tensor.writer);
    if (place.stage != chunk.tensor.stage) return {};
    if (!chunk.array->is_cut && place.replica() != writer.replica()) return {};
    const nn::Parameter& parameter = this->parameter(chunk.tensor, place.tensor);
    if (parameter.axis < 0 && place.tensor != writer.tensor) return {};
    std::int64_t first = chunk.first_row, last = chunk.first_row + chunk.rows;
    if (parameter.axis == 0) {
      first = std::clamp<std::int64_t>(first - parameter.begin, 0, parameter.shape[0]);
      last = std::clamp<std::int64_t>(last - parameter.begin, 0, parameter.shape[0]);
    }
    const std::int64_t columns = parameter.shape.size() == 1 ? 1 : parameter.shape[1];
    const ranks::Part range{parameter.offset + first * columns, (last - first) * columns};
    if (range.count == 0) return {};
    if (!chunk.array->is_cut) return {{range.begin, range.count, range.begin}};
    return sharing.pieces_of(range);
  }

 private:
  void share_out(int shards) {
    const int ranks = layout_.ranks();
    std::vector<std::pair<int, std::int64_t>> writers;  // and the bytes for each to write
    for (int k = 0; k < shards; ++k) {
      writers.emplace_back(static_cast<int>(std::int64_t{k} * ranks / shards), 0);
    }
    for (int stage = 0; stage < layout_.pipeline; ++stage) {
      // The writers of the stage, or all writers when it has none.
      std::vector<std::pair<int, std::int64_t>*> near, all;
      for (auto& writer : writers) {
        all.push_back(&writer);
        if (ranks::Place(layout_, writer.first).stage == stage) near.push_back(&writer);
      }
      const auto& candidates = near.empty() ? all : near;
      ranks::Place place;
      place.stage = stage;
      const auto& parameters = part(place).parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        if (parameters[i].is_copy) continue;
        auto* const writer = *std::ranges::min_element(
            candidates, {}, [](const auto* candidate) { return candidate->second; });
        writer->second += parameters[i].whole_size();
        tensors_.push_back({stage, i, writer->first});
      }
    }
    for (const auto& [rank, elements] : writers) {
      if (elements > 0) writers_.push_back(rank);
    }
  }

  [[nodiscard]] std::vector<Chunk> chunks_of(const RunArrays& run, int writer) const {
    std::vector<Chunk> chunks;
    for (const StateArray& array : run.arrays) {
      for (const OwnedTensor& tensor : tensors_) {
        if (tensor.writer != writer) continue;
        const nn::Parameter& whole = parameter(tensor, 0);
        const std::int64_t columns = whole.whole_size() / whole.whole[0];
        const std::int64_t most = std::max<std::int64_t>(1, chunk_elements / columns);
        for (std::int64_t row = 0; row < whole.whole[0]; row += most) {
          chunks.push_back({&array, tensor, row, std::min(most, whole.whole[0] - row)});
        }
      }
    }
    return chunks;
  }

  ranks::Layout layout_;
  std::vector<nn::ParameterLayout> parts_;  ///< by stage, then tensor rank
  std::vector<OwnedTensor> tensors_;        ///< tensors of the model, in order
  std::vector<int> writers_;
  std::map<int, std::vector<Chunk>> chunks_;
};

/// The names of a save's files: "model-step20-00001-of-00004.safetensors", or the plain name of the
/// only one.
class Names {
 public:
  Names(const Plan& plan, std::string tag) : writers_(plan.writers()), tag_(std::move(tag)) {}

  [[nodiscard]] std::string of(const char* file, int writer) const {
    if (writers_.size() == 1) return file;
    const auto five = [](std::ptrdiff_t n) {
      const std::string digits = std::to_string(n);
      return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
    };
    const std::ptrdiff_t at = std::ranges::find(writers_, writer) - writers_.begin();
    return stem_of(file) + "-" + tag_ + "-" + five(at + 1) + "-of-" + five(std::ssize(writers_)) +
           ".safetensors";
  }
  [[nodiscard]] std::set<std::string> all(const char* file) const {
    std::set<std::string> names;
    for (const int writer : writers_) names.insert(of(file, writer));
    return names;
  }

 private:
  const std::vector<int>& writers_;
  std::string tag_;
};

/// "step20", or "step20-2" when shards of that name exist already.
std::string unused_tag(const fs::path& folder, std::int64_t step) {
  const auto is_used = [&](const std::string& tag) {
    std::error_code ignored;
    return std::ranges::any_of(fs::directory_iterator(folder, ignored), [&](const auto& entry) {
      return entry.path().filename().string().starts_with(stem_of(model_file) + "-" + tag + "-0");
    });
  };
  const std::string plain = "step" + std::to_string(step);
  std::string tag = plain;
  for (int again = 2; is_used(tag); ++again) tag = plain + "-" + std::to_string(again);
  return tag;
}

/// Removes the files that the new files have replaced: the index or the single file, and shards,
/// also the temporaries of a killed save.
void remove_replaced(const fs::path& folder, const std::string& file,
                     const std::set<std::string>& kept) {
  std::error_code ignored;
  fs::remove(kept.contains(file) ? io::index_of(folder / file) : folder / file, ignored);
  for (const std::string& name : shards_in(folder, file)) {
    if (!kept.contains(name)) fs::remove(folder / name, ignored);
  }
}

/// Removes the file of another model, which is replaced: a kill must not leave it beside these
/// parameters.
void remove_other(const fs::path& config, const std::string& text) {
  std::ifstream file(config, std::ios::binary);
  if (!file) return;
  const std::string held{std::istreambuf_iterator<char>(file), {}};
  if (held != text) fs::remove(config);
}

/// The two files of a rank that writes.
struct Shards {
  io::SafetensorsWriter model, state;
};

/// The writing side of a rank. After a failure it still takes part; all learn of it in agree().
class Own {
 public:
  template <class Function>
  void attempt(const Function& function) {
    if (!failure_.empty()) return;
    try {
      function();
    } catch (const std::exception& error) {
      failure_ = *error.what() != '\0' ? error.what() : "a save failed";
      shards.reset();
    }
  }
  /// Throws SaveError on all ranks when any of them has failed.
  void agree(const ranks::Communicator& ranks) const {
    const std::vector<double> failed = ranks.gather(failure_.empty() ? 0 : 1);
    const auto first = std::ranges::find(failed, 1.0);
    if (first == failed.end()) return;
    const std::string reason =
        ranks.broadcast_text(failure_, static_cast<int>(first - failed.begin()));
    throw SaveError(reason, !ranks.broadcast_text(has_state ? "1" : "", 0).empty());
  }

  std::optional<Shards> shards;  ///< empty when the rank writes nothing, or has failed
  bool has_state = false;        ///< on the first rank: a run continues from the new state

 private:
  std::string failure_;
};

std::vector<io::SafetensorsTensor> owned_tensors(const Plan& plan, int writer,
                                                 const std::string& prefix) {
  std::vector<io::SafetensorsTensor> tensors;
  for (const OwnedTensor& tensor : plan.tensors()) {
    if (tensor.writer != writer) continue;
    const nn::Parameter& parameter = plan.parameter(tensor, 0);
    tensors.push_back({.name = prefix + parameter.name, .shape = parameter.whole, .values = {}});
  }
  return tensors;
}

/// This rank's files, and the contents to append to the state.
Shards open_shards(const fs::path& folder, const RunArrays& run, const Plan& plan,
                   const Names& names, const StateContents& contents) {
  const int rank = run.options.groups.all.rank();
  std::vector<io::SafetensorsTensor> tensors;
  for (const StateArray& array : run.arrays) {
    for (auto& tensor : owned_tensors(plan, rank, array.prefix)) tensors.push_back(tensor);
  }
  for (const auto& [name, values] : contents.tensors) {
    tensors.push_back({.name = name, .shape = {std::ssize(values)}, .values = {}});
  }
  return {{folder / names.of(model_file, rank), owned_tensors(plan, rank, ""), {{"format", "pt"}}},
          {folder / names.of(state_file, rank), tensors, contents.metadata}};
}

/// Writes the index of the shards of a file that holds every tensor of the model once for each
/// array, and further tensors.
void write_index(const fs::path& path, const Plan& plan, const Names& names,
                 std::span<const StateArray> arrays,
                 const std::map<std::string, std::vector<float>>& further = {}) {
  const std::string file = path.filename().string();
  std::map<std::string, std::string> files;
  std::int64_t elements = 0;
  for (const OwnedTensor& tensor : plan.tensors()) {
    const nn::Parameter& parameter = plan.parameter(tensor, 0);
    for (const StateArray& array : arrays) {
      elements += parameter.whole_size();
      files[array.prefix + parameter.name] = names.of(file.c_str(), tensor.writer);
    }
  }
  for (const auto& [name, values] : further) {
    elements += std::ssize(values);
    files[name] = names.of(file.c_str(), plan.writers().front());
  }
  io::write_safetensors_index(io::index_of(path), files, elements * std::int64_t{sizeof(float)});
}

/// Passes the parts of tensors to the ranks that write them.
template <class Exec>
class Exchange {
 public:
  Exchange(const Exec& exec, const RunArrays& run, const Plan& plan)
      : run_(run), plan_(plan), ranks_(run.options.groups.all), transfer_(exec) {}

  /// Moves the chunks that the writers write next.
  void round(std::size_t round, Own& own) {
    std::vector<std::vector<float>> sent;
    std::vector<ranks::Request> requests;
    for (const int writer : plan_.writers()) {
      if (writer == ranks_.rank() || round >= plan_.chunks(writer).size()) continue;
      std::vector<float> values = pack(plan_.chunks(writer)[round]);
      if (values.empty()) continue;
      sent.push_back(std::move(values));
      requests.push_back(ranks_.send(serial_host(), tensor(sent.back()), writer));
    }
    if (plan_.writes(ranks_.rank()) && round < plan_.chunks(ranks_.rank()).size()) {
      write(plan_.chunks(ranks_.rank())[round], own);
    }
    for (ranks::Request& request : requests) request.wait();
  }

 private:
  static TensorRef<1> tensor(std::vector<float>& values) {
    return {values.data(), Dtype::f32, {std::ssize(values)}};
  }

  std::vector<float> pack(const Chunk& chunk) {
    std::vector<float> values;
    for (const Piece& piece : plan_.sent(chunk, run_.options.groups.place, run_.sharing)) {
      const std::size_t at = values.size();
      values.resize(at + static_cast<std::size_t>(piece.count));
      nn::read_elements(transfer_, address(*chunk.array, piece.state), chunk.array->dtype,
                        std::span(values).subspan(at));
    }
    return values;
  }

  void write(const Chunk& chunk, Own& own) {
    const nn::Parameter& whole = plan_.parameter(chunk.tensor, 0);
    const std::int64_t columns = whole.whole_size() / whole.whole[0];
    std::vector<float> values(static_cast<std::size_t>(chunk.rows * columns));
    for (const Source& source : sources(chunk.tensor.stage)) {
      const std::vector<Piece> pieces = plan_.sent(chunk, source.place, source.sharing);
      if (pieces.empty()) continue;
      std::vector<float> part;
      if (source.rank == ranks_.rank()) {
        part = pack(chunk);
      } else {
        std::int64_t count = 0;
        for (const Piece& piece : pieces) count += piece.count;
        part.resize(static_cast<std::size_t>(count));
        ranks_.recv(serial_host(), tensor(part), source.rank).wait();
      }
      const nn::Parameter& parameter = plan_.parameter(chunk.tensor, source.place.tensor);
      auto from = part.begin();
      for (const Piece& piece : pieces) {
        for (std::int64_t i = 0; i < piece.count; ++i) {
          const std::int64_t to = parameter.whole_index(piece.begin + i - parameter.offset);
          values[static_cast<std::size_t>(to - chunk.first_row * columns)] = *from++;
        }
      }
    }
    own.attempt([&] {
      if (chunk.array == run_.arrays.data()) own.shards->model.append(values);
      own.shards->state.append(values);
    });
  }

  /// The ranks of a stage, and how each shares its arrays.
  struct Source {
    int rank;
    ranks::Place place;
    Sharing sharing;
  };
  const std::vector<Source>& sources(int stage) {
    auto [at, is_new] = sources_.try_emplace(stage);
    if (!is_new) return at->second;
    const ranks::Layout& layout = run_.options.groups.place.layout;
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      const ranks::Place place(layout, rank);
      if (place.stage != stage) continue;
      at->second.push_back(
          {rank, place, Sharing(plan_.part(place).size(), place, run_.options.bucket)});
    }
    return at->second;
  }

  const RunArrays& run_;
  const Plan& plan_;
  const ranks::Communicator& ranks_;
  memory::Transfer<Exec> transfer_;
  std::map<int, std::vector<Source>> sources_;
};

}  // namespace

int suggested_shards(const nn::LlamaConfig& config, int ranks) {
  const std::int64_t bytes = nn::ParameterLayout(config).count() * std::int64_t{sizeof(float)};
  return static_cast<int>(
      std::clamp<std::int64_t>((bytes + shard_bytes - 1) / shard_bytes, 1, ranks));
}

template <class Exec>
void write_run(const Exec& exec, const fs::path& folder, const RunArrays& run,
               const TrainingState& state, int shards) {
  const ranks::Communicator& ranks = run.options.groups.all;
  const bool is_first = ranks.rank() == 0;
  const Plan plan(run, shards > 0 ? shards : suggested_shards(run.config, ranks.size()));
  const Names names(
      plan, ranks.broadcast_text(is_first ? unused_tag(folder, std::ssize(state.log)) : "", 0));
  StateContents contents = contents_of(run.config, run.options, state);
  if (!is_first) contents.tensors.clear();  // the first shard has them
  const bool writes = plan.writes(ranks.rank());
  Own own;
  if (writes) {
    own.attempt([&] { own.shards = open_shards(folder, run, plan, names, contents); });
  }
  Exchange<Exec> exchange(exec, run, plan);
  for (std::size_t round = 0; round < plan.rounds(); ++round) exchange.round(round, own);
  if (writes) {
    own.attempt([&] {
      for (const auto& [name, values] : contents.tensors) own.shards->state.append(values);
    });
  }
  own.agree(ranks);  // before any reader sees a part
  const bool is_sharded = plan.writers().size() > 1;
  if (writes) {
    own.attempt([&] {
      own.shards->state.commit();
      if (is_sharded) own.shards->model.commit();  // no index names it yet
    });
  }
  own.agree(ranks);
  if (is_first) {
    own.attempt([&] {
      const fs::path config = folder / "config.json", model = folder / model_file;
      const std::string text = nn::config_json_f32(run.config);
      if (is_sharded) write_index(folder / state_file, plan, names, run.arrays, contents.tensors);
      remove_replaced(folder, state_file, names.all(state_file));
      own.has_state = true;
      remove_other(config, text);
      const std::array<StateArray, 1> parameters{};
      if (is_sharded) write_index(model, plan, names, parameters);
      else own.shards->model.commit();
      remove_replaced(folder, model_file, names.all(model_file));
      io::write_file(config, text);
    });
  }
  own.agree(ranks);
}

template <class Exec>
TrainingState read_run(const Exec& exec, const fs::path& folder, const RunArrays& run) {
  const fs::path path = folder / state_file;
  const io::Safetensors file(path);
  TrainingState state = state_of(path, file, run.config, run.options);
  memory::Transfer<Exec> transfer(exec);
  std::vector<float> values;
  for (const StateArray& array : run.arrays) {
    for (const nn::Parameter& parameter : run.layout.parameters()) {
      const ranks::Part all{parameter.offset, parameter.size()};
      const std::vector<Piece> pieces = array.is_cut
                                            ? run.sharing.pieces_of(all)
                                            : std::vector<Piece>{{all.begin, all.count, all.begin}};
      for (const Piece& piece : pieces) {
        for (std::int64_t done = 0; done < piece.count; done += chunk_elements) {
          values.resize(static_cast<std::size_t>(std::min(chunk_elements, piece.count - done)));
          nn::read_part(file, array.prefix, parameter, piece.begin + done - parameter.offset,
                        values);
          nn::write_elements(transfer, values, array.dtype, address(array, piece.state + done));
        }
      }
    }
  }
  transfer.wait();
  return state;
}

#define KATT_INSTANTIATE_SAVING(Exec)                                           \
  template void write_run<Exec>(const Exec&, const fs::path&, const RunArrays&, \
                                const TrainingState&, int);                     \
  template TrainingState read_run<Exec>(const Exec&, const fs::path&, const RunArrays&);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_SAVING)

}  // namespace katt::training
