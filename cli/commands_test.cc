// Commands on several names, merged files, top, init, schema and doctor: the real program against a fake coordinator.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "cli/testing/muster_fixture_test.h"
#include "common/metrics/endpoint.h"

namespace muster::cli {
namespace {

using nlohmann::json;

using VerbTest = MusterTest;

TEST(TakeSize, DecimalNumbersAreRoundedDownToBytes) {
  struct Case {
    std::string size, bytes;
  };
  for (const Case& c : std::vector<Case>{{"80GB", "80000000000"},
                                         {"74.5GiB", "79993765888"},
                                         {"74.5 GiB", "79993765888"},  // as a plan prints it
                                         {"0.57kb", "570"},            // in floating point 569.99...
                                         {"1.9999b", "1"},
                                         {"0.001KiB", "1"},
                                         {"1.5M", "1500000"},
                                         {"010GB", "10000000000"},
                                         {"2097152", "2097152"},
                                         {"1.00000000000000000000001GiB", "1073741824"},
                                         {"15.999999999999999999eib", "18446744073709551614"},
                                         {"18446744073709551615b", "18446744073709551615"}}) {
    std::string text = c.size;
    EXPECT_EQ(TakeSize(text), "") << c.size;
    EXPECT_EQ(text, c.bytes) << c.size;
  }
  for (const char* size : {"16EiB", "18446744073709551616", "99999999999999999999GB", "0.0GB", "0.1b", ".5GB", "5.GB",
                           "1.2.3GB", "1e3GB", "1_000GB", "5 1GB", "GB", ".", "74,5GiB"}) {
    std::string text = size;
    EXPECT_EQ(TakeSize(text), absl::StrCat("must be a size above 0, such as 80GB or 74.5GiB, got ", size));
    EXPECT_EQ(text, size);
  }
  std::string bare = "80.5";
  EXPECT_EQ(TakeSize(bare), "80.5 has no unit, which means bytes: write 80.5GB or 80.5GiB");
}

TEST_F(VerbTest, TakesSeveralNamesAndTriesAll) {
  PutJob("a-0001", v1::JOB_STATE_RUNNING);
  PutJob("b-0001", v1::JOB_STATE_RUNNING);
  Serve();
  const Ended ran = Run({"pause", "a-0001", "nosuch", "b-0001"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_TRUE(Called("Pause a-0001"));
  EXPECT_TRUE(Called("Pause b-0001"));
  EXPECT_TRUE(absl::StrContains(ran.err, "muster: nosuch: ")) << ran.err;
  EXPECT_EQ(Run({"resume", "a-0001", "b-0001", "-o", "name"}).out, "a-0001\nb-0001\n");
  EXPECT_EQ(Run({"cancel", "-y", "a-0001", "b-0001"}).code, 0);
  EXPECT_TRUE(Called("Cancel b-0001"));
}

TEST_F(VerbTest, NodesByUniqueBeginnings) {
  AddNode("alpha-1111");
  AddNode("alpha-2222");
  AddNode("beta-3333");
  Serve();
  EXPECT_EQ(Run({"drain", "beta"}).err, "beta-3333: live, draining\n");
  const Ended both = Run({"drain", "alpha"});
  EXPECT_EQ(both.code, 2);
  EXPECT_EQ(both.err, "muster: \"alpha\" matches 2 nodes: alpha-1111, alpha-2222: name one of them\n");
  EXPECT_EQ(Run({"undrain", "betta-3333"}).err, "muster: no node \"betta-3333\", did you mean beta-3333?\n");
}

TEST_F(MusterTest, SubmitMergesFiles) {
  Serve();
  const std::string base =
      folder_.Write("base.yaml",
                    "apiVersion: muster/v1\nkind: Job\nname: a\nmodel: {family: gpt2, size: tiny}\n"
                    "data: {tokens: train.bin}\nsteps: 10\n");
  mkdir((folder_.path() + "/deep").c_str(), 0755);
  const std::string more = folder_.Write("deep/more.yaml", "steps: 20\ndata: {validation: val.bin}\n");
  EXPECT_EQ(Run({"submit", "-d", base, more, "--set", "seed=3"}).code, 0);
  EXPECT_EQ(store_.submitted.train().steps(), 20u);
  EXPECT_EQ(store_.submitted.train().seed(), 3u);
  EXPECT_EQ(store_.submitted.train().data().tokens(), folder_.path() + "/train.bin");
  EXPECT_EQ(store_.submitted.train().data().validation(), folder_.path() + "/deep/val.bin");
  const Ended wrong = Run({"submit", "-d", base, folder_.Write("wrong.yaml", "optimizer: {lrr: 1}\n")});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_EQ(wrong.err, absl::StrCat(folder_.path(),
                                    "/wrong.yaml:1:13: optimizer.lrr: unknown field, did you mean optimizer.lr?\n"));
  // From standard input too, once.
  EXPECT_EQ(Run({"plan", base, "-"}, "steps: 30\n").code, 0);
  EXPECT_EQ(Run({"plan", "-", "-"}).code, 2);
}

TEST_F(MusterTest, WorkerHealthAsksTheDaemon) {
  std::string contact = "muster_worker_connected 1\n";
  const auto endpoint =
      MetricsEndpoint::Start("127.0.0.1:0", MetricsEndpoint::Reach::kThisMachine, [&]() -> absl::StatusOr<std::string> {
        if (contact.empty()) return absl::UnavailableError("the daemon is busy or ending");
        return absl::StrCat("muster_worker_build_info{version=\"0.1.0\",node=\"gpu-3\"} 1\n", contact,
                            "muster_worker_ranks_running 2\n");
      });
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const std::string address = (*endpoint)->address();
  const auto health = [&] { return Run({"worker", "health", "--metrics-address", address}); };
  EXPECT_EQ(health().out, "gpu-3 is in contact with its coordinator; ranks running: 2\n");
  EXPECT_EQ(health().code, 0);
  contact = "muster_worker_connected 0\nmuster_worker_contact_age_seconds 42.5\n";
  EXPECT_EQ(health().code, 3);
  EXPECT_EQ(health().err,
            "muster: gpu-3 has no contact with its coordinator for 42s: check --coordinator of the worker, and the "
            "network\n");
  contact = "muster_worker_connected 1\nmuster_worker_foreign_store 1\n";
  EXPECT_EQ(health().code, 3);
  contact = "";
  EXPECT_EQ(health().code, 3);
  EXPECT_TRUE(absl::StrContains(health().err, "answers 503: the daemon is busy or ending")) << health().err;
  EXPECT_EQ(Run({"worker", "health", "--metrics-address", "127.0.0.1:1"}).code, 3);
  EXPECT_EQ(Run({"worker", "health", "--metrics-address", "9465"}).code, 2);
}

TEST_F(MusterTest, BenchCommunicationSaysWhatIsWrong) {
  Serve();
  const std::string job = folder_.Write("job.yaml",
                                        "apiVersion: muster/v1\nkind: Job\nname: a\nmodel: {family: gpt2, size: "
                                        "tiny}\ndata: {tokens: t.bin}\nsteps: 1\n");
  const auto says = [&](std::vector<std::string> arguments, const std::string& what) {
    arguments.insert(arguments.begin(), {"bench", job});
    const Ended ran = Run(arguments);
    EXPECT_EQ(ran.code, 2) << ran.out;
    EXPECT_TRUE(absl::StrContains(ran.err, what)) << ran.err;
  };
  says({"--communication"}, "one rank has no collectives to measure: give --ranks 2 or more, or resources.ranks");
  says({"--communication", "--ranks", "2,1"}, "one rank has no collectives to measure");
  says({"--communication", "--max_bytes", "12furlongs"}, "--max-bytes: furlongs unit not recognized");
  says({"--communication", "--max_bytes", "0"}, "--max-bytes");
  says({"--communication", "--ranks", "2", "--min_bytes", "2MiB", "--max_bytes", "1MiB"},
       "--min-bytes 2 MiB is above --max-bytes 1 MiB");
  says({"--communication", "--collectives", "all_to_all"}, "--collectives: \"all_to_all\" is not one of all_reduce, ");
  says({"--communication", "--modes", "round"},
       "--modes: \"round\" is not one of flat, bucketed, hierarchical, compressed");
  says({"--communication", "--steps", "5"}, "--steps cannot be used with --communication");
  says({"--plot", "x.svg"}, "--plot needs --communication");
  EXPECT_EQ(store_.submitted.name(), "") << "nothing was submitted";
}

// The inventory of a custom model goes with the spec: the coordinator sees no file of the user's.
TEST_F(MusterTest, InventoriesAreReadIn) {
  Serve();
  folder_.Write("mine.json",
                "{\"library\": \"/opt/libmine.so\", \"options\": [{\"name\": \"width\", \"value\": \"8\"}],"
                " \"task\": {\"name\": \"language_model\"}, \"units\": [{\"name\": \"a\", \"saved_bytes\": \"12\"}]}");
  const auto submit = [&](const std::string& model) {
    return Run(
        {"submit", "-d",
         folder_.Write("job.yaml", absl::StrCat("apiVersion: muster/v1\nkind: Job\nname: a\nmodel: {family: custom, ",
                                                model, "}\ndata: {tokens: train.bin}\nsteps: 10\n"))});
  };
  ASSERT_EQ(submit("inventory: mine.json").code, 0);
  const v1::Custom read = store_.submitted.train().model().custom();
  EXPECT_EQ(read.library(), "/opt/libmine.so");
  EXPECT_EQ(read.options(0).value(), "8");
  EXPECT_EQ(read.inventory(), "");
  EXPECT_EQ(read.task().name(), "language_model");
  EXPECT_EQ(read.units(0).saved_bytes(), 12u);
  // The job file's own library wins; it is relative to the job file.
  ASSERT_EQ(submit("inventory: mine.json, library: lib/mine.so, options: [{name: width, value: '8'}]").code, 0);
  EXPECT_EQ(store_.submitted.train().model().custom().library(), folder_.path() + "/lib/mine.so");
  EXPECT_EQ(store_.submitted.train().model().custom().options_size(), 1);
  const Ended other = submit("inventory: mine.json, options: [{name: width, value: '9'}]");
  EXPECT_EQ(other.code, 2);
  EXPECT_TRUE(absl::StrContains(other.err, "was made with other options than model.options")) << other.err;
  const Ended missing = submit("inventory: nosuch.json");
  EXPECT_EQ(missing.code, 2);
  EXPECT_TRUE(absl::StrContains(missing.err, "job.yaml:4:36: model.inventory: " + folder_.path() + "/nosuch.json"))
      << missing.err;
  folder_.Write("broken.json", "{\"units\": [");
  EXPECT_TRUE(absl::StrContains(submit("inventory: broken.json").err, "is not what `muster model inspect` prints"));
}

TEST_F(MusterTest, PlanDrawsWhoOwnsWhat) {
  Serve();
  const std::string file = folder_.Write("job.yaml",
                                         "apiVersion: muster/v1\nkind: Job\nname: a\n"
                                         "model: {family: gpt2, size: tiny}\ndata: {tokens: train.bin}\nsteps: 10\n");
  const Ended old = Run({"plan", file, "-o", "svg"});
  EXPECT_EQ(old.code, 2);
  EXPECT_TRUE(absl::StrContains(old.err, "sent no partition table")) << old.err;
  EXPECT_EQ(old.out, "");
  store_.plan.mutable_table()->set_shards(1);
  store_.plan.mutable_table()->add_units()->set_unit("h.0");
  for (const uint64_t boundary : {0, 16}) store_.plan.mutable_table()->mutable_units(0)->add_boundaries(boundary);
  const Ended drawn = Run({"plan", file, "-o", "svg"});
  EXPECT_EQ(drawn.code, 0) << drawn.err;
  EXPECT_TRUE(absl::StartsWith(drawn.out, "<?xml ")) << drawn.out;
  EXPECT_TRUE(absl::EndsWith(drawn.out, "</svg>\n")) << drawn.out;
}

TEST_F(MusterTest, SizesComeFromTheImportedFolder) {
  Serve();
  const std::string file = folder_.Write("job.yaml",
                                         "apiVersion: muster/v1\nkind: Job\nname: a\n"
                                         "model: {family: gpt2, from: hf, context: 4}\n"
                                         "data: {tokens: train.bin}\nsteps: 10\n");
  const std::string config = folder_.path() + "/hf/config.json";
  mkdir((folder_.path() + "/hf").c_str(), 0755);
  folder_.Write("hf/config.json",
                R"({"model_type":"gpt2","n_layer":3,"n_head":2,"n_embd":8,"vocab_size":50257,"n_positions":6})");
  EXPECT_EQ(Run({"submit", "-d", file}).code, 0);
  const v1::Model& model = store_.submitted.train().model();
  EXPECT_EQ(model.from(), folder_.path() + "/hf");
  EXPECT_EQ(model.gpt2().layers(), 3u);
  EXPECT_EQ(model.gpt2().vocabulary(), 50257u);
  EXPECT_EQ(model.gpt2().context(), 4u) << "what is written goes first";
  const Ended train = Run(
      {"train", "--model", "gpt2", "--from", folder_.path() + "/hf", "--data", "train.bin", "--steps", "3", "--print"});
  EXPECT_TRUE(absl::StrContains(train.out, "layers: 3")) << train.out << train.err;

  folder_.Write("hf/config.json", R"({"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4,
      "hidden_size": 16, "intermediate_size": 24, "vocab_size": 300, "max_position_embeddings": 32})");
  const Ended other = Run({"submit", "-d", file});
  EXPECT_EQ(other.code, 2);
  EXPECT_TRUE(absl::StrContains(other.err, "model.from: ") &&
              absl::StrContains(other.err, "is a llama 2x16, this job's model.family is gpt2"))
      << other.err;
  folder_.Write("hf/config.json", R"({"model_type":"gemma"})");
  const Ended wrong = Run({"submit", "-d", file});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_TRUE(absl::StrContains(wrong.err, absl::StrCat(file, ":4:")) &&
              absl::StrContains(wrong.err, absl::StrCat("model.from: ", config, ": model_type is \"gemma\"")))
      << wrong.err;
  const Ended resumed = Run({"train", "--model", "gpt2", "--resume_from", folder_.path() + "/hf", "--data", "train.bin",
                             "--steps", "3", "--print"});
  EXPECT_TRUE(absl::StrContains(resumed.err, absl::StrCat("--resume-from: ", config))) << resumed.err;
  unlink(config.c_str());
  EXPECT_EQ(Run({"submit", "-d", file}).code, 0) << "only the workers may see it";
  EXPECT_FALSE(store_.submitted.train().model().gpt2().has_layers());
}

TEST_F(MusterTest, UiPrintsALinkThatSignsIn) {
  Serve();
  const Ended ui = Run({"ui"});
  EXPECT_EQ(ui.code, 0) << ui.err;
  EXPECT_EQ(ui.out, "http://127.0.0.1:7080/#code=abcdefghijkmnpqrstuvwxyz23456789\n");
  EXPECT_TRUE(absl::StrContains(ui.err, "signs in ann (submitter)")) << ui.err;
  EXPECT_EQ(json::parse(Run({"ui", "-o", "json"}).out)["url"], "http://127.0.0.1:7080");
}

TEST_F(MusterTest, TopShowsJobsNodesAndTotals) {
  PutJob("a-0001", v1::JOB_STATE_RUNNING);
  PutJob("b-0001", v1::JOB_STATE_QUEUED);
  store_.AppendMetrics("a-0001", 5, 2.5);
  AddNode("node-a");
  store_.nodes[0].add_slots()->set_state(v1::SLOT_STATE_USED);
  store_.nodes[0].mutable_slots(0)->set_job("a-0001");
  Serve();
  const Ended once = Run({"top"});
  EXPECT_EQ(once.code, 0);
  EXPECT_TRUE(absl::StrContains(once.out, "jobs: 1 running, 1 waiting   nodes: 1 of 1 live   slots: 1 of 1 busy"))
      << once.out;
  EXPECT_TRUE(absl::StrContains(once.out, "a-0001")) << once.out;
  EXPECT_TRUE(absl::StrContains(once.out, "node-a")) << once.out;
  const json tree = json::parse(Run({"top", "-o", "json"}).out);
  EXPECT_EQ(tree["jobs"].size(), 2u);
  EXPECT_EQ(tree["nodes"][0]["id"], "node-a");

  // Live on a terminal, until Ctrl-C.
  Program live(Command({"top"}), environment_, "", /*terminal=*/true);
  EXPECT_TRUE(live.WaitForOut("b-0001"));
  live.Signal(SIGINT);
  EXPECT_EQ(live.Wait().code, 130);
  EXPECT_EQ(Run({"top", "--sort", "size"}).code, 2);
}

TEST_F(MusterTest, InitWritesAJobThatIsAcceptedAsItIs) {
  Serve();
  const std::string path = folder_.path() + "/job.yaml";
  EXPECT_EQ(Run({"init", path, "--data", "train.bin", "--model", "gpt2:small"}).code, 0);
  EXPECT_EQ(Run({"submit", "-d", path}).code, 0);
  EXPECT_EQ(store_.submitted.name(), "gpt2-small");
  EXPECT_EQ(store_.submitted.train().data().tokens(), folder_.path() + "/train.bin");
  const Ended again = Run({"init", path});
  EXPECT_EQ(again.code, 2);
  EXPECT_EQ(again.err, absl::StrCat("muster: ", path, " already exists; name another file, or use --force\n"));
  EXPECT_EQ(Run({"init", path, "--force"}).code, 0);
  EXPECT_EQ(Run({"init", "-", "--model", "gpt2:enormous"}).code, 2);
  EXPECT_EQ(Run({"validate", "--offline", "-"}, Run({"init", "-"}).out).code, 0);
  EXPECT_NE(Run({"init", folder_.path() + "/no/such/folder.yaml"}).code, 0);
  EXPECT_EQ(json::parse(Run({"schema"}).out)["title"], "Muster job");
}

TEST_F(MusterTest, InitNamesTheFlagThatIsWrong) {
  const std::string path = folder_.path() + "/new.yaml";
  const auto says = [&](const std::string& flag, const std::string& value) {
    const Ended ended = Run({"init", path, flag, value});
    EXPECT_EQ(ended.code, 2);
    EXPECT_FALSE(std::filesystem::exists(path));
    return ended.err;
  };
  EXPECT_EQ(says("--name", "UPPER"),
            "muster: --name: invalid job name \"UPPER\": use a-z, 0-9 and -, not at either end, at most 40 "
            "characters\n");
  EXPECT_EQ(says("--model", "gpt2:enormous"),
            "muster: --model: expected tiny, small, medium, large or xl, got the string \"enormous\"\n");
  EXPECT_TRUE(
      absl::StartsWith(says("--model", "resnet"), "muster: --model resnet: init writes jobs of language models"));
  EXPECT_TRUE(
      absl::EndsWith(Run({"init", path}).err,
                     "Next: put tokens into train.bin (muster data prepare), then: muster submit " + path + "\n"));
  folder_.Write("train.bin", "");
  EXPECT_EQ(Run({"init", path, "--force"}).err, absl::StrCat("wrote ", path, ". Next: muster submit ", path, "\n"));
}

class DoctorTest : public MusterTest {
 protected:
  DoctorTest() {
    for (const char* name : {"muster-coordinator", "muster-worker", "muster-step", "muster-exec", "muster-trainer"}) {
      folder_.Write(name, "#!/bin/sh\necho 0.1.0\n", true);
    }
    folder_.Write("muster-step", "#!/bin/sh\necho 'no rank folder: --version' >&2\nexit 1\n", true);
    environment_["MUSTER_BIN_DIR"] = folder_.path();
    AddNode("node-a");
    store_.nodes[0].set_version("0.1.0");
    store_.nodes[0].add_slots();
  }
  // Severity and text of the findings of one check.
  std::string Of(const std::string& check) const {
    std::string text;
    const Ended ran = Run({"doctor", "-o", "json"});
    for (const json& finding : json::parse(ran.out)) {
      if (finding["check"] != check) continue;
      absl::StrAppend(&text, finding["severity"].get<std::string>(), ": ", finding["text"].get<std::string>(), "\n");
      // What is a problem has a remedy.
      EXPECT_TRUE(finding["severity"] == "ok" || !finding["remedy"].empty()) << finding;
    }
    EXPECT_EQ(ran.code, absl::StrContains(ran.out, "\"problem\"") ? 1 : 0) << ran.out;
    return text;
  }
};

TEST_F(DoctorTest, NothingIsWrong) {
  Serve();
  const Ended ran = Run({"doctor"});
  EXPECT_EQ(ran.code, 0) << ran.out;
  EXPECT_EQ(ran.err, "no problems found\n") << ran.out;
  EXPECT_TRUE(absl::StrContains(Of("nodes"), "ok: 1 live, 1 slot\n")) << Of("nodes");
  EXPECT_TRUE(absl::StrContains(Of("programs"), "muster-trainer 0.1.0, LibTorch loads"));
}

TEST_F(DoctorTest, NamesWhatIsMissing) {
  EXPECT_TRUE(absl::StrContains(Of("coordinator"), "problem: cannot reach the coordinator"));
  Serve();
  unlink((folder_.path() + "/muster-step").c_str());
  folder_.Write("muster-worker", "#!/bin/sh\necho 0.0.9\n", true);
  folder_.Write(
      "muster-trainer",
      "#!/bin/sh\necho 'muster-trainer: error while loading shared libraries: libtorch_cpu.so: cannot open' >&2\n"
      "exit 127\n",
      true);
  const std::string programs = Of("programs");
  EXPECT_TRUE(absl::StrContains(programs, absl::StrCat("problem: not in ", folder_.path(), ": muster-step\n")))
      << programs;
  unlink((folder_.path() + "/muster-exec").c_str());
  EXPECT_TRUE(absl::StrContains(Of("programs"), ": muster-step, muster-exec\n")) << Of("programs");
  EXPECT_TRUE(absl::StrContains(programs, "problem: muster-worker is version 0.0.9, muster is 0.1.0")) << programs;
  EXPECT_TRUE(absl::StrContains(programs, "problem: muster-trainer does not load: ")) << programs;
  EXPECT_EQ(Run({"doctor"}).code, 1);
}

TEST_F(DoctorTest, LooksAtFoldersAndNodes) {
  store_.nodes[0].set_state(v1::NODE_STATE_AWAY);
  Serve();
  EXPECT_TRUE(absl::StrContains(Of("nodes"), "note: node-a is away"));
  EXPECT_TRUE(absl::StrContains(Of("nodes"), "problem: no worker is connected"));
  const Ended file = Run({"doctor", "--folder", folder_.Write("plain", "")});
  EXPECT_TRUE(absl::StrContains(file.out, "plain is a file, not a folder")) << file.out;
  chmod(folder_.path().c_str(), 0755);
  EXPECT_TRUE(absl::StrContains(Of("runtime folder"), "problem: ")) << Of("runtime folder");
  chmod(folder_.path().c_str(), 0700);
  environment_["MUSTER_RUNTIME_DIR"] = "/tmp/" + std::string(100, 'x');
  EXPECT_TRUE(absl::StrContains(Of("runtime folder"), "too long for a socket"));
}

TEST_F(MusterTest, LabelsAndNotes) {
  v1::Job job = PutJob("a-0001", v1::JOB_STATE_RUNNING);
  job.add_labels("stage=test");
  job.add_labels("team=nlp");
  job.set_note("looks good");
  store_.PutJob(job);
  Serve();
  EXPECT_EQ(Run({"label", "a-0001", "team=nlp", "x=1=2", "old-"}).code, 0);
  EXPECT_TRUE(Called("Label team=nlp x=1=2 remove old"));
  EXPECT_EQ(Run({"label", "a-0001", "team"}).err,
            "muster: \"team\": expected KEY=VALUE to set a label, or KEY- to remove one\n");
  EXPECT_EQ(Run({"label", "a-0001", "x=1"}).err,
            "a-0001: labels stage=test, team=nlp\n");  // of the coordinator's answer
  const Ended noted = Run({"note", "a-0001", "looks good"});
  EXPECT_EQ(noted.code, 0);
  EXPECT_EQ(noted.err, "a-0001: note \"looks good\"\n");
  EXPECT_EQ(Run({"note", "a-0001", "looks good", "-o", "name"}).out, "a-0001\n");
  EXPECT_TRUE(Called("Note text looks good"));
  EXPECT_EQ(Run({"note", "a-0001", ""}).code, 0);
  EXPECT_TRUE(Called("Note text "));
  EXPECT_EQ(Run({"ps", "-l", "team=nlp,stage!=prod", "-o", "name"}).out, "a-0001\n");
  EXPECT_TRUE(Called("List team=nlp,stage!=prod"));
  const std::string wide = Run({"ps", "-o", "wide"}).out;
  EXPECT_TRUE(absl::StrContains(wide, "stage=test,team=nlp  looks good")) << wide;
  const std::string described = Run({"describe", "a-0001"}).out;
  EXPECT_TRUE(absl::StrContains(described, "Labels:      stage=test, team=nlp\n")) << described;
  EXPECT_TRUE(absl::StrContains(described, "Note:        looks good\n")) << described;
}

TEST_F(MusterTest, AuditReadsAllPagesAndPrintsThemInOrder) {
  for (uint64_t number = 5; number > 0; --number) {
    v1::AuditEntry& entry = *store_.audit.add_entries();
    entry.set_number(number);
    entry.mutable_time()->set_seconds(1'800'000'000 + static_cast<int64_t>(number));
    entry.set_user("ann");
    entry.set_role("submitter");
    entry.set_peer("unix:");
    entry.set_method("Jobs/Cancel");
    entry.set_object(absl::StrCat("job/a-", number));
    entry.set_code(number == 2 ? "PERMISSION_DENIED" : "OK");
    if (number == 2) entry.set_message("ann may not\x1b[31m");
    if (number == 2) entry.set_left_out(7);
  }
  Serve();
  const json all =
      json::parse(Run({"audit", "-o", "json", "--user", "ann", "--method", "Cancel", "--object", "job/"}).out);
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all[0]["number"], 1);
  EXPECT_EQ(all[4]["object"], "job/a-5");
  EXPECT_TRUE(Called("ListAudit user: \"ann\" method: \"Cancel\" object: \"job/\""));
  EXPECT_TRUE(Called("ListAudit user: \"ann\" method: \"Cancel\" object: \"job/\" page: \"4\""));
  const std::string table = Run({"audit"}).out;
  EXPECT_TRUE(absl::StrContains(
      table,
      "2027-01-15T08:00:02Z  ann   submitter  -      unix:  Jobs/Cancel  job/a-2  PERMISSION_DENIED: ann may "
      "not\\x1b[31m [7 earlier calls of this user that changed nothing are not listed]\n"))
      << table;
  const json newest = json::parse(Run({"audit", "--tail", "3", "-o", "json"}).out);
  ASSERT_EQ(newest.size(), 3u);
  EXPECT_EQ(newest[0]["number"], 3);
  EXPECT_EQ(Run({"audit", "--tail", "0", "-o", "json"}).out, "[]\n");
  store_.audit.Clear();
  EXPECT_EQ(Run({"audit"}).err, "no such entries\n");
  store_.Fail("ListAudit", absl::PermissionDeniedError("it needs the role admin"));
  EXPECT_EQ(Run({"audit"}).code, 4);
}

TEST_F(MusterTest, PsReadsAllPagesAlsoBehindOneWithoutJobs) {
  std::string all;
  for (int i = 1; i <= 5; ++i) {
    PutJob(absl::StrCat("a-000", i), v1::JOB_STATE_COMPLETED);
    absl::StrAppend(&all, "a-000", i, "\n");
  }
  store_.jobs_of_a_reply = 2;
  Serve();
  EXPECT_EQ(Run({"ps", "-a", "-l", "team=nlp", "-o", "name"}).out, all);
  std::vector<std::string> pages;
  for (const std::string& call : store_.Calls()) {
    if (absl::StartsWith(call, "ListJobs ")) pages.push_back(call.substr(9));
  }
  const std::string asked = "all: true";
  EXPECT_EQ(pages, (std::vector<std::string>{
                       asked + " selector: \"team=nlp\"", asked + " page: \"~2\" selector: \"team=nlp\"",
                       asked + " page: \"2\" selector: \"team=nlp\"", asked + " page: \"~4\" selector: \"team=nlp\"",
                       asked + " page: \"4\" selector: \"team=nlp\""}));
  EXPECT_EQ(json::parse(Run({"ps", "-a", "-o", "json"}).out).size(), 5u);
}

TEST_F(MusterTest, CompareShowsWhatDiffersAndHowTheyStand) {
  for (const auto& [id, lr] : {std::pair("a-0001", 1e-3), std::pair("b-0002", 3e-3)}) {
    v1::Job job = PutJob(id, v1::JOB_STATE_COMPLETED);
    job.set_owner("ann");
    job.set_progress_step(100);
    job.mutable_spec()->set_name("same");
    job.mutable_spec()->mutable_train()->mutable_optimizer()->set_lr(lr);
    job.mutable_time_breakdown()->set_training(60);
    store_.PutJob(job);
  }
  for (const auto& [step, loss] : {std::pair(1, 3.0), std::pair(2, 1.5), std::pair(3, 2.0)}) {
    store_.AppendMetrics("a-0001", static_cast<uint64_t>(step), loss);
  }
  store_.AppendMetrics("b-0002", 1, 4.0);
  Serve();
  EXPECT_EQ(Run({"compare", "a-0001", "b-0002"}).out,
            "FIGURE                   a-0001     b-0002\n"
            "state                 completed  completed\n"
            "user                        ann        ann\n"
            "step                        100        100\n"
            "loss                          2          4\n"
            "best loss                   1.5          4\n"
            "validation loss             2.5        4.5\n"
            "best validation loss          2        4.5\n"
            "training seconds             60         60\n"
            "restarts                      0          0\n"
            "\n"
            "FIELD         a-0001  b-0002\n"
            "optimizer.lr   0.001   0.003\n");
  const json jobs = json::parse(Run({"compare", "a-0001", "b-0002", "-o", "json"}).out);
  EXPECT_EQ(jobs[0]["metrics"]["loss"]["best"], 1.5);
  EXPECT_EQ(jobs[0]["metrics"]["loss"]["last"], 2.0);
  EXPECT_EQ(jobs[1]["fields"]["optimizer.lr"], "0.003");
  EXPECT_EQ(Run({"compare", "a-0001"}).code, 2);
}

}  // namespace
}  // namespace muster::cli
