#include "checkpoint/hugging_face.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/bf16.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/file.h"
#include "checkpoint/safetensors.h"
#include "common/failpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/inventory.h"
#include "models/tuning.h"
#include "strategies/partition/planners.h"
#include "testing/temporary_folder.h"

namespace muster::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kGoodConfig[] =
    R"({"model_type":"gpt2","n_layer":2,"n_head":2,"n_embd":8,"vocab_size":11,"n_positions":6,"n_inner":null})";

// Every element has a value of its own, exact in every dtype that is tried.
float ValueAt(size_t tensor, uint64_t element) { return static_cast<float>((tensor * 7 + element) % 199) - 99; }

class HuggingFaceTest : public ::testing::Test {
 protected:
  HuggingFaceTest() {
    Gpt2& m = *model_.mutable_gpt2();
    m.set_layers(2), m.set_heads(2), m.set_width(8), m.set_vocabulary(11), m.set_context(6);
    TakeInventory();
  }
  // Of `train_`.
  void TakeInventory() {
    inventory_ = models::MakeInventory(train_).value();
    tensors_.clear();
    for (const Unit& unit : inventory_.units()) {
      for (const Tensor& tensor : unit.tensors()) tensors_.push_back(tensor);
    }
  }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_.path(), "/", name); }
  static std::vector<uint64_t> ShapeOf(const Tensor& tensor) { return {tensor.shape().begin(), tensor.shape().end()}; }

  Checkpoint WriteCheckpoint(uint64_t step = 1) {
    Manifest manifest;
    manifest.set_step(step);
    manifest.set_generation(1);
    *manifest.mutable_spec()->mutable_train() = train_;
    *manifest.mutable_inventory() = inventory_;
    *manifest.mutable_table() = partition::Replicated(inventory_);
    std::vector<std::vector<float>> values(tensors_.size());
    std::vector<TensorRun> runs;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      for (uint64_t e = 0; e < models::Elements(tensors_[i]); ++e) values[i].push_back(ValueAt(i, e));
      runs.push_back({tensors_[i].name(), ShapeOf(tensors_[i]), 0, absl::MakeSpan(values[i])});
    }
    EXPECT_TRUE(Write(Path("run"), manifest, runs).ok());
    return Checkpoint::Open(StepFolder(step)).value();
  }
  std::string StepFolder(uint64_t step) const { return absl::StrCat(Path("run/"), StepName{step, 1}.Directory()); }

  // Any run of any tensor has its values.
  void ExpectWeights(const std::string& directory) {
    const absl::StatusOr<HuggingFaceModel> weights = HuggingFaceModel::Open(directory);
    ASSERT_TRUE(weights.ok()) << weights.status();
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const uint64_t all = models::Elements(tensors_[i]);
      for (const auto& [begin, length] : {std::pair<uint64_t, uint64_t>{0, all}, {all / 3, all / 2}, {all - 1, 1}}) {
        std::vector<float> run(length, -1000);
        const absl::Status read = weights->Read({tensors_[i].name(), ShapeOf(tensors_[i]), begin, absl::MakeSpan(run)});
        ASSERT_TRUE(read.ok()) << read;
        for (uint64_t e = 0; e < length; ++e) {
          ASSERT_EQ(run[e], ValueAt(i, begin + e)) << tensors_[i].name() << " element " << begin + e;
        }
      }
    }
  }

  // model.safetensors of this dtype; `change` may spoil the header before the bytes are written for it.
  std::string WriteFile(const std::string& directory, const std::string& dtype, const std::string& prefix,
                        const std::function<void(SafetensorsHeader&)>& change = nullptr) {
    SafetensorsHeader header;
    std::string bytes;
    const auto append = [&](const void* value, size_t size) { bytes.append(static_cast<const char*>(value), size); };
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const uint64_t begin = bytes.size();
      for (uint64_t e = 0; e < models::Elements(tensors_[i]); ++e) {
        const float value = ValueAt(i, e);
        uint32_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        // Small whole numbers: the low bits of both short formats are zero.
        const uint16_t brain = static_cast<uint16_t>(bits >> 16);
        const uint32_t exponent = (bits >> 23) & 0xff;
        const uint16_t half = static_cast<uint16_t>(
            ((bits >> 16) & 0x8000) | (value == 0 ? 0 : ((exponent - 112) << 10) | ((bits >> 13) & 0x3ff)));
        if (dtype == "F16") append(&half, 2);
        if (dtype == "BF16") append(&brain, 2);
        if (dtype == "F32") append(&value, 4);
        const double wide = value;
        if (dtype == "F64") append(&wide, 8);
      }
      header.tensors.push_back({prefix + tensors_[i].name(), dtype, ShapeOf(tensors_[i]), begin, bytes.size()});
    }
    // What such files have besides.
    header.tensors.push_back({prefix + "h.0.attn.bias", "U8", {1, 1, 2, 2}, bytes.size(), bytes.size() + 4});
    bytes.append(4, '\1');
    if (change) change(header);
    folder_.Write(directory + "/config.json", kGoodConfig);
    folder_.Write(directory + "/model.safetensors", EncodeHeader(header) + bytes);
    return Path(directory);
  }

  bool AnyBeginsWith(const std::string& name) const {
    const fs::directory_iterator all(folder_.path());
    return std::any_of(begin(all), end(all), [&](const fs::directory_entry& entry) {
      return entry.path().filename().string().rfind(name, 0) == 0;
    });
  }

  TemporaryFolder folder_;
  Train train_;
  Model& model_ = *train_.mutable_model();
  Inventory inventory_;
  std::vector<Tensor> tensors_;  // in the inventory's order
};

TEST_F(HuggingFaceTest, EveryDtypeAndPrefix) {
  for (const char* dtype : {"F64", "F32", "F16", "BF16"}) {
    for (const char* prefix : {"", "transformer."}) {
      SCOPED_TRACE(absl::StrCat(dtype, " ", prefix));
      ExpectWeights(WriteFile(absl::StrCat(dtype, prefix), dtype, prefix));
    }
  }
}

TEST_F(HuggingFaceTest, WeightsAreReadIntoBf16) {
  const auto model = HuggingFaceModel::Open(WriteFile("wide", "F32", ""));
  ASSERT_TRUE(model.ok()) << model.status();
  for (const Tensor& tensor : tensors_) {
    std::vector<float> wide(models::Elements(tensor));
    std::vector<uint16_t> narrow(wide.size());
    ASSERT_TRUE(model->Read({tensor.name(), ShapeOf(tensor), 0, absl::MakeSpan(wide)}).ok());
    ASSERT_TRUE(model->Read({tensor.name(), ShapeOf(tensor), 0, {}, absl::MakeSpan(narrow)}).ok());
    for (size_t i = 0; i < wide.size(); ++i) EXPECT_EQ(narrow[i], ToBf16(wide[i])) << tensor.name() << " " << i;
  }
}

TEST_F(HuggingFaceTest, ExportIsReadAgain) {
  const Checkpoint from = WriteCheckpoint();
  const Exported whole = Export(from, {.out = Path("whole")}).value();
  EXPECT_EQ(whole.files, 1u);
  ExpectWeights(Path("whole"));
  const absl::StatusOr<Model> config = ReadHuggingFaceConfig(Path("whole"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->SerializeAsString(), model_.SerializeAsString());

  const Exported sharded = Export(from, {.out = Path("sharded"), .max_shard_bytes = 1000}).value();
  EXPECT_GT(sharded.files, 3u);
  EXPECT_TRUE(fs::exists(Path("sharded/model.safetensors.index.json")));
  for (const auto& entry : fs::directory_iterator(Path("sharded"))) {
    // The largest tensor, h.N.mlp.c_fc.weight, takes 1024 bytes and has its file to itself.
    if (entry.path().extension() == ".safetensors") {
      EXPECT_LT(entry.file_size(), 1024u + 1500);
    }
  }
  ExpectWeights(Path("sharded"));
}

// The first tensor of each further file had lost its adapter.
TEST_F(HuggingFaceTest, AdaptersAreMergedIntoTheTensorsOfAllFiles) {
  train_.mutable_lora()->set_rank(2), train_.mutable_lora()->set_alpha(4);
  TakeInventory();
  const Checkpoint from = WriteCheckpoint();
  ASSERT_EQ(Export(from, {.out = Path("whole")}).value().files, 1u);
  ASSERT_GT(Export(from, {.out = Path("sharded"), .max_shard_bytes = 1}).value().files, 20u) << "one for each tensor";
  const auto whole = HuggingFaceModel::Open(Path("whole")), sharded = HuggingFaceModel::Open(Path("sharded"));
  ASSERT_TRUE(whole.ok() && sharded.ok()) << whole.status() << sharded.status();
  int merged = 0;
  for (const Tensor& tensor : tensors_) {
    if (models::IsAdapter(tensor.name())) continue;
    std::vector<float> stored(models::Elements(tensor)), one(stored.size()), other(stored.size());
    ASSERT_TRUE(from.Read({tensor.name(), ShapeOf(tensor), 0, absl::MakeSpan(stored)}).ok());
    ASSERT_TRUE(whole->Read({tensor.name(), ShapeOf(tensor), 0, absl::MakeSpan(one)}).ok());
    ASSERT_TRUE(sharded->Read({tensor.name(), ShapeOf(tensor), 0, absl::MakeSpan(other)}).ok());
    EXPECT_EQ(one, other) << tensor.name();
    EXPECT_EQ(one != stored, tensor.has_low_rank()) << tensor.name();
    merged += tensor.has_low_rank() ? 1 : 0;
  }
  EXPECT_EQ(merged, 8) << "four linear layers of each block";
}

TEST_F(HuggingFaceTest, ExportTakesTokenizerFilesAndRefusesAFullFolder) {
  const Checkpoint from = WriteCheckpoint();
  folder_.Write("tokenizer/vocab.json", "{}");
  folder_.Write("tokenizer/merges.txt", "#version: 0.2\n");
  folder_.Write("tokenizer/secret.txt", "no tokenizer file");
  ASSERT_TRUE(Export(from, {.out = Path("out"), .tokenizer_from = Path("tokenizer")}).ok());
  EXPECT_TRUE(fs::exists(Path("out/vocab.json")) && fs::exists(Path("out/merges.txt")));
  EXPECT_FALSE(fs::exists(Path("out/secret.txt")));
  const absl::Status again = Export(from, {.out = Path("out")}).status();
  EXPECT_TRUE(absl::IsAlreadyExists(again)) << again;
  EXPECT_TRUE(fs::exists(Path("out/vocab.json"))) << "the existing folder is unchanged";
  const absl::Status none = Export(from, {.out = Path("other"), .tokenizer_from = Path("run")}).status();
  EXPECT_TRUE(absl::IsNotFound(none)) << none;
  EXPECT_THAT(std::string(none.message()), HasSubstr("vocab.json and merges.txt"));
  EXPECT_FALSE(AnyBeginsWith("other"));
}

TEST_F(HuggingFaceTest, ExportTakesATokenizerFileOfAnyNameAndNoOtherTokenizer) {
  const Checkpoint from = WriteCheckpoint();
  folder_.Write("tokenizers/llama3.json", R"({"of": "llama 3"})");
  folder_.Write("tokenizers/tokenizer_config.json", R"({"eos_token": "</s>"})");
  const ExportOptions options{.out = Path("alone"), .tokenizer_from = Path("tokenizers/llama3.json")};
  const absl::Status alone = Export(from, options).status();
  ASSERT_TRUE(alone.ok()) << alone;
  for (const char* other : {"tokenizer.json", "vocab.json", "merges.txt", "added_tokens.json"}) {
    folder_.Write(absl::StrCat("tokenizers/", other), "of another tokenizer");
  }
  ASSERT_TRUE(Export(from, {.out = Path("beside"), .tokenizer_from = options.tokenizer_from}).ok());
  for (const char* out : {"alone", "beside"}) {
    EXPECT_EQ(ReadText(absl::StrCat(Path(out), "/tokenizer.json"), 100).value(), R"({"of": "llama 3"})");
    EXPECT_EQ(ReadText(absl::StrCat(Path(out), "/tokenizer_config.json"), 100).value(), R"({"eos_token": "</s>"})");
    for (const char* other : {"vocab.json", "merges.txt", "added_tokens.json", "llama3.json"}) {
      EXPECT_FALSE(fs::exists(absl::StrCat(Path(out), "/", other))) << other;
    }
  }
}

// Each looks for the folder before it writes.
TEST_F(HuggingFaceTest, OfTwoExportsToOneFolderTheLaterOneSaysThatItIsWhole) {
  const Checkpoint from = WriteCheckpoint();
  ASSERT_TRUE(Export(from, {.out = Path("first")}).ok());
  ASSERT_TRUE(failpoint::Arm("export.rename=sleep:1000").ok());
  std::thread other([&] {
    while (!AnyBeginsWith("out.part-")) std::this_thread::yield();
    fs::rename(Path("first"), Path("out"));
  });
  const absl::Status status = Export(from, {.out = Path("out")}).status();
  other.join();
  ASSERT_TRUE(failpoint::Arm("").ok());
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("/out was made by another export meanwhile, and is whole"));
  EXPECT_TRUE(fs::exists(Path("out/config.json")));
  EXPECT_FALSE(AnyBeginsWith("out.part-"));
}

TEST_F(HuggingFaceTest, ATokenizerFileThatCannotBeReadIsNotTakenForAnEmptyOne) {
  const Checkpoint from = WriteCheckpoint();
  folder_.Write("tokenizer/merges.txt", "#version: 0.2\n");
  fs::create_directories(Path("tokenizer/vocab.json"));  // opens, and does not read
  const absl::Status status = Export(from, {.out = Path("out"), .tokenizer_from = Path("tokenizer")}).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("tokenizer/vocab.json: not a regular file"));
  EXPECT_FALSE(AnyBeginsWith("out"));
}

TEST_F(HuggingFaceTest, AFullDiskLeavesNothing) {
  const Checkpoint from = WriteCheckpoint();
  folder_.Write("tokenizer/vocab.json", std::string(20'000, ' '));
  folder_.Write("tokenizer/merges.txt", "#version: 0.2\n");
  const ExportOptions options{.out = Path("out"), .tokenizer_from = Path("tokenizer")};
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  // Below each of its files' sizes, config.json's to the tokenizer's.
  for (rlim_t limit = 0; limit < 20'000; limit += 997) {
    const rlimit small = {limit, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const absl::Status status = Export(from, options).status();
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    ASSERT_TRUE(absl::IsResourceExhausted(status)) << limit << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("file size limit reached"));
    ASSERT_FALSE(AnyBeginsWith("out")) << limit;
  }
  ASSERT_TRUE(Export(from, options).ok());
}

// Leftovers of killed exports are removed; those of running processes, other hosts and other folders stay.
TEST_F(HuggingFaceTest, AnExportSweepsWhatKilledOnesLeft) {
  const Checkpoint from = WriteCheckpoint();
  char host[256] = "";
  ASSERT_EQ(gethostname(host, sizeof host - 1), 0);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);  // a number that no process has now
  const auto left = [&](const std::string& out, const std::string& host_name, int64_t pid) {
    const std::string name = absl::StrCat(out, ".part-", host_name, "-", pid);
    folder_.Write(name + "/model.safetensors", "half");
    return Path(name);
  };
  const std::string ended = left("out", host, child), own = left("out", host, getpid());
  const std::string running = left("out", host, getppid()), elsewhere = left("out", "another", child);
  const std::string other = left("out2", host, child);
  const absl::StatusOr<Exported> exported = Export(from, {.out = Path("out")});
  ASSERT_TRUE(exported.ok()) << exported.status();
  EXPECT_FALSE(fs::exists(ended) || fs::exists(own));
  EXPECT_TRUE(fs::exists(running) && fs::exists(elsewhere) && fs::exists(other));
  ExpectWeights(Path("out"));
}

// A job that resumes from it must not start from that job's model.from.
TEST_F(HuggingFaceTest, ACheckpointGivesTheNumbersOfItsModelAndNothingElse) {
  const Model numbers = model_;
  model_.set_from("elsewhere");
  const absl::StatusOr<Model> read = ReadModel(WriteCheckpoint().directory());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->ShortDebugString(), numbers.ShortDebugString());
}

// As the trainer, which loads the weights of the older one.
TEST_F(HuggingFaceTest, TheNumbersOfAModelAreThoseOfTheNewestIntactCheckpoint) {
  WriteCheckpoint(1);
  const Model older = model_;
  model_.mutable_gpt2()->set_layers(1);
  TakeInventory();
  WriteCheckpoint(2);
  EXPECT_EQ(ReadModel(Path("run"))->gpt2().layers(), 1u);
  fs::resize_file(StepFolder(2) + "/shard-00000.safetensors", 1000);
  const absl::StatusOr<Model> read = ReadModel(Path("run"));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->ShortDebugString(), older.ShortDebugString());
  fs::remove(StepFolder(1) + "/manifest.json");
  EXPECT_TRUE(absl::IsDataLoss(ReadModel(Path("run")).status()));
}

TEST_F(HuggingFaceTest, ConfigSaysWhatIsWrong) {
  const std::string numbers = R"("n_layer":2,"n_head":2,"n_embd":8,"vocab_size":11,"n_positions":6)";
  const struct {
    std::string config, says;
  } cases[] = {
      {"{", "is not a JSON object: was it cut?"},
      {"[1]", "is not a JSON object"},
      {R"({"model_type":"gemma","hidden_size":8})",
       R"(model_type is "gemma", which none of this build's families computes: gpt2, llama)"},
      {R"({"model_type":"llama","hidden_size":8})", "num_hidden_layers is missing"},
      {R"({"model_type":"gpt2","n_layer":2,"n_head":2,"n_embd":8,"vocab_size":11})", "n_positions is missing"},
      {R"({"model_type":"gpt2","n_layer":-2,"n_head":2,"n_embd":8,"vocab_size":11,"n_positions":6})", "n_layer is"},
      {R"({"model_type":"gpt2","n_layer":2,"n_head":2,"n_embd":"8","vocab_size":11,"n_positions":6})", "n_embd is"},
      {absl::StrCat("{", numbers, R"(,"activation_function":"relu"})"), R"(activation_function is "relu")"},
      {absl::StrCat("{", numbers, R"(,"tie_word_embeddings":false})"), "tie_word_embeddings is false"},
      {absl::StrCat("{", numbers, R"(,"scale_attn_by_inverse_layer_idx":true})"), "this build computes false only"},
      {absl::StrCat("{", numbers, R"(,"layer_norm_epsilon":1e-6})"), "layer_norm_epsilon is 1e-06"},
      {absl::StrCat("{", numbers, R"(,"n_inner":33})"), "n_inner is 33"},
  };
  for (const auto& c : cases) {
    folder_.Write("bad/config.json", c.config);
    const absl::Status status = ReadHuggingFaceConfig(Path("bad")).status();
    EXPECT_FALSE(status.ok()) << c.config;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(c.says), HasSubstr("bad/config.json")));
  }
  EXPECT_TRUE(absl::IsNotFound(ReadHuggingFaceConfig(Path("none")).status()));
  fs::create_directories(Path("folder/config.json"));
  EXPECT_THAT(std::string(ReadHuggingFaceConfig(Path("folder")).status().message()), HasSubstr("not a regular file"));
  // The first configurations called the context otherwise; where both are, n_positions counts, as for transformers.
  folder_.Write("old/config.json", R"({"n_layer":2,"n_head":2,"n_embd":8,"vocab_size":11,"n_ctx":6})");
  EXPECT_EQ(ReadHuggingFaceConfig(Path("old"))->gpt2().context(), 6u);
  folder_.Write("both/config.json", absl::StrCat("{", numbers, R"(,"n_ctx":7})"));
  EXPECT_EQ(ReadHuggingFaceConfig(Path("both"))->gpt2().context(), 6u);
}

TEST_F(HuggingFaceTest, WeightsOfAnotherModelAreRefused) {
  using Change = std::function<void(SafetensorsHeader&)>;
  const auto refused = [&](const std::string& directory, const Change& change) {
    const absl::StatusOr<HuggingFaceModel> model = HuggingFaceModel::Open(WriteFile(directory, "F32", "", change));
    absl::Status status = model.status();
    for (size_t i = 0; status.ok() && i < tensors_.size(); ++i) {
      std::vector<float> values(models::Elements(tensors_[i]));
      status = model->Read({tensors_[i].name(), ShapeOf(tensors_[i]), 0, absl::MakeSpan(values)});
    }
    return std::string(status.message());
  };
  EXPECT_THAT(refused("shape",
                      [](auto& header) {
                        header.tensors[0].shape = {8, 11};
                      }),
              HasSubstr("wte.weight: shape [8, 11], expected [11, 8]"));
  EXPECT_THAT(refused("name", [](auto& header) { header.tensors[1].name = "wpe.waight"; }),
              HasSubstr("a gpt2 2x8 as in config.json has no tensor wpe.waight"));
  EXPECT_THAT(refused("missing", [](auto& header) { header.tensors[1].name = "h.1.attn.masked_bias"; }),
              HasSubstr("wpe.weight: no such tensor"));
  EXPECT_THAT(refused("dtype", [](auto& header) { header.tensors[0].dtype = "I32"; }), HasSubstr("dtype I32"));
  EXPECT_THAT(refused("twice", [](auto& header) { header.tensors.back().name = "transformer.wte.weight"; }),
              HasSubstr("transformer.wte.weight is there twice"));
  EXPECT_THAT(refused("score", [](auto& header) { header.tensors.back().name = "score.weight"; }),
              HasSubstr("a gpt2 2x8 as in config.json has no tensor score.weight"));
  // Weights of a deeper model would otherwise pass for the first layers of theirs.
  for (const char* name : {"h.2.ln_1.bias", "transformer.h.17.ln_1.bias", "h.x.ln_1.bias", "h.-1.ln_1.bias"}) {
    EXPECT_THAT(refused(name, [&](auto& header) { header.tensors.back().name = name; }),
                HasSubstr(absl::StrCat("has no tensor ", name)));
  }
}

TEST_F(HuggingFaceTest, OpenSaysWhatIsWrong) {
  const auto says = [&](const char* directory) {
    return std::string(HuggingFaceModel::Open(Path(directory)).status().message());
  };
  EXPECT_THAT(says("none"), HasSubstr("none is not a folder: expected a Hugging Face model"));
  folder_.Write("pickle/config.json", kGoodConfig);
  folder_.Write("pickle/pytorch_model.bin", "x");
  EXPECT_THAT(says("pickle"), HasSubstr("a pickle, which may run any code"));
  folder_.Write("empty/config.json", kGoodConfig);
  EXPECT_THAT(says("empty"), HasSubstr("neither model.safetensors nor"));

  ASSERT_TRUE(Export(WriteCheckpoint(), {.out = Path("sharded"), .max_shard_bytes = 1000}).ok());
  for (const auto& [index, message] :
       {std::pair("{", "is not a JSON object"), std::pair("{}", "has no weight_map"),
        std::pair(R"({"weight_map":{}})", "has no weight_map"), std::pair(R"({"weight_map":[]})", "has no weight_map"),
        std::pair(R"({"weight_map":{"wte.weight":7}})", "names no file of this folder for wte.weight"),
        std::pair(R"({"weight_map":{"wte.weight":"../../etc/passwd"}})", "names no file of this folder"),
        std::pair(R"({"weight_map":{"wte.weight":"gone.safetensors"}})", "gone.safetensors")}) {
    folder_.Write("sharded/model.safetensors.index.json", index);
    EXPECT_THAT(says("sharded"), HasSubstr(message));
  }
}

}  // namespace
}  // namespace muster::checkpoint
