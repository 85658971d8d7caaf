#include <memory>

#include <nlohmann/json.hpp>
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/output_format.h"

namespace muster::cli {
namespace {

// The page's address with a host that a browser can open: a coordinator that listens on all addresses is reached by the
// name that this command uses.
std::string Reachable(const std::string& url, const std::string& coordinator) {
  const size_t host = url.find("://") + 3, port = url.rfind(':');
  const std::string named = url.substr(host, port - host);
  if (named != "0.0.0.0" && named != "[::]") return url;
  const bool local = absl::StartsWith(coordinator, "unix:");
  return absl::StrCat(url.substr(0, host), local ? "localhost" : coordinator.substr(0, coordinator.rfind(':')),
                      url.substr(port));
}

}  // namespace

void RegisterUi(CLI::App& app, Invocation& invocation) {
  const auto format = std::make_shared<Format>(Format::kTable);
  CLI::App* command = AddCommand(app, "ui", kGroupLook, "Print a link that signs a browser in to the web page, once",
                                 "muster ui\nmuster ui -o json");
  AddFormat(command, *format, {"table", "json", "yaml"});
  OnRun(command, invocation, [&invocation, format]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    const absl::StatusOr<v1::SignInReply> reply = (*client)->SignIn();
    if (!reply.ok()) return reply.status();
    const std::string url = Reachable(reply->url(), (*client)->connection().address);
    // In the fragment, which browsers do not send to servers.
    const std::string link = absl::StrCat(url, "/#code=", reply->code());
    if (*format != Format::kTable) {
      PrintTree({{"url", url}, {"link", link}, {"user", reply->user()}, {"role", reply->role()}}, *format);
      return kOk;
    }
    Say(absl::StrCat("open this link within a minute; it signs in ", reply->user(), " (", reply->role(), ") once:"));
    Print(absl::StrCat(link, "\n"));
    return kOk;
  });
}

}  // namespace muster::cli
