// muster-month: replays a synthetic month of a shared cluster against FIFO, a Slurm-like policy and Muster's own, and
// prints the table of docs/internals/scheduling.md.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <vector>

#include "common/flags/values.h"
#include "common/log/log.h"
#include "coordinator/simulate/month/policies.h"
#include "coordinator/simulate/month/workload.h"

int main(int argc, char** argv) {
  muster::StartLog("month", muster::LogLevel::kOff);
  CLI::App app{"Replays a synthetic month of a cluster of 256 GPUs and 40 users under three policies."};
  muster::simulate::MonthOptions options;
  app.add_option("--seed", options.seed, "of the month")->capture_default_str();
  app.add_option("--days", options.days, "length of the month")->capture_default_str()->check(muster::Between(1, 365));
  app.add_option("--load", options.load, "GPU time of all jobs, of what the cluster has")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 2.0));
  CLI11_PARSE(app, argc, argv);
  const muster::simulate::Month month = muster::simulate::MakeMonth(options);
  std::printf("seed %llu: %zu jobs in %u days, load %.2f\n\n", static_cast<unsigned long long>(options.seed),
              month.jobs.size(), options.days, options.load);
  const std::vector<muster::simulate::MonthFigures> all = {
      muster::simulate::ReplayFifo(month), muster::simulate::ReplaySlurm(month), muster::simulate::ReplayMuster(month)};
  std::fputs(muster::simulate::TableOf(month, all).c_str(), stdout);
  return 0;
}
