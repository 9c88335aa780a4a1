#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "core/text.hpp"

namespace katt::bench {
namespace {

/// Words for one thing: the names of this program, the likeliest first, and the names of other
/// programs. Both lists are without case, dashes and underscores.
struct Meaning {
  std::string_view ours;
  std::string_view others;
};

constexpr std::array meanings{
    // axes
    Meaning{"seq seqq maxnewtokens tokens",
            "s n seq seqs sequence sequences length len sequencelength seqlen seqlength "
            "contextlength contextlen "
            "maxseqlen maxseqlength maxlength maxsequencelength nctx ctx context positions "
            "promptlength"},
    Meaning{"seqq seq tokens", "q sq queries qlen querylen querylength seqlenq"},
    Meaning{"seqkv", "skv keys kvseq klen keylength kvlength seqlenk seqlenkv cachelength"},
    Meaning{"tokens seq batch", "tokens ntokens numtokens rows m"},
    Meaning{"batch tokens", "b bs bsz batch batchsize batches nbatch minibatch microbatchsize"},
    Meaning{
        "heads",
        "numheads nheads nhead attentionheads numattentionheads qheads numqheads queryheads hq"},
    Meaning{"kvheads",
            "numkvheads nkvheads nheadkv nheadskv keyvalueheads numkeyvalueheads hkv gqa groups "
            "numgroups"},
    Meaning{"headdim hidden", "d dim headsize dhead dimhead headdimension hdim dk kvchannels"},
    Meaning{"hidden infeatures headdim",
            "hiddensize hiddendim hiddenstates dmodel modeldim nembd embeddim embeddingdim width "
            "features channels "
            "normalizedshape cols columns"},
    Meaning{
        "intermediate outfeatures",
        "intermediatesize intermediatedim ffn ffndim dff dffn mlpdim feedforward ffnhiddensize"},
    Meaning{"vocab", "vocabsize nvocab vocabulary vocabularysize classes numclasses nclasses"},
    Meaning{"infeatures hidden", "k in indim inputdim inputsize infeature"},
    Meaning{"outfeatures", "outdim outputdim outputsize outfeature"},
    Meaning{"layers", "numlayers nlayer nlayers numhiddenlayers depth blocks"},
    Meaning{"causal", "iscausal causalmask causalmasking autoregressive"},
    Meaning{"bias causal", "mask attnmask attentionmask additivemask"},
    Meaning{"window windowleft", "slidingwindow windowsize localwindow swa"},
    Meaning{"softcap", "cap logitcap logitssoftcap logitsoftcapping softcapping"},
    Meaning{"messagesize", "bytes size nbytes messagebytes"},
    Meaning{"eps", "epsilon layernormeps rmsnormeps normeps"},
    // options of many commands
    Meaning{"dtype",
            "precision type types datatype torchdtype elementtype fp dtypes bf16 fp16 fp32"},
    Meaning{"threads",
            "t j jobs cores ncores cpus numthreads nthreads threadcount workers ompnumthreads"},
    Meaning{"backend", "executionspace space platform target accelerator gpu cuda cpu openmp"},
    Meaning{"device", "gpuid deviceid cudadevice"},
    Meaning{"pass", "mode direction phase backward forward bwd fwd grad passes"},
    Meaning{"variant",
            "kernel kernels impl implementation algorithm algo method engine variants provider"},
    Meaning{"peer",
            "peers compare comparewith against versus vs library libraries baseline reference "
            "torch pytorch"},
    Meaning{"tile", "tiles tiling tilesize tileshape"},
    Meaning{"tileq tile", "blockm blockq br"},
    Meaning{"tilekv tile", "blockn blockk blockkv bc"},
    Meaning{"output out log",
            "o output outputs outputfile outfile out file result results save dest destination to"},
    Meaning{"overwrite", "f force replace clobber"},
    Meaning{"resume", "continue restart append"},
    Meaning{"rounds steps",
            "n iterations iters iter niter niters repeat repeats repetitions reps runs samples "
            "trials count"},
    Meaning{"budgets", "time timeout seconds duration maxtime mintime timelimit budget warmup"},
    Meaning{"cold", "flush flushcache coldcache nocache clearcache"},
    Meaning{"seed", "randomseed rng rngseed manualseed"},
    Meaning{"profile", "trace profiler timing timings"},
    Meaning{"dryrun", "plan simulate preview norun"},
    Meaning{"json", "format outputformat asjson"},
    Meaning{"isolate", "sandbox subprocess"},
    Meaning{"all", "full long everything"},
    Meaning{"measure", "ceilings ceiling peaks benchmark"},
    Meaning{"help", "usage"},
    // models
    Meaning{"model",
            "m modelpath modeldir modelname weights ckpt pretrained checkpointpath nameorpath"},
    Meaning{"tokens text", "prompt inputids ids tokenids prompttokens input"},
    Meaning{"maxnewtokens", "maxtokens newtokens numpredict npredict maxgenlen maxlen"},
    Meaning{"temperature", "temp"},
    Meaning{"lr", "learningrate learnrate stepsize eta alpha"},
    Meaning{"steps", "epochs epoch nsteps maxsteps numsteps trainsteps maxiters numepochs"},
    Meaning{"accumulation",
            "gradaccum gradientaccumulation gradientaccumulationsteps gradaccumulationsteps "
            "accumsteps accum"},
    Meaning{"checkpoint",
            "gradientcheckpointing activationcheckpointing recompute recomputation remat"},
    Meaning{"weightdecay", "wd decay l2"},
    Meaning{"clip", "gradclip maxgradnorm clipnorm gradientclipping clipgradnorm maxnorm"},
    Meaning{"data text in", "dataset corpus trainfile datafile trainingdata"},
    Meaning{"in", "i input inputs inputfile case"},
    Meaning{"log", "logfile logs history metrics csv"},
    Meaning{"saveevery", "savesteps saveinterval checkpointevery saveinterval"},
    Meaning{"tensor", "tp tensorparallel tpsize tensormodelparallelsize tensorparallelsize"},
    Meaning{"pipeline", "pp pipelineparallel pipelineparallelsize stages"},
    Meaning{"context", "cp contextparallel contextparallelsize"},
    Meaning{"microbatches", "mbs nmicrobatches nummicrobatches"},
    Meaning{"ranks", "np nproc nprocs worldsize gpus nodes"},
    Meaning{"zero", "fsdp ddp zerostage"},
    // keys of a sweep file
    Meaning{"op", "operator kernel name function operation"},
    Meaning{"sweep", "sweeps sweepes experiment case cases"},
    Meaning{"axes", "axis params parameters defaults settings"},
    // commands
    Meaning{"sweep", "bench benchmark measure profile perf time compare"},
    Meaning{"run", "exec execute eval evaluate apply call"},
    Meaning{"tune", "autotune autotuning optimize optimise search"},
    Meaning{"info", "list ls devices status about show env doctor ops operators"},
    Meaning{"generate", "infer inference chat complete predict sample decode"},
    Meaning{"train", "finetune fit pretrain learn training"},
    Meaning{"logits", "forward score"},
    Meaning{"memory", "mem estimate vram footprint"},
    Meaning{"merge", "join combine concat concatenate cat gather"},
    // operators
    Meaning{"attention",
            "attn mha gqa mqa sdpa selfattention multiheadattention scaleddotproductattention "
            "flashattention flash"},
    Meaning{"rope", "rotary rotaryembedding rotarypositionembedding"},
    Meaning{"rmsnorm layernorm", "norm normalization"},
    Meaning{"layernorm", "ln"},
    Meaning{"linear", "matmul mm gemm dense fc fullyconnected addmm"},
    Meaning{"swiglu", "silu glu siluandmul gelu activation"},
    Meaning{"swiglumlp", "mlp ffn feedforward"},
    Meaning{"crossentropy", "ce xent loss nll nllloss crossentropyloss"},
    Meaning{"linearcrossentropy", "fusedlinearcrossentropy flce lce"},
    Meaning{"ternarylinear", "bitnet bitlinear ternary"},
    Meaning{"convert", "cast convertdtype quantize"},
    Meaning{"llamablock", "block layer transformerblock transformerlayer llama decoderlayer"},
    Meaning{"embedding", "embed gather lookup"},
    Meaning{"sendrecv", "p2p pingpong"},
    // variants, peers, passes, backends
    Meaning{
        "flash fused",
        "fa fa2 flash2 flashattention flashattention2 fused flash tiled optimized optimised fast"},
    Meaning{"naive", "ref reference baseline standard math unfused vanilla simple"},
    Meaning{"flashamx amx", "amx"},
    Meaning{"flashmma", "mma tensorcore tensorcores"},
    Meaning{"flashwgmma", "wgmma fa3 flashattention3 hopper"},
    Meaning{"decode", "flashdecoding splitkv splitk paged"},
    Meaning{"auto", "best fastest default any"},
    Meaning{"torchflash torcheager", "torch pytorch sdpa flash flashattention torchsdpa"},
    Meaning{"torcheager", "eager torchnaive"},
    Meaning{"torchcompile", "compile inductor compiled torchcompiled"},
    Meaning{"torchflex", "flex flexattention"},
    Meaning{"onednn", "mkldnn dnnl"},
    Meaning{"forward", "fwd fw inference"},
    Meaning{"backward", "bwd bw grad gradient backprop"},
    Meaning{"cuda", "gpu nvidia"},
    Meaning{"openmp", "cpu omp host"},
    Meaning{"serial", "single sequential"},
};

/// "--Seq_Len" → "seqlen".
std::string plain_form(std::string_view word) {
  std::string key;
  for (const char c : word) {
    if (c != '-' && c != '_') key += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return key;
}

bool holds(std::string_view list, std::string_view word) {
  const auto words = split(list, ' ');
  return std::ranges::find(words, word) != words.end();
}

/// "--kv_heads" → {"kv", "heads"}.
std::vector<std::string> parts_of(std::string_view word) {
  std::string text(word);
  std::ranges::replace(text, '-', '_');
  auto parts = split(text, '_');
  std::erase(parts, "");
  return parts;
}

/// Edits from one word to another: a letter put in, left out, changed, or two swapped (Damerau and
/// Levenshtein, each pair swapped once).
std::size_t edits_between(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before, last, row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] =
          std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

/// The known word that means the same.
std::vector<std::string> of_the_meaning(const std::string& key,
                                        std::span<const std::string> known) {
  for (const Meaning& meaning : meanings) {
    if (!holds(meaning.others, key)) continue;
    for (const std::string& ours : split(meaning.ours, ' ')) {
      const auto found = std::ranges::find(known, ours, plain_form);
      if (found != known.end()) return {*found};
    }
  }
  return {};
}

/// The known words that are a part of this one, "batch" of "batch_size", or that it is a part of.
std::vector<std::string> that_share_parts(std::string_view word,
                                          std::span<const std::string> known) {
  const auto parts = parts_of(word);
  std::vector<std::string> near;
  std::size_t most = 0;
  for (const std::string& candidate : known) {
    const auto others = parts_of(candidate);
    const auto shared =
        static_cast<std::size_t>(std::ranges::count_if(others, [&](const std::string& part) {
          return std::ranges::find(parts, part) != parts.end();
        }));
    if (shared == 0 || shared < std::min(parts.size(), others.size()) || shared < most) continue;
    if (shared > most) near.clear();
    most = shared;
    near.push_back(candidate);
  }
  return near;
}

std::vector<std::string> of_few_edits(const std::string& key, std::span<const std::string> known) {
  std::vector<std::string> near;
  std::size_t least = std::max<std::size_t>(1, key.size() / 3);
  for (const std::string& candidate : known) {
    const std::string other = plain_form(candidate);
    const std::size_t edits = edits_between(key, other);
    if (edits > least || edits >= std::min(key.size(), other.size())) continue;
    if (edits < least) near.clear();
    least = edits;
    near.push_back(candidate);
  }
  return near;
}

}  // namespace

std::vector<std::string> nearest(std::string_view word, std::span<const std::string> known) {
  const std::string key = plain_form(word);
  if (key.empty()) return {};
  const auto same = std::ranges::find(known, key, plain_form);
  std::vector<std::string> near;
  if (same != known.end()) near = {*same};
  if (near.empty()) near = of_the_meaning(key, known);
  if (near.empty()) near = that_share_parts(word, known);
  if (near.empty()) near = of_few_edits(key, known);
  near.resize(std::min<std::size_t>(near.size(), 3));
  return near;
}

std::string suggestion(std::string_view word, std::span<const std::string> known) {
  const auto near = nearest(word, known);
  if (near.empty()) return {};
  std::string text = "did you mean " + near[0];
  for (std::size_t i = 1; i < near.size(); ++i) {
    text += (i + 1 == near.size() ? " or " : ", ") + near[i];
  }
  return text + "?";
}

}  // namespace katt::bench
