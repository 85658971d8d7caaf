#include "worker/trainer/sample.h"

#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint.h"
#include "common/sha256.h"
#include "data/tokenizer.h"
#include "data/tokenizer_origin.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/wait.h"
#include "worker/tasks/language_model.h"
#include "worker/trainer/fake_trainer_server.h"

namespace muster::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(Choose, TakesTheLikeliestWithoutTemperature) {
  const std::vector<float> logits = {0, 3, 3, -1};
  EXPECT_EQ(Choose(logits, 0, 0, 0.999), 1u);
  EXPECT_EQ(Choose(logits, 5, 1, 0.999), 1u);
}

TEST(Choose, FollowsTheSoftmax) {
  const std::vector<float> logits = {std::log(1.0f), std::log(2.0f), std::log(5.0f)};
  const auto shares = [&](double temperature, uint32_t top_k) {
    std::vector<double> counts(3, 0);
    for (int i = 0; i < 1000; ++i) counts[Choose(logits, temperature, top_k, i / 1000.0)] += 0.001;
    return counts;
  };
  EXPECT_THAT(shares(1, 0), ::testing::Pointwise(::testing::DoubleNear(0.002), {0.125, 0.25, 0.625}));
  EXPECT_THAT(shares(1, 2), ::testing::Pointwise(::testing::DoubleNear(0.002), {0.0, 2 / 7.0, 5 / 7.0}));
  EXPECT_THAT(shares(0.5, 0), ::testing::Pointwise(::testing::DoubleNear(0.002), {1 / 30.0, 4 / 30.0, 25 / 30.0}));
  EXPECT_THAT(shares(1, 99), ::testing::Pointwise(::testing::DoubleNear(0.002), {0.125, 0.25, 0.625}));
}

TEST(Describe, APerplexityBeyondDoublesIsNoNumber) {
  const auto evaluated = [](double loss) {
    const tasks::Task& task = tasks::LanguageModelTask();
    return Evaluated{.loss = loss,
                     .metrics = task.Metrics({}, {.loss = loss, .metrics = {}}),
                     .samples = 2,
                     .targets = 32,
                     .samples_name = task.samples_name(),
                     .targets_name = task.targets_name()};
  };
  EXPECT_EQ(Describe(evaluated(2), true), R"({"loss": 2, "perplexity": 7.3890561, "tokens": 32, "windows": 2})");
  EXPECT_EQ(Describe(evaluated(710), true), R"({"loss": 710, "perplexity": null, "tokens": 32, "windows": 2})");
  EXPECT_EQ(Describe(evaluated(710), false), "loss 710, perplexity too large to say, over 32 tokens in 2 windows");
}

// One trained model for all: the text repeats, so even this one learns some of it.
class SampleTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    bench_ = new Bench;
    validation_loss_ = Trained(1, DTYPE_FP32, "checkpoints");
  }
  static void TearDownTestSuite() { delete bench_; }

  // The validation loss after the last step.
  static double Trained(uint64_t generation, Dtype compute, const std::string& checkpoints) {
    JobSpec spec = bench_->MakeJob();
    Train& train = *spec.mutable_train();
    train.set_steps(300);
    train.mutable_precision()->set_compute(compute);
    train.mutable_checkpoint()->set_path(bench_->Path(checkpoints));
    train.mutable_checkpoint()->set_every_steps(0);
    train.mutable_data()->set_validation(bench_->Path("val.bin"));
    train.mutable_validation()->set_sequences(1000);
    train.mutable_optimizer()->set_lr(1e-2);
    // What trains with offloading is used without it, and without its folder.
    const std::string offloaded = bench_->Path("offloaded");
    std::filesystem::create_directory(offloaded);
    Offload& offload = *train.mutable_offload();
    offload.set_optimizer(true), offload.set_parameters(true), offload.set_to(offloaded);
    const Assignment assignment = bench_->Assign(spec, generation);
    Process trainer = bench_->Start(assignment);
    EXPECT_EQ(trainer.Wait(), 0) << trainer.Log();
    std::filesystem::remove_all(offloaded);
    double loss = std::nan("");
    for (const Record& record : bench_->Records(assignment)) {
      if (record.has_metrics() && record.metrics().has_validation_loss()) loss = record.metrics().validation_loss();
    }
    return loss;
  }

  static Process Run(std::vector<std::string> arguments) {
    // Threads that wait for each other are slow on a busy machine.
    if (!arguments.empty() && (arguments[0] == "sample" || arguments[0] == "eval")) {
      arguments.insert(arguments.end(), {"--threads", "1"});
    }
    return StartTrainer(std::move(arguments), bench_->Path("sample"));
  }
  static std::string Sampled(std::vector<std::string> options) {
    options.insert(options.begin(), {"sample", "--checkpoint", bench_->Path("checkpoints")});
    Process process = Run(options);
    EXPECT_EQ(process.Wait(), 0) << process.Log();
    return process.Output();
  }

  static Bench* bench_;
  static double validation_loss_;
};
Bench* SampleTest::bench_ = nullptr;
double SampleTest::validation_loss_ = 0;

TEST_F(SampleTest, WritesPromptAndTokensTheSameEachTime) {
  const std::vector<std::string> greedy = {"--prompt", "the quick ", "--tokens", "40", "--temperature", "0"};
  const std::string text = Sampled(greedy);
  EXPECT_THAT(text, StartsWith("the quick "));
  EXPECT_EQ(text.size(), 10u + 40 + 1);
  EXPECT_EQ(text, Sampled(greedy));
  EXPECT_THAT(text, HasSubstr("brown fox")) << "greedy text of a model with validation loss " << validation_loss_;
  const auto warm = [](const char* seed) {
    return Sampled({"--prompt", "the ", "--tokens", "60", "--temperature", "1.5", "--seed", seed});
  };
  EXPECT_EQ(warm("1"), warm("1"));
  EXPECT_NE(warm("1"), warm("2"));
  EXPECT_EQ(Sampled({"--tokens", "5"}).size(), 6u) << "no prompt";
}

TEST_F(SampleTest, EvalGivesTheValidationLoss) {
  Process process = Run({"eval", "--checkpoint", bench_->Path("checkpoints/step-0000000300-g1"), "--data",
                         bench_->Path("val.bin"), "--json"});
  ASSERT_EQ(process.Wait(), 0) << process.Log();
  double loss = 0, perplexity = 0;
  unsigned long long tokens = 0, windows = 0;
  ASSERT_EQ(
      std::sscanf(process.Output().c_str(), R"({"loss": %lf, "perplexity": %lf, "tokens": %llu, "windows": %llu})",
                  &loss, &perplexity, &tokens, &windows),
      4)
      << process.Output();
  EXPECT_NEAR(loss, validation_loss_, 1e-5);
  EXPECT_NEAR(perplexity, std::exp(loss), 1e-6);
  EXPECT_EQ(tokens, windows * 16);
  EXPECT_EQ(windows, 62u);  // of 1,000 tokens
}

// A full disk loses output and must not look like success.
TEST_F(SampleTest, AFullStandardOutputIsAnError) {
  const std::string from = bench_->Path("checkpoints");
  const std::vector<std::string> commands = {
      "--version", absl::StrCat("sample --threads 1 --tokens 5 --checkpoint ", from),
      absl::StrCat("eval --threads 1 --checkpoint ", from, " --data ", bench_->Path("val.bin")),
      absl::StrCat("export --checkpoint ", from, " --out ", bench_->Path("export-full"))};
  for (const std::string& command : commands) {
    Process process({"/bin/sh", "-c", absl::StrCat("worker/trainer/muster-trainer ", command, " >/dev/full")},
                    bench_->Path("full"));
    EXPECT_EQ(process.Wait(), 1) << command;
    EXPECT_THAT(process.Log(), HasSubstr("cannot write to standard output: is the disk full?\n")) << command;
  }
}

TEST_F(SampleTest, AnInterruptedEvaluationSaysSo) {
  const std::string tokens = bench_->WriteTokens("long.bin", std::vector<uint16_t>(20'000'000));
  Process process = Run({"eval", "--checkpoint", bench_->Path("checkpoints"), "--data", tokens});
  const auto catches = [&] {
    std::ifstream status(absl::StrCat("/proc/", process.pid(), "/status"));
    for (std::string line; std::getline(status, line);) {
      if (absl::StartsWith(line, "SigCgt:")) return (std::stoull(line.substr(7), nullptr, 16) >> (SIGINT - 1) & 1) != 0;
    }
    return false;
  };
  ASSERT_TRUE(Eventually(catches)) << process.Log();
  process.Signal(SIGINT);
  EXPECT_EQ(process.Wait(), 130);
  EXPECT_EQ(process.Log(), "muster: interrupted: the evaluation was not finished\n");
  EXPECT_EQ(process.Output(), "");
}

// These commands take the place of the CLI's, so they speak as it does; the log of a job is not for a terminal.
TEST_F(SampleTest, SaysWhichCorruptCheckpointItSkipped) {
  const std::string folder = bench_->Path("damaged"), newer = folder + "/step-0000000400-g1";
  std::filesystem::create_directories(folder);
  for (const std::string& step : {folder + "/step-0000000300-g1", newer}) {
    std::filesystem::copy(bench_->Path("checkpoints/step-0000000300-g1"), step,
                          std::filesystem::copy_options::recursive);
  }
  std::ofstream(newer + "/manifest.json", std::ios::app) << " ";
  Process process = Run({"sample", "--checkpoint", folder, "--tokens", "5"});
  EXPECT_EQ(process.Wait(), 0);
  EXPECT_THAT(process.Log(), StartsWith("muster: skipped the corrupt checkpoint step-0000000400-g1: "));
  EXPECT_THAT(process.Log(), AllOf(HasSubstr("; using step-0000000300-g1\n"), Not(HasSubstr(" error trainer "))));
}

// Before families and tasks, a manifest's units had numbered kinds and a number of heads, and the inventory had a
// vocabulary and a context.
TEST_F(SampleTest, ACheckpointOfAnOlderBuildIsEvaluatedAndExported) {
  const std::string step = "/step-0000000300-g1", older = bench_->Path("older");
  std::filesystem::create_directories(older);
  std::filesystem::copy(bench_->Path("checkpoints") + step, older + step, std::filesystem::copy_options::recursive);
  const std::string manifest = absl::StrCat(older, step, "/", checkpoint::kManifestFile);
  std::ifstream in(manifest);
  std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  nlohmann::json json = nlohmann::json::parse(text);
  json["inventory"].erase("task");
  json["inventory"]["vocabulary"] = "256";
  json["inventory"]["context"] = "16";
  for (nlohmann::json& unit : json["inventory"]["units"]) {
    const std::string kind = unit.at("kind").get<std::string>().substr(std::string("gpt2.").size());
    unit["kind"] = absl::StrCat("UNIT_KIND_GPT2_", absl::AsciiStrToUpper(kind));
    if (unit.erase("attention") > 0) unit["heads"] = 2;
  }
  text = json.dump();
  std::ofstream(manifest) << text;
  std::ofstream(absl::StrCat(older, step, "/", checkpoint::kManifestSumFile))
      << absl::StrCat(Sha256Hex(text), "  ", checkpoint::kManifestFile, "\n");
  std::vector<std::string> evals;
  for (const std::string& from : {bench_->Path("checkpoints"), older}) {
    Process eval = Run({"eval", "--checkpoint", from, "--data", bench_->Path("val.bin"), "--json"});
    ASSERT_EQ(eval.Wait(), 0) << eval.Log();
    evals.push_back(eval.Output());
  }
  EXPECT_EQ(evals[1], evals[0]);
  Process exported = Run({"export", "--checkpoint", older, "--out", bench_->Path("older-export")});
  EXPECT_EQ(exported.Wait(), 0) << exported.Log();
}

// An exported model gives the same samples and losses.
TEST_F(SampleTest, AnExportIsTheSameModel) {
  const auto run = [](std::vector<std::string> arguments) {
    Process process = Run(arguments);
    EXPECT_EQ(process.Wait(), 0) << process.Log();
    return process.Output();
  };
  const std::string from = bench_->Path("checkpoints");
  const std::string eval = run({"eval", "--checkpoint", from, "--data", bench_->Path("val.bin"), "--json"});
  for (const char* size : {"5GB", "9kB"}) {
    const std::string out = bench_->Path(absl::StrCat("export-", size));
    run({"export", "--checkpoint", from, "--out", out, "--max-shard-size", size});
    EXPECT_EQ(run({"eval", "--checkpoint", out, "--data", bench_->Path("val.bin"), "--json"}), eval);
    Process again = Run({"export", "--checkpoint", from, "--out", out});
    EXPECT_EQ(again.Wait(), 2);
    EXPECT_THAT(again.Log(), HasSubstr("exists already"));
  }
}

// A job that begins with an export's weights has its loss before the first step, and refuses other numbers.
TEST_F(SampleTest, AJobBeginsWithImportedWeights) {
  const std::string out = bench_->Path("imported");
  Process exporting = Run({"export", "--checkpoint", bench_->Path("checkpoints"), "--out", out});
  ASSERT_EQ(exporting.Wait(), 0) << exporting.Log();
  JobSpec spec = bench_->MakeJob();
  Train& train = *spec.mutable_train();
  train.mutable_model()->set_from(out);
  train.set_steps(1);
  train.mutable_optimizer()->set_lr(1e-30);
  train.mutable_data()->set_validation(bench_->Path("val.bin"));
  train.mutable_validation()->set_sequences(1000);
  train.mutable_checkpoint()->set_path(bench_->Path("second"));
  const Assignment assignment = bench_->Assign(spec, 7);
  Process trainer = bench_->Start(assignment);
  ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
  double loss = 0;
  for (const Record& record : bench_->Records(assignment)) {
    if (record.has_metrics() && record.metrics().has_validation_loss()) loss = record.metrics().validation_loss();
  }
  EXPECT_NEAR(loss, validation_loss_, 1e-5);

  train.mutable_model()->mutable_gpt2()->set_layers(3);
  train.mutable_model()->mutable_gpt2()->set_heads(4);
  train.mutable_checkpoint()->set_path(bench_->Path("third"));
  Process refused = bench_->Start(bench_->Assign(spec, 8));
  EXPECT_EQ(refused.Wait(), 1);
  EXPECT_THAT(refused.Log(),
              HasSubstr("config.json says n_layer 2, but model.layers is 3; n_head 2, but model.heads is 4"));
  const auto of_job = [](const Assignment& assignment) {
    const std::vector<Record> records = bench_->Records(assignment);
    return !records.empty() && records.back().failed().refused() && !records.back().failed().of_node();
  };
  EXPECT_TRUE(of_job(bench_->Assign(spec, 8))) << "another node finds the same";
  train.mutable_model()->set_from(bench_->Path("second"));
  Process another = bench_->Start(bench_->Assign(spec, 9));
  EXPECT_EQ(another.Wait(), 1);
  EXPECT_THAT(another.LastLine(), AllOf(HasSubstr("model.from: " + bench_->Path("second")),
                                        HasSubstr("is of another model: n_layer 2, but model.layers is 3")));
  EXPECT_TRUE(of_job(bench_->Assign(spec, 9)));
}

// GPT-2's names of the bytes, in the order of their ids, then " t" + "h", " th" + "e" and the end of a text.
std::string Vocabulary() {
  std::string json = "{";
  uint32_t id = 0, other = 256;
  const auto add = [&](uint32_t c) {
    std::string name = c == '"' || c == '\\' ? "\\" : "";
    if (c < 0x80) name.push_back(static_cast<char>(c));
    if (c >= 0x80) name += {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
    absl::StrAppend(&json, "\"", name, "\": ", id++, ", ");
  };
  for (uint32_t c = '!'; c <= '~'; ++c) add(c);
  for (uint32_t c = 0xa1; c <= 0xff; ++c) {
    if (c != 0xad) add(c);
  }
  while (id < 256) add(other++);
  return absl::StrCat(json, R"("\u0120t": 256, "\u0120th": 257, "\u0120the": 258, "<|endoftext|>": 259})");
}

// A model of byte pairs, from its tokenizer's files: beside the weights, and given.
TEST_F(SampleTest, ByteTokensAndPairsAreText) {
  std::filesystem::create_directories(bench_->Path("tokenizer"));
  const std::string vocab = bench_->Path("tokenizer/vocab.json"), merges = bench_->Path("tokenizer/merges.txt");
  std::ofstream(vocab) << Vocabulary();
  std::ofstream(merges) << "#version: 0.2\n\u0120 t\n\u0120t h\n\u0120th e\n";
  const auto tokenizer = data::Tokenizer::Load(bench_->Path("tokenizer"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::vector<uint32_t> ids;
  for (int i = 0; i < 100; ++i) ASSERT_TRUE((*tokenizer)->Encode("in the box. ", ids).ok());
  JobSpec spec = bench_->MakeJob();
  Train& train = *spec.mutable_train();
  train.mutable_data()->set_tokens(bench_->WriteTokens("pairs.bin", {ids.begin(), ids.end()}));
  ASSERT_TRUE(data::WriteTokenizerOrigin(train.data().tokens(), (*tokenizer)->origin()).ok());
  train.mutable_model()->mutable_gpt2()->set_vocabulary(260);
  train.mutable_checkpoint()->set_path(bench_->Path("pairs"));
  train.mutable_checkpoint()->set_every_steps(0);
  train.set_steps(150);
  train.mutable_optimizer()->set_lr(1e-2);
  Process trainer = bench_->Start(bench_->Assign(spec, 11));
  ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();

  const auto sample = [&](const std::string& from, std::vector<std::string> options) {
    options.insert(options.begin(), {"sample", "--checkpoint", from, "--prompt", "in the", "--temperature", "0"});
    return Run(options);
  };
  Process given = sample(bench_->Path("pairs"), {"--tokens", "40", "--tokenizer", bench_->Path("tokenizer")});
  ASSERT_EQ(given.Wait(), 0) << given.Log();
  const std::string written = given.Output();  // the next process writes to the same file
  EXPECT_THAT(written, StartsWith("in the box. in the box. in"));
  EXPECT_THAT(given.Log(), Not(HasSubstr("warning")));
  Process exporting = Run({"export", "--checkpoint", bench_->Path("pairs"), "--out", bench_->Path("pairs-out"),
                           "--tokenizer-from", bench_->Path("tokenizer")});
  ASSERT_EQ(exporting.Wait(), 0) << exporting.Log();
  // Of a model whose checkpoint does not say what made its tokens.
  std::filesystem::remove(train.data().tokens() + data::kOriginEnding);
  JobSpec unknown = spec;
  unknown.mutable_train()->mutable_checkpoint()->set_path(bench_->Path("unknown"));
  unknown.mutable_train()->set_steps(1);
  Process another = bench_->Start(bench_->Assign(unknown, 13));
  ASSERT_EQ(another.Wait(), 0) << another.Log();
  Process without = sample(bench_->Path("unknown"), {});
  EXPECT_EQ(without.Wait(), 2);
  EXPECT_THAT(without.Log(),
              HasSubstr("the model's vocabulary is 260, not bytes: give its tokenizer with --tokenizer"));
  // As the checkpoint says that it was made.
  Process recorded = sample(bench_->Path("pairs"), {"--tokens", "40"});
  ASSERT_EQ(recorded.Wait(), 0) << recorded.Log();
  EXPECT_EQ(recorded.Output(), written);
  Process along = Run({"export", "--checkpoint", bench_->Path("pairs"), "--out", bench_->Path("along")});
  ASSERT_EQ(along.Wait(), 0) << along.Log();
  EXPECT_TRUE(std::filesystem::exists(bench_->Path("along/merges.txt")));
  Process beside = sample(bench_->Path("pairs-out"), {"--tokens", "40"});
  ASSERT_EQ(beside.Wait(), 0) << beside.Log();
  EXPECT_EQ(beside.Output(), written);
  Process larger = sample(bench_->Path("checkpoints"), {"--tokenizer", bench_->Path("tokenizer")});
  EXPECT_EQ(larger.Wait(), 2);
  EXPECT_THAT(larger.Log(), HasSubstr("the tokenizer has 260 tokens, the model's vocabulary is 256"));
  // Another tokenizer than the recorded one: a copy of its files may differ and have the same ids, data is refused.
  std::filesystem::copy(bench_->Path("tokenizer"), bench_->Path("tokenizer-2"));
  std::ofstream(bench_->Path("tokenizer-2/merges.txt"), std::ios::app) << "\n";
  Process warned = sample(bench_->Path("pairs"), {"--tokens", "40", "--tokenizer", bench_->Path("tokenizer-2")});
  EXPECT_EQ(warned.Wait(), 0) << warned.Log();
  EXPECT_EQ(warned.Output(), written);
  EXPECT_THAT(warned.Log(), AllOf(HasSubstr("muster: warning: this model's tokens were made with the tokenizer " +
                                            bench_->Path("tokenizer") + " (sha256 "),
                                  HasSubstr(", not with the tokenizer " + bench_->Path("tokenizer-2") + " (sha256 ")));
  const std::string of_bytes = bench_->Path("bytes.bin");
  std::filesystem::copy_file(bench_->Path("val.bin"), of_bytes);
  ASSERT_TRUE(data::WriteTokenizerOrigin(of_bytes, TokenizerOrigin()).ok());
  Process refused = Run({"eval", "--checkpoint", bench_->Path("pairs"), "--data", of_bytes});
  EXPECT_EQ(refused.Wait(), 2) << refused.Log();
  EXPECT_THAT(refused.Log(), HasSubstr(of_bytes +
                                       " was made with bytes as tokens, but the data of the model with the "
                                       "tokenizer " +
                                       bench_->Path("tokenizer")));
  // The tokenizer of a folder of Hugging Face's is the one beside the weights.
  Process of_folder = Run({"eval", "--checkpoint", bench_->Path("pairs-out"), "--data", of_bytes});
  EXPECT_EQ(of_folder.Wait(), 2) << of_folder.Log();
  EXPECT_THAT(of_folder.Log(), HasSubstr(of_bytes +
                                         " was made with bytes as tokens, but the data of the model with the "
                                         "tokenizer " +
                                         bench_->Path("pairs-out")));
  ASSERT_TRUE(data::WriteTokenizerOrigin(train.data().tokens(), (*tokenizer)->origin()).ok());
  Process same = Run({"eval", "--checkpoint", bench_->Path("pairs-out"), "--data", train.data().tokens()});
  EXPECT_EQ(same.Wait(), 0) << same.Log();
  train.mutable_model()->set_from(bench_->Path("pairs"));
  train.mutable_data()->set_tokens(of_bytes);
  train.mutable_checkpoint()->set_path(bench_->Path("from-pairs"));
  Process from = bench_->Start(bench_->Assign(spec, 14));
  EXPECT_EQ(from.Wait(), 1);
  EXPECT_THAT(from.LastLine(),
              HasSubstr("model.from: " + of_bytes + " was made with bytes as tokens, but the data of " +
                        bench_->Path("pairs/step-")));
  std::ofstream(merges, std::ios::app) << "\n";
  Process changed = sample(bench_->Path("pairs"), {});
  EXPECT_EQ(changed.Wait(), 2);
  EXPECT_THAT(changed.Log(),
              HasSubstr(bench_->Path("tokenizer") + ", has changed since; give a copy of it with --tokenizer\n"));
  Process exported = Run({"export", "--checkpoint", bench_->Path("pairs"), "--out", bench_->Path("without-tokenizer")});
  EXPECT_EQ(exported.Wait(), 0) << exported.Log();
  EXPECT_THAT(exported.Log(), HasSubstr("muster: warning: exported without a tokenizer: the tokenizer that made"));
  EXPECT_THAT(exported.Log(), HasSubstr("; give a copy of it with --tokenizer-from\n"));
}

// Of `muster data prepare --tokenizer tokenizers/llama3.json`, with another tokenizer beside that file.
TEST_F(SampleTest, AnExportTakesTheRecordedTokenizersOwnFile) {
  const std::string folder = bench_->Path("tokenizers"), file = folder + "/llama3.json";
  std::filesystem::create_directories(folder);
  const nlohmann::json tokenizer = {
      {"model", {{"type", "BPE"}, {"vocab", nlohmann::json::parse(Vocabulary())}, {"merges", nlohmann::json::array()}}},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"added_tokens", nlohmann::json::array()}};
  std::ofstream(file) << tokenizer.dump();
  std::ofstream(folder + "/tokenizer.json") << "another one";
  const auto loaded = data::Tokenizer::Load(file);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  JobSpec spec = bench_->MakeJob();
  Train& train = *spec.mutable_train();
  const std::string tokens = bench_->Path("of-file.bin");
  std::filesystem::copy_file(train.data().tokens(), tokens);
  ASSERT_TRUE(data::WriteTokenizerOrigin(tokens, (*loaded)->origin()).ok());
  train.mutable_data()->set_tokens(tokens);
  train.mutable_checkpoint()->set_path(bench_->Path("of-file"));
  train.mutable_checkpoint()->set_every_steps(0);
  train.set_steps(1);
  Process trainer = bench_->Start(bench_->Assign(spec, 15));
  ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
  Process exporting = Run({"export", "--checkpoint", bench_->Path("of-file"), "--out", bench_->Path("of-file-out")});
  ASSERT_EQ(exporting.Wait(), 0) << exporting.Log();
  EXPECT_THAT(exporting.Log(), Not(HasSubstr("warning")));
  std::ifstream exported(bench_->Path("of-file-out/tokenizer.json"));
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(exported), {}), tokenizer.dump());
  std::filesystem::remove(file);
  Process without = Run({"export", "--checkpoint", bench_->Path("of-file"), "--out", bench_->Path("of-no-file")});
  EXPECT_EQ(without.Wait(), 0) << without.Log();
  EXPECT_THAT(without.Log(), HasSubstr("muster: warning: exported without a tokenizer: the tokenizer that made"));
  EXPECT_FALSE(std::filesystem::exists(bench_->Path("of-no-file/tokenizer.json")));
}

TEST_F(SampleTest, AJobInBf16LearnsAsMuch) {
  const double loss = Trained(12, DTYPE_BF16, "bf16");
  EXPECT_NEAR(loss, validation_loss_, 0.1 * validation_loss_ + 0.02);
  EXPECT_NE(loss, validation_loss_);
  // Evaluated with the weights as they are, in fp32.
  Process process = Run({"eval", "--checkpoint", bench_->Path("bf16"), "--data", bench_->Path("val.bin"), "--json"});
  ASSERT_EQ(process.Wait(), 0) << process.Log();
  double found = 0;
  ASSERT_EQ(std::sscanf(process.Output().c_str(), R"({"loss": %lf)", &found), 1) << process.Output();
  EXPECT_NEAR(found, loss, 0.02 * loss + 0.01);
}

TEST_F(SampleTest, SaysWhatIsWrong) {
  const auto fails = [](std::vector<std::string> arguments, int code, const std::string& says) {
    Process process = Run(arguments);
    EXPECT_EQ(process.Wait(), code) << process.Log();
    EXPECT_THAT(absl::StrCat(process.Log(), process.Output()), HasSubstr(says));
  };
  fails({"sample", "--checkpoint", "/none"}, 2, "/none is not a checkpoint and holds none");
  fails({"sample", "--checkpoint", bench_->Path("checkpoints"), "--temperature", "-1"}, 2, "temperature");
  fails({"eval", "--checkpoint", bench_->Path("checkpoints"), "--data", "/none.bin"}, 2,
        "data: /none.bin: no such file on this machine\n");
  fails({"sample"}, 2, "--checkpoint is required");
  fails({}, 2, "a command is missing");
}

}  // namespace
}  // namespace muster::trainer
