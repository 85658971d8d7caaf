// A rendezvous in a folder, for the processes of a measurement.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "worker/collectives/key_value.h"

namespace muster::bench {

class FileKeyValue final : public collectives::KeyValue {
 public:
  explicit FileKeyValue(std::string folder) : folder_(std::move(folder)) {}

  absl::Status Set(const std::string& name, const std::string& value) override {
    std::ofstream(Path(name) + ".part", std::ios::binary) << value;
    std::filesystem::rename(Path(name) + ".part", Path(name));
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Wait(const std::string& name, absl::Duration timeout) override {
    const absl::Time deadline = absl::Now() + timeout;
    while (!std::filesystem::exists(Path(name))) {
      if (absl::Now() > deadline) return absl::DeadlineExceededError(absl::StrCat(name, " was not set"));
      absl::SleepFor(absl::Milliseconds(1));
    }
    std::ifstream in(Path(name), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }

 private:
  std::string Path(const std::string& name) const {
    return absl::StrCat(folder_, "/", absl::StrReplaceAll(name, {{"/", "_"}}));
  }
  const std::string folder_;
};

}  // namespace muster::bench
