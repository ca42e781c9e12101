// Package enforce changes files of the kernel for a limited time and restores
// the old values, whatever happens to the process meanwhile.
//
// The contract, in order:
//
//   - A change names the old and the new value of every file and the end of its
//     lease. It is in the journal, fsynced, before the first file is written.
//   - Nothing is written unless every file still holds its old value, and unless what the
//     undo needs is open: it takes no descriptor.
//   - A change ends by Undo (expiry, an operator, a takeover) or by RestoreAll
//     (stop, the next start after a crash, a restore command). Its files are
//     written in reverse order.
//   - Compare and restore: a file that holds neither the old nor the new value was
//     set by another process. All files of its cgroup are then left as they are.
//   - Nothing is restored in a cgroup that was removed, also if one was made again
//     at the same path, nor after a reboot.
//   - What cannot be undone now (EBUSY, EINVAL) stays active and is retried, after
//     pauses that grow to 30 s, for as long as the cgroup exists.
//   - One process holds the journal. If it hangs, RestoreOverdue restores what is overdue,
//     once.
//   - After damage to any single line of the journal everything can still be undone.
//   - A journal that cannot be written prevents new changes, never an undo.
//
// The kernel offers no lock between comparing a file and writing it: a value
// that another process writes in those microseconds is overwritten.
package enforce
