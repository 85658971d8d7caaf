// Requests to the ranks of a running job.
#include <gmock/gmock.h>

#include "coordinator/core/world_test.h"

namespace muster::core {
namespace {

using ::testing::HasSubstr;

uint64_t RequestOf(World& w, const std::string& node, int rank = 0) {
  return w.core->DesiredFor(NodeId(node)).ranks(rank).run().checkpoint_request();
}

TEST(Requests, ACheckpointRequestIsForTheNewestGenerationOnly) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 1)});
  const JobId id = w.Submit(Spec("x"));
  EXPECT_EQ(RequestOf(w, "a"), 0u);
  w.Report(id, RANK_STATE_RUNNING);
  const Outcome asked = w.Do(CheckpointJob{id, 77});
  ASSERT_TRUE(asked.status.ok()) << asked.status;
  ASSERT_EQ(asked.actions.size(), 1u);
  EXPECT_EQ(std::get<SendDesired>(asked.actions[0]).node.value(), "a");
  EXPECT_TRUE(asked.rows.empty() && asked.events.empty()) << "a restart ends the caller's wait, so it is not stored";
  EXPECT_EQ(RequestOf(w, "a"), 77u);
  w.Do(CheckpointJob{id, 78});
  EXPECT_EQ(RequestOf(w, "a"), 78u);
  // Its next generation starts without it.
  w.Report(id, RANK_STATE_EXITED, RankExit::FAILED);
  w.PassBackoff();
  ASSERT_EQ(w.Newest(id).number(), 2u);
  EXPECT_EQ(RequestOf(w, "a"), 0u);
}

TEST(Requests, AJobThatDoesNotRunOrHasNoFolderRefuses) {
  World w(AnyWorld());
  const auto refused = [&](const JobId& id, const std::string& says) {
    const Outcome out = w.Do(CheckpointJob{id, 1});
    EXPECT_EQ(out.status.code(), absl::StatusCode::kFailedPrecondition) << out.status;
    EXPECT_THAT(std::string(out.status.message()), HasSubstr(says));
  };
  const JobId waiting = w.Submit(Spec("x"));
  refused(waiting, "is queued, not running: it has nothing new to write");
  JobSpec spec = Spec("y");
  spec.mutable_train()->mutable_checkpoint()->clear_path();
  refused(w.Submit(spec), "writes no checkpoints: its spec has no checkpoint.path");
  w.Do(CancelJob{waiting});
  refused(waiting, "is cancelled, not running");
  EXPECT_EQ(w.Do(CheckpointJob{JobId("no-such-job"), 1}).status.code(), absl::StatusCode::kNotFound);
}

TEST(Requests, TheHighestStepIsOfTheNewestGeneration) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 1)});
  const JobId id = w.Submit(Spec("x"));
  w.Report(id, RANK_STATE_RUNNING);
  RankRecord record{{id, 1, 0}, {}};
  record.record.mutable_metrics()->set_step(17);
  w.Do(record);
  EXPECT_EQ(w.core->HighestStep(id), 17u);
  w.Report(id, RANK_STATE_EXITED, RankExit::FAILED);
  w.PassBackoff();
  EXPECT_EQ(w.core->HighestStep(id), 0u);
  EXPECT_EQ(w.core->HighestStep(JobId("no-such-job")), 0u);
}

std::vector<std::string> LabelsOf(World& w, const JobId& id) {
  const Job& job = *w.core->Stored(id);
  return {job.labels().begin(), job.labels().end()};
}

TEST(Requests, LabelsAreThoseOfTheSpecAndWhatWasChangedSince) {
  World w(AnyWorld());
  JobSpec spec = Spec("x");
  spec.add_labels("team=nlp");
  spec.add_labels("stage=test");
  ASSERT_TRUE(spec::Resolve({}, spec).empty());
  const JobId id = w.Submit(spec);
  EXPECT_EQ(LabelsOf(w, id), (std::vector<std::string>{"stage=test", "team=nlp"}));
  EXPECT_TRUE(w.Do(LabelJob{id, {"a=1=2", "team=vision"}, {"stage", "none"}}).status.ok());
  EXPECT_EQ(LabelsOf(w, id), (std::vector<std::string>{"a=1=2", "team=vision"}));
  const Outcome again = w.Do(LabelJob{id, {"team=vision"}, {"stage"}});
  EXPECT_TRUE(again.status.ok() && again.rows.empty()) << "a retry changes nothing";
  for (const char* bad : {"team", "team!=x", "=x", "team=", "te am=x"}) {
    EXPECT_EQ(w.Do(LabelJob{id, {"good=1", bad}, {}}).status.code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(LabelsOf(w, id), (std::vector<std::string>{"a=1=2", "team=vision"})) << "all or nothing";
  std::vector<std::string> many;
  for (int i = 0; i < 63; ++i) many.push_back(absl::StrCat("k", i, "=v"));
  EXPECT_EQ(w.Do(LabelJob{id, many, {}}).status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(w.Do(LabelJob{id, many, {"a"}}).status.ok()) << "64";
  w.Do(CancelJob{id});
  EXPECT_TRUE(w.Do(LabelJob{id, {"done=yes"}, {"k1"}}).status.ok()) << "also of a job that has ended";
  EXPECT_EQ(w.Do(LabelJob{JobId("none"), {"a=1"}, {}}).status.code(), absl::StatusCode::kNotFound);
  const std::vector<std::string> before = LabelsOf(w, id);
  w.Restart();
  EXPECT_EQ(LabelsOf(w, id), before);
}

TEST(Requests, ANoteIsOneLine) {
  World w(AnyWorld());
  const JobId id = w.Submit(Spec("x"));
  EXPECT_TRUE(w.Do(NoteJob{id, "die Kurve f\xc3\xa4llt"}).status.ok());
  for (const std::string& bad : {std::string("a\nb"), std::string("\x1b[31m"), std::string("\xff"),
                                 std::string(1025, 'a'), std::string("a\xe2\x80\xae")}) {
    EXPECT_EQ(w.Do(NoteJob{id, bad}).status.code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(w.core->Stored(id)->note(), "die Kurve f\xc3\xa4llt");
  EXPECT_TRUE(w.Do(NoteJob{id, std::string(1024, 'a')}).status.ok());
  EXPECT_TRUE(w.Do(NoteJob{id, ""}).status.ok());
  EXPECT_EQ(w.core->Stored(id)->note(), "");
}

std::vector<std::string> TemplatesOf(const World& w) {
  std::vector<std::string> all;
  for (const Template& found : w.core->ListTemplates()) {
    all.push_back(absl::StrCat(found.name(), " of ", found.owner()));
    EXPECT_EQ(found.text(), "") << "lists have no texts";
  }
  return all;
}

TEST(Templates, AreKeptWithTheirFirstOwner) {
  World w(AnyWorld());
  EXPECT_TRUE(w.Do(SetTemplate{"base", "steps: 1\n", "ann"}).status.ok());
  const Outcome again = w.Do(SetTemplate{"base", "steps: 1\n", "ann"});
  EXPECT_TRUE(again.status.ok());
  EXPECT_TRUE(again.rows.empty()) << "nothing is changed";
  w.clock.Advance(absl::Seconds(90));
  const Outcome changed = w.Do(SetTemplate{"base", "steps: 2\n", "root"});
  ASSERT_EQ(changed.rows.size(), 1u);
  EXPECT_EQ(changed.rows[0].key, "template/base");
  EXPECT_TRUE(changed.events.empty());
  w.Do(SetTemplate{"wide", "resources: {ranks: 8}\n", "bob"});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(TemplatesOf(w), (std::vector<std::string>{"base of ann", "wide of bob"}));
    ASSERT_NE(w.core->FindTemplate("base"), nullptr);
    EXPECT_EQ(w.core->FindTemplate("base")->text(), "steps: 2\n");
    EXPECT_EQ(w.core->FindTemplate("base")->owner(), "ann");
    EXPECT_EQ(w.core->FindTemplate("other"), nullptr);
    w.Restart();
  }
  const Outcome deleted = w.Do(DeleteTemplate{"base"});
  ASSERT_EQ(deleted.rows.size(), 1u);
  EXPECT_FALSE(deleted.rows[0].value.has_value());
  const Outcome once_more = w.Do(DeleteTemplate{"base"});
  EXPECT_TRUE(once_more.status.ok()) << "it may be a retry";
  EXPECT_TRUE(once_more.rows.empty());
  w.Restart();
  EXPECT_EQ(TemplatesOf(w), (std::vector<std::string>{"wide of bob"}));
}

TEST(Templates, AreBounded) {
  WorldOptions options = AnyWorld();
  options.max_submits_of_user = 0;
  World w(options);
  const auto set = [&](const std::string& name, const std::string& text, const std::string& user = "ann") {
    return w.Do(SetTemplate{name, text, user}).status;
  };
  for (const char* name : {"", "Base", "-a", "a b", "a/b"}) {
    EXPECT_EQ(set(name, "a: 1").code(), absl::StatusCode::kInvalidArgument) << name;
  }
  EXPECT_TRUE(set("a", std::string(64 << 10, 'x')).ok());
  EXPECT_TRUE(set("a", "# gr\xc3\xbc\xc3\x9f\r\n\tb: 1\n").ok());
  for (const std::string& text :
       {std::string((64 << 10) + 1, 'x'), std::string(), std::string("a: \x1b[31m"), std::string("a\rb")}) {
    EXPECT_EQ(set("a", text).code(), absl::StatusCode::kInvalidArgument) << text.size();
  }
  for (int i = 1; i < 100; ++i) ASSERT_TRUE(set(absl::StrCat("a", i), "a: 1").ok());
  EXPECT_EQ(set("a100", "a: 1").message(), "ann has 100 templates already: delete some");
  EXPECT_TRUE(set("a", "a: 2").ok()) << "it is there already";
  for (int i = 0; i < 900; ++i) ASSERT_TRUE(set(absl::StrCat("b", i), "a: 1", absl::StrCat("user-", i % 10)).ok());
  EXPECT_EQ(set("c", "a: 1", "eve").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(set("c", "a: 1", "eve").message(), "there are 1000 templates already: delete some");
}

TEST(Templates, ChangesOfAUserAreCounted) {
  WorldOptions options = AnyWorld();
  options.max_submits_of_user = 2;
  World w(options);
  EXPECT_TRUE(w.Do(SetTemplate{"a", "a: 1", "ann"}).status.ok());
  EXPECT_TRUE(w.Do(SetTemplate{"a", "a: 1", "ann"}).status.ok()) << "changes nothing, so it is not counted";
  EXPECT_TRUE(w.Do(SetTemplate{"a", "a: 2", "ann"}).status.ok());
  EXPECT_EQ(w.Do(SetTemplate{"a", "a: 3", "ann"}).status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(w.Do(SetTemplate{"b", "a: 3", "bob"}).status.ok());
  w.clock.Advance(absl::Seconds(61));
  EXPECT_TRUE(w.Do(SetTemplate{"a", "a: 3", "ann"}).status.ok());
}

TEST(Requests, AListOfSelectedJobsIsReadInPages) {
  World w(AnyWorld());
  std::vector<std::string> wanted;
  for (int i = 0; i < 30; ++i) {
    const JobId id = w.Submit(Spec(absl::StrCat("x", i)));
    if (i % 3 == 0) w.Do(LabelJob{id, {"team=nlp"}, {}});
    if (i % 2 == 0) w.Do(CancelJob{id});
    if (i % 3 == 0) wanted.push_back(id.value());
  }
  const auto selected = [](const Job& job) { return job.labels_size() > 0; };
  for (const size_t rows : {1, 2, 3, 7, 100}) {
    std::vector<std::string> seen;
    std::string page;
    do {
      const Core::JobPage reply = w.core->ListJobs(true, page, rows, size_t{1} << 20, std::nullopt, selected).value();
      EXPECT_LE(reply.jobs.size(), rows);
      for (const Job& job : reply.jobs) seen.push_back(job.id());
      page = reply.next;
    } while (!page.empty());
    std::sort(seen.begin(), seen.end());
    std::vector<std::string> sorted = wanted;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(seen, sorted) << rows;
  }
}

// One call holds up the loop for a bounded time, however few jobs fit.
TEST(Requests, APageOfSelectedJobsLooksAtABoundedNumber) {
  World w(AnyWorld());
  JobId oldest;
  for (size_t i = 0; i <= Core::kLookedAtOnce; ++i) {
    if (i % 500 == 0) w.clock.Advance(absl::Minutes(1));  // for the limit of submits
    const JobId id = w.Submit(Spec(absl::StrCat("x", i)));
    w.Do(CancelJob{id});
    if (i == 0) oldest = id;
  }
  size_t looked = 0;
  const auto selected = [&](const Job& job) {
    ++looked;
    return job.id() == oldest.value();
  };
  const Core::JobPage first = w.core->ListJobs(true, "", 10, size_t{1} << 20, {}, selected).value();
  EXPECT_TRUE(first.jobs.empty());
  EXPECT_EQ(looked, Core::kLookedAtOnce);
  ASSERT_NE(first.next, "");
  const Core::JobPage second = w.core->ListJobs(true, first.next, 10, size_t{1} << 20, {}, selected).value();
  ASSERT_EQ(second.jobs.size(), 1u);
  EXPECT_EQ(second.jobs[0].id(), oldest.value());
  EXPECT_EQ(second.next, "");
  EXPECT_EQ(looked, Core::kLookedAtOnce + 1);
}

TEST(Requests, LabelsAndNotesOfAUserAreCountedByTheMinute) {
  WorldOptions options = AnyWorld();
  options.max_submits_of_user = 3;
  World w(options);
  const JobId id = w.Submit(Spec("x"));
  const auto label = [&](const std::string& user, int value) {
    return w.Do(LabelJob{id, {absl::StrCat("a=", value)}, {}, user}).status.code();
  };
  EXPECT_EQ(label("ann", 1), absl::StatusCode::kOk);
  EXPECT_EQ(label("ann", 2), absl::StatusCode::kOk);
  EXPECT_EQ(label("ann", 2), absl::StatusCode::kOk) << "changes nothing, so it is not counted";
  EXPECT_TRUE(w.Do(NoteJob{id, "text", "ann"}).status.ok());
  EXPECT_EQ(label("ann", 4), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(w.Do(NoteJob{id, "other", "ann"}).status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(w.core->Stored(id)->note(), "text");
  EXPECT_EQ(label("bob", 5), absl::StatusCode::kOk);
  w.clock.Advance(absl::Seconds(61));
  EXPECT_EQ(label("ann", 6), absl::StatusCode::kOk);
}

}  // namespace
}  // namespace muster::core
