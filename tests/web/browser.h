// A headless Chromium for a test, driven over the WebDriver protocol (w3c.github.io/webdriver) by Debian's
// chromedriver.
//
//   Browser browser;
//   browser.Open(url);
//   browser.Await("document.querySelector('#slots')");
//   EXPECT_EQ(browser.Text("#slots"), "1 nodes, 2 slots, 2 free");
//
// Not thread-safe. What fails is a GoogleTest failure. The processes end with the object.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/time/time.h"

namespace muster::web {

class Browser {
 public:
  struct Options {
    int width = 1200, height = 900;  // of the page, pixels
    bool dark = false;               // prefers-color-scheme
  };
  explicit Browser(const Options& options);
  Browser() : Browser(Options{}) {}
  ~Browser();
  Browser(const Browser&) = delete;

  void Open(const std::string& url);
  // A further tab, which is shown from now on; the one before is hidden. Returns its handle.
  std::string NewTab();
  std::string Tab();  // the handle of the one that is shown
  void ShowTab(const std::string& handle);
  // A script that runs in this tab before those of each page that it loads.
  void BeforeEachPage(const std::string& script);
  std::string Url();
  // The value of a JavaScript expression, of a promise what it becomes.
  nlohmann::json Eval(const std::string& expression);
  // Polls until the expression is true; a test failure with the page's text at the deadline.
  bool Await(const std::string& expression, absl::Duration deadline = absl::Minutes(1));
  // What a reader sees of the first element that a CSS selector finds; empty if there is none.
  std::string Text(const std::string& selector);
  // As a user does: in view, with the mouse; a test failure if nothing can be clicked there.
  void Click(const std::string& selector);
  // Keys to the element that has the focus: text, or WebDriver's codes ("\uE004" is Tab, "\uE007" is Enter).
  void Press(const std::string& keys);
  // What the page said in the console as an error since the last call, also refused by its content-security policy.
  nlohmann::json Errors();
  void SaveScreenshot(const std::string& path);

 private:
  nlohmann::json Call(const std::string& method, const std::string& path, const nlohmann::json& body = nullptr);
  nlohmann::json Find(const std::string& selector);

  pid_t driver_ = -1;
  uint16_t port_ = 0;
  std::string session_;
};

}  // namespace muster::web
