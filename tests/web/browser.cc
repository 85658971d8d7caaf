#include "tests/web/browser.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <cstdio>
#include <fstream>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "testing/wait.h"

extern char** environ;

namespace muster::web {
namespace {

namespace http = boost::beast::http;
using nlohmann::json;

constexpr char kElement[] = "element-6066-11e4-a52e-4f735466cecf";  // WebDriver, section 12.1

}  // namespace

Browser::Browser(const Options& options) {
  std::array<int, 2> out{};
  EXPECT_EQ(pipe(out.data()), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_addclose(&actions, out[0]);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);  // so that all of its processes can be ended
  std::string program = "chromedriver", free_port = "--port=0";
  std::array<char*, 3> argv = {program.data(), free_port.data(), nullptr};
  const int error = posix_spawnp(&driver_, "chromedriver", &actions, &attributes, argv.data(), environ);
  EXPECT_EQ(error, 0) << "chromedriver is missing: run ./test.sh, or tools/setup.sh test";
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(out[1]);
  if (error != 0) driver_ = -1;
  FILE* const said = fdopen(out[0], "r");
  std::array<char, 1000> line{};
  while (port_ == 0 && std::fgets(line.data(), line.size(), said) != nullptr) {
    std::sscanf(line.data(), "ChromeDriver was started successfully on port %hu", &port_);
  }
  std::fclose(said);
  EXPECT_NE(port_, 0) << "chromedriver did not start";
  if (port_ == 0) return;
  json flags = {"--headless=new",
                "--no-sandbox",  // tests may run as root
                "--disable-dev-shm-usage",
                "--disable-gpu",
                "--hide-scrollbars",
                "--lang=en",
                absl::StrCat("--window-size=", options.width, ",", options.height)};
  if (options.dark) flags.push_back("--force-dark-mode");
  const json reply = Call("POST", "/session",
                          {{"capabilities",
                            {{"alwaysMatch",
                              {{"browserName", "chrome"},
                               {"timeouts", {{"script", 300'000}}},
                               {"goog:loggingPrefs", {{"browser", "ALL"}}},
                               {"goog:chromeOptions", {{"args", flags}}}}}}}});
  session_ = reply.value("sessionId", "");
  // A window may not be as narrow as a telephone; the page in it may.
  Call("POST", "/goog/cdp/execute",
       {{"cmd", "Emulation.setDeviceMetricsOverride"},
        {"params",
         {{"width", options.width}, {"height", options.height}, {"deviceScaleFactor", 1}, {"mobile", false}}}});
  Call("POST", "/goog/cdp/execute",
       {{"cmd", "Emulation.setEmulatedMedia"},
        {"params", {{"features", {{{"name", "prefers-color-scheme"}, {"value", options.dark ? "dark" : "light"}}}}}}});
}

Browser::~Browser() {
  if (driver_ <= 0) return;
  if (!session_.empty()) Call("DELETE", "");
  kill(-driver_, SIGKILL);
  waitpid(driver_, nullptr, 0);
}

json Browser::Call(const std::string& method, const std::string& path, const json& body) {
  boost::asio::io_context context;
  boost::beast::tcp_stream stream(context);
  boost::beast::error_code error;
  stream.connect({boost::asio::ip::address_v4::loopback(), port_}, error);
  http::request<http::string_body> request(method == "GET"    ? http::verb::get
                                           : method == "POST" ? http::verb::post
                                                              : http::verb::delete_,
                                           session_.empty() ? path : absl::StrCat("/session/", session_, path), 11);
  request.set(http::field::host, absl::StrCat("127.0.0.1:", port_));
  request.set(http::field::content_type, "application/json");
  if (method == "POST") request.body() = body.is_null() ? "{}" : body.dump();
  request.prepare_payload();
  if (!error) http::write(stream, request, error);
  boost::beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(64 << 20);  // screenshots
  if (!error) http::read(stream, buffer, parser, error);
  if (error) {
    ADD_FAILURE() << method << " " << path << ": " << error.message();
    return nullptr;
  }
  const json reply = json::parse(parser.get().body(), nullptr, false);
  const json value = reply.is_object() ? reply.value("value", json()) : json();
  if (parser.get().result() != http::status::ok) {
    ADD_FAILURE() << method << " " << path << ": " << value.value("message", parser.get().body());
    return nullptr;
  }
  return value;
}

void Browser::Open(const std::string& url) { Call("POST", "/url", {{"url", url}}); }

std::string Browser::NewTab() {
  const std::string handle = Call("POST", "/window/new", {{"type", "tab"}}).value("handle", "");
  ShowTab(handle);
  return handle;
}

std::string Browser::Tab() { return Call("GET", "/window").get<std::string>(); }

void Browser::ShowTab(const std::string& handle) {
  Call("POST", "/window", {{"handle", handle}});
  Call("POST", "/goog/cdp/execute", {{"cmd", "Page.bringToFront"}, {"params", json::object()}});
}

void Browser::BeforeEachPage(const std::string& script) {
  Call("POST", "/goog/cdp/execute",
       {{"cmd", "Page.addScriptToEvaluateOnNewDocument"}, {"params", {{"source", script}}}});
}

std::string Browser::Url() { return Call("GET", "/url").get<std::string>(); }

json Browser::Eval(const std::string& expression) {
  return Call("POST", "/execute/sync",
              {{"script", absl::StrCat("return (", expression, ");")}, {"args", json::array()}});
}

bool Browser::Await(const std::string& expression, absl::Duration deadline) {
  if (Eventually([&] { return Eval(absl::StrCat("!!(", expression, ")")) == true; }, deadline,
                 absl::Milliseconds(50))) {
    return true;
  }
  ADD_FAILURE() << "never: " << expression << "\nthe page at " << Url() << ":\n"
                << Eval("document.body.innerText") << "\nerrors: " << Errors();
  return false;
}

std::string Browser::Text(const std::string& selector) {
  const json text = Eval(absl::StrCat("document.querySelector(", json(selector).dump(), ")?.innerText ?? ''"));
  return text.is_string() ? text.get<std::string>() : "";
}

json Browser::Find(const std::string& selector) {
  return Call("POST", "/element", {{"using", "css selector"}, {"value", selector}}).value(kElement, json());
}

void Browser::Click(const std::string& selector) {
  const json element = Find(selector);
  if (element.is_string()) Call("POST", absl::StrCat("/element/", element.get<std::string>(), "/click"));
}

void Browser::Press(const std::string& keys) {
  const json focused = Call("GET", "/element/active").value(kElement, json());
  if (focused.is_string()) {
    Call("POST", absl::StrCat("/element/", focused.get<std::string>(), "/value"), {{"text", keys}});
  }
}

json Browser::Errors() {
  json errors = json::array();
  for (const json& entry : Call("POST", "/se/log", {{"type", "browser"}})) {
    if (entry.value("level", "") == "SEVERE") errors.push_back(entry["message"]);
  }
  return errors;
}

void Browser::SaveScreenshot(const std::string& path) {
  const json encoded = Call("GET", "/screenshot");
  std::string bytes;
  ASSERT_TRUE(encoded.is_string() && absl::Base64Unescape(encoded.get<std::string>(), &bytes));
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace muster::web
