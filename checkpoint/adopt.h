// Gives a folder of checkpoints to another job: one that was moved or restored by hand, or whose coordinator is gone.
//
//   absl::StatusOr<Adoptable> found = LookForAdoption(path);
//   status = Adopt(path, *found, /*job=*/"");  // the next job that starts there gets it
//
// An adopted folder keeps its former owner in owner.json.previous. A job whose coordinator knows no intact checkpoint
// of it resumes from the newest intact one in an adopted folder, whichever job wrote it (worker/trainer/resume.h); in
// other folders a job resumes only from its own.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/manifest.pb.h"

namespace muster::checkpoint {

struct Adoptable {
  FolderOwner owner;     // the former one, if the folder is adopted and not claimed yet
  bool claimed = false;  // the owner file is there
  std::string newest;    // name of the step's folder from which a job would go on
  std::string writer;    // the job that wrote it
};

// Whether a job may go on from what other jobs wrote there.
bool IsAdopted(const std::string& path);

// What Adopt would change. NotFound: no folder, or no checkpoint in it. FailedPrecondition: no job owns it. DataLoss:
// the newest checkpoint is damaged, as far as its manifest and the headers of its shards say; a job that goes on from
// an older one would write the same name.
absl::StatusOr<Adoptable> LookForAdoption(const std::string& path);

// Makes `job`, of any store, the owner; "": the next job that claims the folder. The change is on disk after OK; after
// a kill the folder belongs to the old owner or to the new one, and Adopt can be called again. The former owner, if it
// still runs, is refused before it writes anything more. Aborted: the folder has another owner than `found` says.
absl::Status Adopt(const std::string& path, const Adoptable& found, const std::string& job);

}  // namespace muster::checkpoint
