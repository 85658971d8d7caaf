#include <unistd.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/output/format.h"
#include "cli/spec/paths.h"
#include "cli/spec/source_text.h"
#include "common/bytes.h"

namespace muster::cli {

void RegisterBackup(CLI::App& app, Invocation& invocation) {
  const auto file = std::make_shared<std::string>();
  CLI::App* command = AddCommand(app, "backup", kGroupService, "Back up the store of a running coordinator",
                                 "muster backup /var/lib/muster/coordinator/backup.db");
  command->add_option("FILE", *file, "new file on the coordinator's machine")->required();
  OnRun(command, invocation, [&invocation, file]() -> absl::StatusOr<ExitCode> {
    char folder[4096];
    const std::string here = getcwd(folder, sizeof(folder)) == nullptr ? "/" : folder;
    const std::string path = AbsolutePath(*file, here);
    if (!IsUtf8(path)) return absl::InvalidArgumentError(absl::StrCat("FILE is not UTF-8: ", OneLine(path)));
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    const absl::StatusOr<v1::BackupReply> reply = (*client)->Backup(path);
    if (!reply.ok()) return reply.status();
    Print(absl::StrCat(path, "\n"));
    Say(absl::StrCat(FormatBytes(reply->bytes()), " written"));
    return kOk;
  });
}

}  // namespace muster::cli
