// One function for each verb: adds the subcommand, its flags and its action. Each takes the root app (or the group of
// the verb) and the invocation, which outlives it.
#pragma once

#include "cli/command.h"

namespace muster::cli {

void RegisterAudit(CLI::App& app, Invocation& invocation);
void RegisterBackup(CLI::App& app, Invocation& invocation);
void RegisterBench(CLI::App& app, Invocation& invocation);
void RegisterCancel(CLI::App& app, Invocation& invocation);
void RegisterCheckpoint(CLI::App& app, Invocation& invocation);
void RegisterCheckpointAdopt(CLI::App& app, Invocation& invocation);   // in the group checkpoint
void RegisterCheckpointExport(CLI::App& app, Invocation& invocation);  // likewise
void RegisterCheckpointFiles(CLI::App& app, Invocation& invocation);   // likewise
void RegisterCompare(CLI::App& app, Invocation& invocation);
void RegisterCompletion(CLI::App& app, Invocation& invocation);
void RegisterCoordinator(CLI::App& app, Invocation& invocation);
void RegisterCoordinatorTokens(CLI::App& app, Invocation& invocation);  // in the group coordinator
void RegisterData(CLI::App& app, Invocation& invocation);
void RegisterDataImages(CLI::App& app, Invocation& invocation);  // in the group data
void RegisterDelete(CLI::App& app, Invocation& invocation);
void RegisterDescribe(CLI::App& app, Invocation& invocation);
void RegisterDoctor(CLI::App& app, Invocation& invocation);
void RegisterDrain(CLI::App& app, Invocation& invocation);
void RegisterEvents(CLI::App& app, Invocation& invocation);
void RegisterHelp(CLI::App& app, Invocation& invocation);
void RegisterInit(CLI::App& app, Invocation& invocation);
void RegisterLabel(CLI::App& app, Invocation& invocation);
void RegisterLocal(CLI::App& app, Invocation& invocation);
void RegisterLogs(CLI::App& app, Invocation& invocation);
void RegisterMetrics(CLI::App& app, Invocation& invocation);
void RegisterModel(CLI::App& app, Invocation& invocation);
void RegisterNodes(CLI::App& app, Invocation& invocation);
void RegisterNote(CLI::App& app, Invocation& invocation);
void RegisterPause(CLI::App& app, Invocation& invocation);
void RegisterPlan(CLI::App& app, Invocation& invocation);
void RegisterPs(CLI::App& app, Invocation& invocation);
void RegisterQuota(CLI::App& app, Invocation& invocation);
void RegisterReservations(CLI::App& app, Invocation& invocation);
void RegisterResume(CLI::App& app, Invocation& invocation);
void RegisterSample(CLI::App& app, Invocation& invocation);
void RegisterSchema(CLI::App& app, Invocation& invocation);
void RegisterEval(CLI::App& app, Invocation& invocation);
void RegisterExport(CLI::App& app, Invocation& invocation);
void RegisterRun(CLI::App& app, Invocation& invocation);
void RegisterSubmit(CLI::App& app, Invocation& invocation);
void RegisterSweep(CLI::App& app, Invocation& invocation);
void RegisterTemplates(CLI::App& app, Invocation& invocation);
void RegisterTop(CLI::App& app, Invocation& invocation);
void RegisterTrace(CLI::App& app, Invocation& invocation);
void RegisterTrain(CLI::App& app, Invocation& invocation);
void RegisterUi(CLI::App& app, Invocation& invocation);
void RegisterUndrain(CLI::App& app, Invocation& invocation);
void RegisterUsage(CLI::App& app, Invocation& invocation);
void RegisterValidate(CLI::App& app, Invocation& invocation);
void RegisterVersion(CLI::App& app, Invocation& invocation);
void RegisterWatch(CLI::App& app, Invocation& invocation);
void RegisterWorker(CLI::App& app, Invocation& invocation);

}  // namespace muster::cli
