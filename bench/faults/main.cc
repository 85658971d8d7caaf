// Kills and freezes ranks, worker daemons, hosts and the coordinator of real jobs, and prints how soon each fault is
// detected and recovered. Exit code 1: a job did not end with the weights of an undisturbed one, or a fault was missed.
//
//   bazel run //bench/faults -- --faults 200 --detection 2s
#include <gtest/gtest.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <string>

#include "absl/time/time.h"
#include "bench/faults/campaign.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);  // the cluster reports daemons that do not start as test failures
  CLI::App app("Faults of running jobs: how soon they are found out and recovered from.", "faults");
  muster::faults::CampaignOptions options;
  std::string detection = "2s";
  app.add_option("--faults", options.faults, "how many in all; an eighth of them not of ranks")->capture_default_str();
  app.add_option("--detection", detection, "the coordinator's --detection")->capture_default_str();
  app.add_option("--seed", options.seed, "of the choice of victims and moments")->capture_default_str();
  app.add_option("--at-once,--at_once", options.at_once, "rank faults in progress at the same time")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (!absl::ParseDuration(detection, &options.detection) || options.detection <= absl::ZeroDuration()) {
    std::fprintf(stderr, "faults: --detection \"%s\" is no duration\n", detection.c_str());
    return 2;
  }
  const bool good = muster::faults::RunCampaign(options);
  return good && !testing::Test::HasFailure() ? 0 : 1;
}
