#include "coordinator/notify/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "testing/temporary_folder.h"

namespace muster::notify {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(NotifyConfig, ReadsDestinations) {
  const auto read = ParseConfig(R"(
notify:
- name: ops
  webhook: {url: "https://hooks.example.com/muster?to=ops", secret_file: /etc/muster/ops.secret}
  events: [job.failed, node]
  timeout: 3s
  give_up_after: 1h
- name: mail
  command: [/etc/muster/mail, ops@example.com]
  events: [all]
  users: [ann]
  projects: [nlp, vision]
)");
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), 2u);
  const Destination& ops = (*read)[0];
  EXPECT_EQ(ops.webhook->url.host, "hooks.example.com");
  EXPECT_EQ(ops.webhook->url.port, "443");
  EXPECT_EQ(ops.webhook->url.target, "/muster?to=ops");
  EXPECT_EQ(ops.webhook->secret_file, "/etc/muster/ops.secret");
  EXPECT_EQ(ops.timeout, absl::Seconds(3));
  EXPECT_EQ(ops.give_up_after, absl::Hours(1));
  EXPECT_THAT(ops.events, ElementsAre("job.failed", "node"));
  const Destination& mail = (*read)[1];
  EXPECT_FALSE(mail.webhook.has_value());
  EXPECT_THAT(mail.command, ElementsAre("/etc/muster/mail", "ops@example.com"));
  EXPECT_EQ(mail.timeout, absl::Seconds(10));
}

TEST(NotifyConfig, SaysWhatIsWrong) {
  const struct {
    const char* entry;
    const char* says;
  } cases[] = {
      {"{name: A, command: [/x], events: [all]}", "notify[0]: name: expected 1 to 40 characters"},
      {"{name: a, events: [all]}", "notify: a: needs one of webhook and command"},
      {"{name: a, command: [/x], webhook: {url: 'http://h'}, events: [all]}", "needs one of webhook and command"},
      {"{name: a, command: [x], events: [all]}", "command: expected an absolute path"},
      {"{name: a, command: [/x]}", "events: is missing"},
      {"{name: a, command: [/x], events: []}", "events: expected a list of 1 to 256"},
      {"{name: a, command: [/x], event: [all]}", "unknown key \"event\""},
      {"{name: a, command: /x, events: [all]}", "command: expected a list"},
      {"{name: a, command: [/x], events: [all], timeout: 1ms}", "timeout: expected 1s to 10m, got \"1ms\""},
      {"{name: a, command: [/x], events: [job.faild]}", "notify: a: events: there is no event \"job.faild\""},
      {"{name: a, command: [/x], events: [job.]}", "events: there is no event \"job.\""},
      {"{name: a, command: [/x], events: [jo]}", "events: there is no event \"jo\""},
      {"{name: a, webhook: {url: 'ftp://h'}, events: [all]}", "notify: a: webhook: url: expected http://HOST"},
      {"{name: a, webhook: {url: 'http://ann:pw@h'}, events: [all]}", "a user or a password in a URL"},
      {"{name: a, webhook: {url: 'http://h', ca_file: /x}, events: [all]}", "ca_file: only with https"},
  };
  for (const auto& c : cases) {
    const absl::Status status = ParseConfig(absl::StrCat("notify:\n- ", c.entry, "\n")).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.entry;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.says));
  }
  EXPECT_THAT(std::string(ParseConfig("notify:\n- {name: a").status().message()), HasSubstr("line 2"));
  EXPECT_THAT(std::string(ParseConfig("a: 1").status().message()), HasSubstr("unknown key \"a\""));
  const std::string twice = "- {name: a, command: [/x], events: [all]}\n";
  EXPECT_THAT(std::string(ParseConfig("notify:\n" + twice + twice).status().message()), HasSubstr("is there twice"));
}

TEST(NotifyConfig, Urls) {
  const struct {
    const char *text, *host, *port, *target;
    bool encrypted;
  } cases[] = {
      {"http://127.0.0.1:8080", "127.0.0.1", "8080", "/", false},
      {"https://h", "h", "443", "/", true},
      {"http://h?x=1", "h", "80", "/?x=1", false},
      {"http://[::1]:81/a/b", "::1", "81", "/a/b", false},
      {"https://[::1]", "::1", "443", "/", true},
  };
  for (const auto& c : cases) {
    const absl::StatusOr<Url> url = ParseUrl(c.text);
    ASSERT_TRUE(url.ok()) << c.text << url.status();
    EXPECT_EQ(url->host, c.host);
    EXPECT_EQ(url->port, c.port);
    EXPECT_EQ(url->target, c.target);
    EXPECT_EQ(url->encrypted, c.encrypted);
  }
  for (const char* bad : {"", "h", "http://", "http://:80", "http://h:0", "http://h:65536", "http://h:x", "http://h/#a",
                          "http://h/ a", "http://h/\r\nX: y", "http://[::1", "http://[::1]80", "file:///etc/passwd"}) {
    EXPECT_FALSE(ParseUrl(bad).ok()) << bad;
  }
}

TEST(NotifyConfig, ADestinationWantsKindsUsersAndProjects) {
  Destination to;
  to.events = {"job.failed", "node"};
  const auto wants = [&](const char* kind, const char* user = "", const char* project = "") {
    Notice notice;
    notice.event.set_kind(kind);
    notice.user = user;
    notice.project = project;
    return Wants(to, notice);
  };
  EXPECT_TRUE(wants("job.failed", "ann"));
  EXPECT_TRUE(wants("node.lost"));
  EXPECT_FALSE(wants("job.failed_somehow"));
  EXPECT_FALSE(wants("nodes.lost"));
  to.users = {"ann"};
  EXPECT_TRUE(wants("job.failed", "ann", "nlp"));
  EXPECT_FALSE(wants("job.failed", "bob", "nlp"));
  EXPECT_FALSE(wants("node.lost")) << "of no user";
  to.projects = {"vision"};
  EXPECT_FALSE(wants("job.failed", "ann", "nlp"));
  to.events = {"all"};
  EXPECT_TRUE(wants("anything.else", "ann", "vision"));
}

TEST(NotifyConfig, ASecretIsForNoOneElse) {
  const TemporaryFolder folder;
  const std::string secret = folder.path() + "/secret", config = folder.path() + "/notify.yaml";
  std::ofstream(secret) << "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n";
  std::ofstream(config) << "notify:\n- {name: a, webhook: {url: 'http://h', secret_file: " << secret
                        << "}, events: [all]}\n";
  chmod(secret.c_str(), 0644);
  EXPECT_EQ(LoadConfig(config).status().code(), absl::StatusCode::kPermissionDenied);
  chmod(secret.c_str(), 0600);
  EXPECT_TRUE(LoadConfig(config).ok());
  EXPECT_EQ(LoadConfig(folder.path() + "/none").status().code(), absl::StatusCode::kNotFound);
  for (const char* none : {"", "\n", "whsec_\n", "whsec_not base64!\n"}) {
    std::ofstream(secret) << none;
    EXPECT_EQ(LoadConfig(config).status().code(), absl::StatusCode::kInvalidArgument) << none;
  }
  std::ofstream(secret) << "a plain secret\n";
  EXPECT_TRUE(LoadConfig(config).ok());
  chmod(config.c_str(), 0666);
  EXPECT_EQ(LoadConfig(config).status().code(), absl::StatusCode::kPermissionDenied) << "others may name a command";
}

TEST(NotifyConfig, ChecksTheFilesThatItNames) {
  const TemporaryFolder folder;
  const std::string config = folder.path() + "/notify.yaml", named = folder.path() + "/named";
  std::ofstream(config) << "notify:\n- {name: a, command: [" << named << "], events: [all]}\n";
  const auto load = [&] { return LoadConfig(config).status(); };
  EXPECT_EQ(load().code(), absl::StatusCode::kNotFound);
  std::ofstream(named) << "#!/bin/sh\n";
  chmod(named.c_str(), 0600);
  EXPECT_EQ(load().code(), absl::StatusCode::kPermissionDenied) << load();
  EXPECT_THAT(std::string(load().message()), HasSubstr("notify.yaml: a: cannot run " + named));
  chmod(named.c_str(), 0720);
  EXPECT_EQ(load().code(), absl::StatusCode::kPermissionDenied) << "its group may change it";
  chmod(named.c_str(), 0700);
  EXPECT_TRUE(load().ok()) << load();
  std::ofstream(config) << "notify:\n- {name: a, webhook: {url: 'https://h', ca_file: " << named
                        << "x}, events: [all]}\n";
  EXPECT_EQ(load().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace muster::notify
