// The Python environment of tools/fetch_trackers.sh.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace muster::cluster {

// Its interpreter; a test failure where it is not there.
inline std::string TrackersPython() {
  const char* peer = std::getenv("MUSTER_PEER_PYTHON");  // CACHE/peer-HASH/bin/python
  const std::string path =
      peer == nullptr ? ""
                      : std::filesystem::path(peer).parent_path().parent_path().parent_path() / "trackers/bin/python";
  EXPECT_TRUE(std::filesystem::exists(path)) << "run ./test.sh, which makes it and sets MUSTER_PEER_PYTHON";
  return path;
}

}  // namespace muster::cluster
