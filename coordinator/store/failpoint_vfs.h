// A SQLite VFS with a failpoint (common/failpoint.h) before every operation that changes the disk. In the order of a
// commit, for each of the two files NAME = "state", "history":
//
//   store.NAME.create          the database file is created (or opened)
//   store.NAME.journal.create  its rollback journal is created
//   store.NAME.journal.write   the old pages, and at the end the header that invalidates them
//   store.NAME.journal.sync
//   store.NAME.write           the new pages
//   store.NAME.sync
//   store.NAME.truncate, store.NAME.journal.truncate, store.NAME.journal.delete
//
// The copy that Backup makes has the NAME "copy". An unarmed failpoint costs a load and a call.
#pragma once

namespace muster::store {

// Registers the VFS with SQLite once, and returns its name for sqlite3_open_v2.
const char* FailpointVfs();

}  // namespace muster::store
