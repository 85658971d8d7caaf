// SQLite's view of the disk, with a failpoint (common/failpoint.h) in front of everything that changes it. In the order
// of a commit's life, of each of the two files NAME = "state", "history":
//
//   store.NAME.create          the database file is made (or opened)
//   store.NAME.journal.create  its rollback journal is
//   store.NAME.journal.write   the pages as they were, and at the end the header that makes them void
//   store.NAME.journal.sync
//   store.NAME.write           the pages as they are to be
//   store.NAME.sync
//   store.NAME.truncate, store.NAME.journal.truncate, store.NAME.journal.delete
//
// A copy that Backup makes is NAME "copy". Unarmed, each costs a load and a call.
#pragma once

namespace muster::store {

// Registers it with SQLite once, and returns its name for sqlite3_open_v2.
const char* FailpointVfs();

}  // namespace muster::store
