// Loads the checkpoint that a generation resumes from, or the weights that a job begins with. Every rank of `world`
// calls each function at the same place (null: a world of one rank). Rank 0 lists the folders, since others may be
// written or removed meanwhile, and all ranks load the first one that all of them find whole.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "proto/manifest.pb.h"
#include "proto/worker.pb.h"
#include "strategies/compile.h"
#include "worker/collectives/group.h"
#include "worker/collectives/key_value.h"
#include "worker/engine/engine.h"
#include "worker/trainer/outer_state.h"

namespace muster::trainer {

struct Resumed {
  uint64_t step = 0;
  uint64_t samples_consumed = 0;
  UpdateState update;
};

// Loads assignment.resume_from or, if that is damaged, the newest older published checkpoint that is intact, and logs
// an error. Each rank reads and verifies only what it owns, so each replica reads a checkpoint once. If one rank finds
// damage, all ranks skip that checkpoint. If none that the coordinator knows is left, as after its store was restored
// from a backup, an intact one of this job that it does not know; in an adopted folder, as ResumeAdopted. DataLoss: no
// checkpoint is there and intact. PermissionDenied: this rank may not read it. InvalidArgument: it belongs to another
// job, model or optimizer, or its recorded tokenizer is not that of data.tokens. Unavailable: another rank has one of
// these errors, and this rank itself could resume. `outer`: loaded, too, or begun again from another job's checkpoint;
// null: there is none.
absl::StatusOr<Resumed> Resume(const Assignment& assignment, collectives::Group* world,
                               collectives::KeyValue& rendezvous, const strategies::Layout& layout,
                               engine::Engine& engine, OuterState* outer = nullptr);

// Of a job without assignment.resume_from, whose checkpoint.path was adopted (checkpoint/adopt.h): loads the newest
// intact checkpoint there as rank 0 sees them, whichever job and generation wrote it. None: not adopted. Another job's
// is checked as by ResumeOther, whose errors apply. DataLoss: none is intact. Unavailable as Resume.
absl::StatusOr<std::optional<Resumed>> ResumeAdopted(const Assignment& assignment, collectives::Group* world,
                                                     collectives::KeyValue& rendezvous,
                                                     const strategies::Layout& layout, engine::Engine& engine);

// Loads another job's checkpoint: the spec's checkpoint.resume_from names a step folder, or a folder of step folders,
// of which rank 0 picks the newest intact one for all ranks. Any strategy and number of ranks may have written it.
// NotFound: no checkpoint there on this node. InvalidArgument as checkpoint::CheckSameRun, and if its recorded
// tokenizer is not that of data.tokens. Others as Resume.
absl::StatusOr<Resumed> ResumeOther(const Assignment& assignment, collectives::Group* world,
                                    collectives::KeyValue& rendezvous, const strategies::Layout& layout,
                                    engine::Engine& engine);

// Loads the weights that model.from names into an engine that has taken no step: of a Hugging Face folder, of a step's
// folder, or of the newest intact one of a folder of these. InvalidArgument: it does not fit the job
// (checkpoint/check_start.h), or its recorded tokenizer is not that of data.tokens. DataLoss: none is intact. Others as
// Resume and Import.
absl::Status LoadInitial(const Assignment& assignment, collectives::Group* world, collectives::KeyValue& rendezvous,
                         engine::Engine& engine);

}  // namespace muster::trainer
