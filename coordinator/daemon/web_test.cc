// The web page of a real server: who gets in, and what is answered, over sockets.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/rpc/rpc.h"
#include "coordinator/daemon/server_fixture_test.h"
#include "coordinator/daemon/trust_fixture_test.h"
#include "coordinator/web/api.h"
#include "coordinator/web/assets.h"
#include "testing/fake_worker.h"
#include "testing/wait.h"

namespace muster::server {
namespace {

class WebTest : public ServerFixture {
 protected:
  WebTest() {
    options_.web_address = "127.0.0.1:0";
    options_.token_file = folder_.path() + "/tokens";
    std::ofstream(options_.token_file) << "viewer-token-1234 vera viewer\nsubmit-token-1234 sam submitter\n"
                                          "admin-token-1234 ada admin\n";
    chmod(options_.token_file.c_str(), 0600);
    Start();
  }

  // Sends a request and reads its answer until `end`, or until the connection ends.
  std::string Ask(const std::string& method, const std::string& target, std::map<std::string, std::string> fields = {},
                  const std::string& body = "", const std::string& end = "") {
    const std::string host = server_->web_url().substr(7);
    fields.emplace("Host", host);
    fields.emplace("Content-Length", absl::StrCat(body.size()));
    fields.emplace("Connection", "close");
    std::string request = absl::StrCat(method, " ", target, " HTTP/1.1\r\n");
    for (const auto& [name, value] : fields) absl::StrAppend(&request, name, ": ", value, "\r\n");
    absl::StrAppend(&request, "\r\n", body);
    int port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(host.substr(host.rfind(':') + 1), &port));
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    EXPECT_EQ(send(fd, request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
    std::string answer;
    const absl::Time deadline = absl::Now() + kTestPatience;
    while ((end.empty() || !absl::StrContains(answer, end)) && absl::Now() < deadline) {
      pollfd ready{fd, POLLIN, 0};
      if (poll(&ready, 1, 100) <= 0) continue;
      char buffer[4096];
      const ssize_t count = recv(fd, buffer, sizeof(buffer), 0);
      if (count <= 0) break;
      answer.append(buffer, static_cast<size_t>(count));
    }
    close(fd);
    return answer;
  }
  static int StatusOf(const std::string& answer) {
    int status = 0;
    EXPECT_TRUE(absl::SimpleAtoi(answer.substr(9, 3), &status)) << answer;
    return status;
  }
  static std::string Between(const std::string& text, const std::string& begin, const std::string& end) {
    const size_t at = text.find(begin);
    if (at == std::string::npos) return "";
    return text.substr(at + begin.size(), text.find(end, at + begin.size()) - at - begin.size());
  }
  static size_t Count(const std::string& text, const std::string& what) {
    size_t count = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
    return count;
  }
  // The server-sent events of a stream, in their order.
  struct Sent {
    std::string kind, id, data;
  };
  static std::vector<Sent> Items(const std::string& stream) {
    std::vector<Sent> items;
    for (const absl::string_view block : absl::StrSplit(stream, "\n\n")) {
      const std::string text(block);
      if (!absl::StrContains(text, "event: ")) continue;
      items.push_back(
          {Between(text + "\n", "event: ", "\n"), Between(text, "id: ", "\n"), Between(text, "data: ", "\n")});
    }
    return items;
  }
  // Of one kind: the steps of metrics, the texts of logs, the events of state. Whether an item was there when the watch
  // began is left out: that depends on when it began.
  static std::vector<std::string> Of(const std::vector<Sent>& items, const std::string& kind) {
    std::vector<std::string> of;
    for (const Sent& item : items) {
      if (item.kind != kind) continue;
      of.push_back(kind == "metrics" ? Between(item.data, "\"step\":\"", "\"")
                   : kind == "log"   ? Between(item.data, "\"text\":\"", "\"")
                                     : Between(item.data, "\"event\":", ",\"in_snapshot\":"));
    }
    return of;
  }
  std::string SignIn(const std::string& body) {
    return Ask("POST", "/api/v1/sign-in", {{"Content-Type", "application/json"}}, body);
  }
  static std::string CookieOf(const std::string& answer) { return Between(answer, "Set-Cookie: ", ";"); }
  std::string CodeOf(Client& client) {
    SignInReply reply;
    EXPECT_TRUE(client.admin().SignIn(client.Context().get(), SignInRequest(), &reply).ok());
    EXPECT_EQ(reply.url(), server_->web_url());
    return reply.code();
  }
};

TEST_F(WebTest, PagesHaveTheirProtectionAndTheApiNeedsASession) {
  const std::string page = Ask("GET", "/jobs/anything");
  EXPECT_EQ(StatusOf(page), 200);
  for (const char* field : {"Content-Security-Policy: default-src 'none'; script-src 'self'", "frame-ancestors 'none'",
                            "X-Content-Type-Options: nosniff", "Referrer-Policy: no-referrer"}) {
    EXPECT_TRUE(absl::StrContains(page, field)) << field;
  }
  EXPECT_FALSE(absl::StrContains(page, "<script>")) << "no script in the page itself";
  EXPECT_FALSE(absl::StrContains(page, "Access-Control"));
  EXPECT_EQ(StatusOf(Ask("GET", "/assets/app.js")), 200);
  const std::string etag(web::FindAsset("app.js")->etag);
  EXPECT_EQ(StatusOf(Ask("GET", "/assets/app.js", {{"If-None-Match", etag}})), 304);
  for (const char* path : {"/assets/../lock", "/assets/%2e%2e/lock", "/assets/", "/assets//etc/passwd"}) {
    EXPECT_EQ(StatusOf(Ask("GET", path)), 404) << path;
  }
  EXPECT_EQ(StatusOf(Ask("POST", "/")), 405);
  for (const web::Route& route : web::Api::Routes()) {
    EXPECT_EQ(StatusOf(Ask(std::string(route.method), std::string(route.path))), 401) << route.path;
    EXPECT_EQ(
        StatusOf(Ask(std::string(route.method), std::string(route.path), {{"Authorization", "Bearer wrong"}})) / 100,
        absl::EndsWith(std::string(route.path), "/watch") ? 2 : 4)
        << route.path;
  }
}

// The entry of a change through the page says where the browser is; the log is for admins only.
TEST_F(WebTest, TheAuditLogKnowsBrowsersAndIsForAdmins) {
  const std::string job = client_->MustSubmit("a");
  const auto as = [](const std::string& token) {
    return std::map<std::string, std::string>{{"Authorization", "Bearer " + token}};
  };
  EXPECT_EQ(StatusOf(Ask("POST", "/api/v1/jobs/" + job + "/cancel", as("submit-token-1234"))), 403);
  EXPECT_EQ(StatusOf(Ask("GET", "/api/v1/audit", as("submit-token-1234"))), 403);
  const std::string signed_in = SignIn(absl::StrCat("{\"code\":\"", CodeOf(*client_), "\"}"));
  const std::string answer = Ask("GET", "/api/v1/audit?method=Cancel", {{"Cookie", CookieOf(signed_in)}});
  EXPECT_EQ(StatusOf(answer), 200) << answer;
  EXPECT_TRUE(absl::StrContains(answer, "\"user\":\"sam\"")) << answer;
  EXPECT_TRUE(absl::StrContains(answer, "\"peer\":\"web 127.0.0.1:")) << answer;
  EXPECT_TRUE(absl::StrContains(answer, "\"code\":\"PERMISSION_DENIED\"")) << answer;
  EXPECT_EQ(StatusOf(Ask("GET", "/api/v1/audit?since=yesterday", {{"Cookie", CookieOf(signed_in)}})), 400);
}

TEST_F(WebTest, WhoIsNotThePageCannotNameABrowser) {
  const std::string job = client_->MustSubmit("a");
  CancelRequest request;
  request.set_job(job);
  CancelReply reply;
  const auto context = client_->Context();
  context->AddMetadata(rpc::kWebPeer, "guessed 10.9.8.7:1");
  ASSERT_TRUE(client_->jobs().Cancel(context.get(), request, &reply).ok());
  ListAuditRequest about;
  about.set_method("Cancel");
  ListAuditReply entries;
  ASSERT_TRUE(client_->admin().ListAudit(client_->Context().get(), about, &entries).ok());
  ASSERT_EQ(entries.entries_size(), 1);
  EXPECT_TRUE(absl::StartsWith(entries.entries(0).peer(), "unix:")) << entries.entries(0).peer();
}

// A stream that its client leaves open, and reads only on request.
class OpenStream {
 public:
  OpenStream(const std::string& host, const std::string& token) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    int port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(host.substr(host.rfind(':') + 1), &port));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    const std::string request =
        absl::StrCat("GET /api/v1/watch HTTP/1.1\r\nHost: ", host, "\r\nAuthorization: Bearer ", token, "\r\n\r\n");
    EXPECT_EQ(send(fd_, request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
    char status[13] = "";
    EXPECT_EQ(recv(fd_, status, 12, MSG_WAITALL), 12);
    status_ = status;
  }
  ~OpenStream() { close(fd_); }
  OpenStream(const OpenStream&) = delete;
  const std::string& status() const { return status_; }
  // Reads until `text` came, or until the server ended the stream: false.
  bool Has(const std::string& text) {
    const absl::Time deadline = absl::Now() + kTestPatience;
    while (!absl::StrContains(read_, text) && !ended_ && absl::Now() < deadline) {
      pollfd ready{fd_, POLLIN, 0};
      if (poll(&ready, 1, 100) <= 0) continue;
      char buffer[4096];
      const ssize_t count = recv(fd_, buffer, sizeof(buffer), 0);
      ended_ = count <= 0;
      if (!ended_) read_.append(buffer, static_cast<size_t>(count));
    }
    return absl::StrContains(read_, text);
  }
  bool ended() const { return ended_; }
  const std::string& read() const { return read_; }

 private:
  const int fd_;
  std::string status_, read_;
  bool ended_ = false;
};

TEST_F(WebTest, OneTokenCannotTakeAllStreams) {
  const std::string host = server_->web_url().substr(7);
  std::vector<std::unique_ptr<OpenStream>> streams;
  for (int i = 0; i < 32; ++i) {
    streams.push_back(std::make_unique<OpenStream>(host, "viewer-token-1234"));
    EXPECT_EQ(streams.back()->status(), "HTTP/1.1 200") << i;
  }
  EXPECT_EQ(OpenStream(host, "viewer-token-1234").status(), "HTTP/1.1 429");
  EXPECT_EQ(OpenStream(host, "submit-token-1234").status(), "HTTP/1.1 200") << "another user's";
  streams.pop_back();
  EXPECT_TRUE(Eventually([&] { return OpenStream(host, "viewer-token-1234").status() == "HTTP/1.1 200"; }));
}

class WebTokensTest : public TrustFixture {
 protected:
  WebTokensTest() {
    options_.web_address = "127.0.0.1:0";
    Start();
  }
};

TEST_F(WebTokensTest, AnOpenStreamEndsWhenItsTokenIsRevoked) {
  RevokeTokenRequest request;
  RevokeTokenReply reply;
  const std::string ann = MakeToken(TOKEN_ROLE_VIEWER, "ann", 0, request.mutable_id());
  const std::string bob = MakeToken(TOKEN_ROLE_VIEWER, "bob"), host = server_->web_url().substr(7);
  OpenStream anns(host, ann), bobs(host, bob);
  ASSERT_EQ(anns.status(), "HTTP/1.1 200");
  ASSERT_EQ(bobs.status(), "HTTP/1.1 200");
  const std::string first = client_->MustSubmit("first");
  ASSERT_TRUE(anns.Has(first) && bobs.Has(first)) << anns.read() << bobs.read();
  ASSERT_TRUE(client_->trust().RevokeToken(client_->Context().get(), request, &reply).ok());
  EXPECT_FALSE(anns.Has("no server sends this"));
  EXPECT_TRUE(anns.ended()) << anns.read();
  EXPECT_TRUE(absl::StrContains(anns.read(), "event: refused\ndata: {\"error\":{\"code\":\"UNAUTHENTICATED\""))
      << anns.read();
  const std::string last = client_->MustSubmit("last");
  EXPECT_TRUE(bobs.Has(last)) << bobs.read();
  EXPECT_FALSE(bobs.ended()) << "another's goes on";
  OpenStream again(host, ann);
  EXPECT_FALSE(again.Has(first)) << "nor does it come back";
  EXPECT_TRUE(again.ended());
}

TEST_F(WebTest, ACodeOfTheSocketSignsInOnceAsTheLocalUser) {
  const std::string code = CodeOf(*client_);
  const std::string in = SignIn(absl::StrCat("{\"code\":\"", code, "\"}"));
  ASSERT_EQ(StatusOf(in), 200) << in;
  EXPECT_TRUE(absl::StrContains(in, "; HttpOnly; SameSite=Strict")) << in;
  EXPECT_EQ(StatusOf(SignIn(absl::StrCat("{\"code\":\"", code, "\"}"))), 401);
  const std::string session = Ask("GET", "/api/v1/session", {{"Cookie", CookieOf(in)}});
  EXPECT_TRUE(absl::StrContains(session, "\"role\":\"local\"")) << session;
  const std::string job = client_->MustSubmit("seen");
  const std::string jobs = Ask("GET", "/api/v1/jobs", {{"Cookie", CookieOf(in)}});
  EXPECT_TRUE(absl::StrContains(jobs, job)) << jobs;
}

TEST_F(WebTest, ATokenSignsInWithItsOwnRightsAndNoOthers) {
  const std::string job = client_->MustSubmit("theirs");
  EXPECT_EQ(StatusOf(SignIn("{\"token\":\"wrong-token-12345\"}")), 401);
  EXPECT_EQ(StatusOf(SignIn("{\"token\":\"\"}")), 401);
  EXPECT_EQ(StatusOf(SignIn("{}")), 401);
  EXPECT_EQ(StatusOf(SignIn("nonsense")), 400);
  const std::string in = SignIn("{\"token\":\"viewer-token-1234\"}");
  ASSERT_EQ(StatusOf(in), 200) << in;
  const std::string cookie = CookieOf(in);
  const std::string session = Ask("GET", "/api/v1/session", {{"Cookie", cookie}});
  EXPECT_TRUE(absl::StrContains(session, "\"user\":\"vera\",\"role\":\"viewer\"")) << session;
  const std::string csrf = Between(session, "\"csrf\":\"", "\"");
  EXPECT_EQ(StatusOf(Ask("GET", absl::StrCat("/api/v1/jobs/", job), {{"Cookie", cookie}})), 200);
  const std::string refused =
      Ask("POST", absl::StrCat("/api/v1/jobs/", job, "/cancel"), {{"Cookie", cookie}, {"X-Muster-CSRF", csrf}});
  EXPECT_EQ(StatusOf(refused), 403) << refused;
  EXPECT_TRUE(absl::StrContains(refused, "vera may not call")) << refused;
  EXPECT_EQ(client_->StateOf(job), JOB_STATE_QUEUED);
}

TEST_F(WebTest, AChangeNeedsTheSessionsCsrfTokenAndNoOtherOrigin) {
  const std::string job = client_->MustSubmit("mine");
  const std::string cookie = CookieOf(SignIn(absl::StrCat("{\"code\":\"", CodeOf(*client_), "\"}")));
  const std::string csrf = Between(Ask("GET", "/api/v1/session", {{"Cookie", cookie}}), "\"csrf\":\"", "\"");
  const std::string cancel = absl::StrCat("/api/v1/jobs/", job, "/cancel");
  EXPECT_EQ(StatusOf(Ask("POST", cancel, {{"Cookie", cookie}})), 403);
  EXPECT_EQ(StatusOf(Ask("POST", cancel, {{"Cookie", cookie}, {"X-Muster-CSRF", "x"}})), 403);
  const std::map<std::string, std::string> good = {{"Cookie", cookie}, {"X-Muster-CSRF", csrf}};
  auto other = good;
  other["Origin"] = "http://evil.example";
  EXPECT_EQ(StatusOf(Ask("POST", cancel, other)), 403);
  auto site = good;
  site["Sec-Fetch-Site"] = "cross-site";
  EXPECT_EQ(StatusOf(Ask("POST", cancel, site)), 403);
  auto rebound = good;
  rebound["Host"] = "evil.example";
  EXPECT_EQ(StatusOf(Ask("POST", cancel, rebound)), 403);
  EXPECT_EQ(client_->StateOf(job), JOB_STATE_QUEUED);
  auto own = good;
  own["Origin"] = server_->web_url();
  EXPECT_EQ(StatusOf(Ask("POST", cancel, own)), 200);
  EXPECT_EQ(client_->StateOf(job), JOB_STATE_CANCELLED);
  EXPECT_EQ(StatusOf(Ask("POST", "/api/v1/sign-out", good)), 200);
  EXPECT_EQ(StatusOf(Ask("GET", "/api/v1/session", {{"Cookie", cookie}})), 401);
}

TEST_F(WebTest, ErrorsOfTheCallsHaveTheirStatus) {
  const std::map<std::string, std::string> sam = {{"Authorization", "Bearer submit-token-1234"}};
  EXPECT_EQ(StatusOf(Ask("GET", "/api/v1/jobs/nothing", sam)), 404);
  EXPECT_EQ(StatusOf(Ask("GET", "/api/v1/nowhere", sam)), 404);
  EXPECT_EQ(StatusOf(Ask("GET", "/api/v1/jobs/%00", sam)), 404);
  EXPECT_EQ(StatusOf(Ask("POST", "/api/v1/nodes", sam)), 405);
  EXPECT_EQ(StatusOf(Ask("GET", "/api/v1/jobs/x/metrics?points=1", sam)), 400);
  EXPECT_EQ(StatusOf(Ask("GET", "/api/v1/tokens", sam)), 403);
  EXPECT_EQ(StatusOf(Ask("POST", "/api/v1/jobs", sam, "{\"nothing\":1}")), 400);
  const std::string wrong = Ask("POST", "/api/v1/jobs", sam, "{\"request_id\":\"r\",\"spec\":{\"name\":\"UPPER\"}}");
  EXPECT_EQ(StatusOf(wrong), 400);
  EXPECT_TRUE(absl::StrContains(wrong, "\"spec_errors\":[{\"path\":")) << wrong;
}

// What an open page does when its coordinator is started anew: same address, same session, the stream goes on.
TEST_F(WebTest, APageGoesOnAfterARestartWithoutAGap) {
  const std::string url = server_->web_url();
  const std::string cookie = CookieOf(SignIn("{\"token\":\"submit-token-1234\"}"));
  const std::string first = client_->MustSubmit("first");
  const std::string before = Ask("GET", "/api/v1/watch", {{"Cookie", cookie}}, "", first);
  ASSERT_TRUE(absl::StrContains(before, "text/event-stream")) << before;
  const std::string cursor = Between(before, "\nid: ", "\n");
  ASSERT_FALSE(cursor.empty()) << before;
  const std::string second = client_->MustSubmit("second");
  server_.reset();
  Start();
  EXPECT_EQ(server_->web_url(), url);
  const std::string third = client_->MustSubmit("third");
  const std::string after = Ask("GET", "/api/v1/watch", {{"Cookie", cookie}, {"Last-Event-ID", cursor}}, "", third);
  EXPECT_TRUE(absl::StrContains(after, second)) << after;
  EXPECT_TRUE(absl::StrContains(after, third)) << after;
  EXPECT_FALSE(absl::StrContains(after, absl::StrCat("id: ", cursor, "\n"))) << "what was seen does not come again";
}

// What a page of a job does: it reads events, metrics and logs, each up to a position of its own, and follows all of
// them by one stream, which goes on after any of its items, also from a coordinator that was started anew.
TEST_F(WebTest, OneStreamGoesOnFromAPositionOfEachKind) {
  const std::map<std::string, std::string> sam = {{"Authorization", "Bearer submit-token-1234"}};
  FakeWorker worker(address(), {.node = "n1"});
  const std::string path = "/api/v1/jobs/" + client_->MustSubmit("followed");
  RankKey key;
  ASSERT_TRUE(worker.WaitForRun(&key));
  worker.SendObserved(key, RANK_STATE_RUNNING);
  worker.SendRecords(key, {RunningRecord(1), MetricRecord(2, 1, 5), MetricRecord(3, 2, 4)});
  worker.SendLog(key, 0, "one\ntwo\n");
  ASSERT_TRUE(worker.WaitForRecordsAck(3) && worker.WaitForLogsAck(8));
  std::string positions;
  size_t events = 0;
  for (const char* kind : {"metrics", "logs", "events"}) {
    const std::string answer = Ask("GET", path + "/" + kind, sam);
    absl::StrAppend(&positions, positions.empty() ? "" : ",", kind, ":", Between(answer, "\"cursor\":\"", "\""));
    if (absl::string_view(kind) == "events") events = Count(answer, "\"kind\":");
  }
  ASSERT_GE(events, 2u);

  worker.SendRecords(key, {MetricRecord(4, 3, 3), MetricRecord(5, 4, 2)});
  worker.SendLog(key, 8, "three\n");
  worker.SendRecords(key, {MetricRecord(6, 5, 1), FinishedRecord(7, 5)});
  worker.SendLog(key, 14, "four\n");
  ASSERT_TRUE(worker.WaitForRecordsAck(7) && worker.WaitForLogsAck(19));
  worker.SendObserved(key, RANK_STATE_EXITED, RankExit::COMPLETED);

  // The job ends, and with it the stream.
  const std::string watch = path + "/watch?events=1&metrics=1&logs=1";
  const std::vector<Sent> all = Items(Ask("GET", watch + "&cursor=" + positions, sam));
  const size_t all_events = Count(Ask("GET", path + "/events", sam), "\"kind\":");
  EXPECT_EQ(Of(all, "metrics"), (std::vector<std::string>{"3", "4", "5"}));
  EXPECT_EQ(Of(all, "log"), (std::vector<std::string>{"three\\n", "four\\n"}));
  EXPECT_EQ(Of(all, "state").size(), all_events - events);
  EXPECT_GE(Of(all, "state").size(), 1u);
  ASSERT_EQ(all.back().kind, "end");
  ASSERT_EQ(all.front().kind, "snapshot");

  const auto goes_on = [&] {
    for (size_t i = 1; i + 1 < all.size(); ++i) {
      auto fields = sam;
      fields["Last-Event-ID"] = all[i].id;
      const std::vector<Sent> rest = Items(Ask("GET", watch, fields));
      const std::vector<Sent> wanted(all.begin() + static_cast<std::ptrdiff_t>(i) + 1, all.end());
      for (const char* kind : {"metrics", "log", "state"}) {
        EXPECT_EQ(Of(rest, kind), Of(wanted, kind)) << kind << " after item " << i << ", " << all[i].id;
      }
      EXPECT_EQ(rest.back().kind, "end");
    }
  };
  goes_on();
  server_.reset();
  Start();
  goes_on();
  const std::string refused = Ask("GET", watch + "&cursor=logs:c1-0", sam);
  EXPECT_TRUE(absl::StrContains(refused, "event: refused\ndata: {\"error\":{\"code\":\"INVALID_ARGUMENT\"")) << refused;
  EXPECT_EQ(StatusOf(Ask("GET", watch + "&cursor=lines:", sam)), 400);
}

class OpenApiTest : public WebTest {
 protected:
  static nlohmann::json BodyOf(const std::string& answer) {
    return nlohmann::json::parse(answer.substr(std::min(answer.size(), answer.find("\r\n\r\n") + 4)), nullptr, false);
  }
  // As anyone gets it.
  nlohmann::json Document() {
    const std::string answer = Ask("GET", "/api/openapi.json");
    EXPECT_TRUE(absl::StrContains(answer, "Content-Type: application/json")) << answer.substr(0, 500);
    return BodyOf(answer);
  }
};

TEST_F(OpenApiTest, HasEveryRouteAndNoOther) {
  std::set<std::string> described, routes;
  const nlohmann::json document = Document();
  ASSERT_TRUE(document.is_object());
  for (const auto& [path, item] : document["paths"].items()) {
    for (const auto& [method, operation] : item.items()) {
      if (method != "parameters") described.insert(absl::StrCat(absl::AsciiStrToUpper(method), " ", path));
    }
  }
  for (const web::Route& route : web::Api::Routes()) {
    routes.insert(absl::StrCat(std::string(route.method), " ", std::string(route.path)));
  }
  for (const char* own : {"POST /api/v1/sign-in", "POST /api/v1/sign-out", "GET /api/v1/session"}) routes.insert(own);
  EXPECT_EQ(described, routes);
}

// Every GET, and changes of a job: the status, the type of the content and the names in it.
TEST_F(OpenApiTest, AnswersAreAsDescribed) {
  const std::map<std::string, std::string> ada = {{"Authorization", "Bearer admin-token-1234"}};
  const std::string cookie = CookieOf(SignIn("{\"token\":\"admin-token-1234\"}"));
  int checked = 0;
  const nlohmann::json document = Document();
  for (const auto& [path, item] : document["paths"].items()) {
    for (const auto& [method, operation] : item.items()) {
      const bool change = method == "post";
      if (method == "parameters" || absl::StrContains(path, "{node}") || operation.contains("requestBody")) continue;
      // These take a session and its CSRF token, and an authority.
      if (absl::EndsWith(path, "/sign-out") || absl::EndsWith(path, "/tokens")) continue;
      const std::string job = client_->MustSubmit(absl::StrCat("described-", checked));
      if (absl::EndsWith(path, "/resume")) Ask("POST", absl::StrCat("/api/v1/jobs/", job, "/pause"), ada, "{}");
      const nlohmann::json& content = operation["responses"]["200"]["content"];
      const std::string type = content.begin().key();
      const bool stream = type == "text/event-stream", session = path == "/api/v1/session";
      const std::string answer = Ask(absl::AsciiStrToUpper(method), absl::StrReplaceAll(path, {{"{job}", job}}),
                                     session ? std::map<std::string, std::string>{{"Cookie", cookie}} : ada,
                                     change ? "{}" : "", stream ? job : "");
      EXPECT_EQ(StatusOf(answer), 200) << path << answer;
      EXPECT_TRUE(absl::StrContains(answer, "Content-Type: " + type)) << path << answer.substr(0, 500);
      ++checked;
      if (stream || !content[type]["schema"].contains("properties")) continue;
      const nlohmann::json& properties = content[type]["schema"]["properties"];
      const nlohmann::json body = BodyOf(answer);
      ASSERT_TRUE(body.is_object()) << path << answer;
      for (const auto& [name, value] : body.items()) {
        ASSERT_TRUE(properties.contains(name)) << path << " answers with " << name;
        const std::string wanted = properties[name]["type"];
        const bool fits = wanted == "array"     ? value.is_array()
                          : wanted == "object"  ? value.is_object()
                          : wanted == "integer" ? value.is_number()
                                                : value.is_string();
        EXPECT_TRUE(fits) << path << " " << name << ": " << value;
      }
      for (const auto& [name, property] : properties.items()) {
        // A message that is not set is left out.
        EXPECT_TRUE(property["type"] == "object" || body.contains(name)) << path << " describes " << name;
      }
    }
  }
  EXPECT_GE(checked, 15);
  const std::string submitted =
      Ask("POST", "/api/v1/jobs", ada,
          "{\"request_id\":\"r\",\"spec\":{\"name\":\"by-http\",\"exec\":{\"command\":[\"a\"]}}}");
  EXPECT_EQ(StatusOf(submitted), 200) << submitted;
  EXPECT_EQ(BodyOf(submitted)["job"]["spec"]["name"], "by-http");
}

TEST(WebAddress, BeyondLoopbackNeedsAnAuthority) {
  const TemporaryFolder folder;
  const RealClock clock;
  ServerOptions options;
  options.state_dir = folder.path() + "/state";
  options.listen = {"unix:" + folder.path() + "/run/c.sock"};
  options.web_address = "0.0.0.0:0";
  const auto server = Server::Start(options, &clock);
  ASSERT_EQ(server.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(server.status().message(), "muster coordinator init")) << server.status();
}

}  // namespace
}  // namespace muster::server
