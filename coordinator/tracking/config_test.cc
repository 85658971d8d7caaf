#include "coordinator/tracking/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "testing/temporary_folder.h"

namespace muster::tracking {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Job JobOf(const std::string& owner, const std::string& project) {
  Job job;
  job.set_owner(owner);
  job.set_project(project);
  job.mutable_spec()->set_name("gpt2");
  return job;
}

TEST(TrackingConfig, ReadsDestinations) {
  const auto read = ParseConfig(R"(
tracking:
- name: ours
  mlflow: {url: "https://mlflow.example.com/team/", token_file: /etc/muster/t, ca_file: /etc/muster/ca.pem}
  experiment: "{project}/{user}/{name}"
  users: [ann]
  projects: [nlp, vision]
  timeout: 3s
  history: false
- name: local
  mlflow: {url: "http://127.0.0.1:5000", password_file: /etc/muster/p}
)");
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), 2u);
  const Destination& ours = (*read)[0];
  EXPECT_EQ(ours.url.host, "mlflow.example.com");
  EXPECT_EQ(ours.url.target, "/team");
  EXPECT_TRUE(ours.url.encrypted);
  EXPECT_EQ(ours.token_file, "/etc/muster/t");
  EXPECT_EQ(ours.ca_file, "/etc/muster/ca.pem");
  EXPECT_EQ(ours.timeout, absl::Seconds(3));
  EXPECT_FALSE(ours.history);
  EXPECT_THAT(ours.projects, ElementsAre("nlp", "vision"));
  EXPECT_TRUE(Wants(ours, JobOf("ann", "nlp")));
  EXPECT_FALSE(Wants(ours, JobOf("bob", "nlp")));
  EXPECT_FALSE(Wants(ours, JobOf("ann", ""))) << "the project default";
  EXPECT_EQ(ExperimentOf(ours, JobOf("ann", "nlp")), "nlp/ann/gpt2");
  EXPECT_EQ(ExperimentOf(ours, JobOf("../o'b\n", "nlp")), "nlp/.._o'b_/gpt2");
  const Destination& local = (*read)[1];
  EXPECT_EQ(local.url.target, "");
  EXPECT_TRUE(local.history);
  EXPECT_TRUE(Wants(local, JobOf("anyone", "")));
  EXPECT_EQ(ExperimentOf(local, JobOf("anyone", "")), "muster/default");
}

TEST(TrackingConfig, SaysWhatIsWrong) {
  const struct {
    const char* entry;
    const char* says;
  } cases[] = {
      {"{name: A, mlflow: {url: 'http://h'}}", "tracking[0]: name: expected 1 to 40 characters"},
      {"{name: a}", "tracking: a: mlflow: is missing"},
      {"{name: a, mlflow: {}}", "url: expected http://HOST"},
      {"{name: a, mlflow: {url: 'http://h?x=1'}}", "url: expected no query"},
      {"{name: a, mlflow: {url: 'http://u:p@h'}}", "a user or a password in a URL"},
      {"{name: a, mlflow: {url: 'http://h', token_file: /t}}", "over https only"},
      {"{name: a, mlflow: {url: 'https://h', token_file: /t, password_file: /p}}", "not both"},
      {"{name: a, mlflow: {url: 'http://h', ca_file: /c}}", "ca_file: only with https"},
      {"{name: a, mlflow: {url: 'http://h'}, experiment: '{job}'}", "in braces may be {project}, {user} and {name}"},
      {"{name: a, mlflow: {url: 'http://h'}, experiment: \"a\\nb\"}", "expected one line"},
      {"{name: a, mlflow: {url: 'http://h'}, history: no}", "history: expected true or false"},
      {"{name: a, mlflow: {url: 'http://h'}, timeout: 0s}", "timeout: expected 1s to 10m"},
      {"{name: a, mlflow: {url: 'http://h'}, event: [all]}", "unknown key \"event\""},
      {"{name: a, mlflow: {url: 'http://h'}}\n- {name: a, mlflow: {url: 'http://h'}}", "the name a is there twice"},
  };
  for (const auto& wrong : cases) {
    const absl::Status status = ParseConfig(absl::StrCat("tracking:\n- ", wrong.entry)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong.entry;
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong.says)) << wrong.entry;
  }
  EXPECT_THAT(std::string(ParseConfig("notify: []").status().message()), HasSubstr("unknown key \"notify\""));
}

TEST(TrackingConfig, SecretsAreOneLineThatOthersCannotRead) {
  const TemporaryFolder folder;
  const std::string token = folder.path() + "/token", file = folder.path() + "/tracking.yaml";
  std::ofstream(file) << "tracking:\n- {name: a, mlflow: {url: 'https://h', token_file: " << token << "}}\n";
  chmod(file.c_str(), 0600);
  EXPECT_EQ(LoadConfig(file).status().code(), absl::StatusCode::kNotFound);
  std::ofstream(token) << "abc\n";
  chmod(token.c_str(), 0644);
  EXPECT_EQ(LoadConfig(file).status().code(), absl::StatusCode::kPermissionDenied);
  chmod(token.c_str(), 0600);
  EXPECT_TRUE(LoadConfig(file).ok()) << LoadConfig(file).status();
  EXPECT_EQ(ReadSecret(token).value(), "abc");
  std::ofstream(token) << "abc\nX-Injected: 1\n";
  EXPECT_EQ(LoadConfig(file).status().code(), absl::StatusCode::kInvalidArgument);
  std::ofstream(token) << "abc\n";
  chmod(file.c_str(), 0622);
  EXPECT_EQ(LoadConfig(file).status().code(), absl::StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace muster::tracking
