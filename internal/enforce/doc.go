// Package enforce changes files of the kernel for a limited time and puts the
// old values back, whatever happens to the process meanwhile.
//
// The contract, in order:
//
//   - A change names the old and the new value of every file and the end of its
//     lease. It stands in the journal, fsynced, before the first file is written.
//   - Nothing is written unless every file still holds its old value.
//   - A change ends by Undo (expiry, an operator, a takeover) or by RestoreAll
//     (stop, the next start after a crash, a restore command). Its files are
//     written in reverse order.
//   - Compare and restore: a file that holds neither the old nor the new value
//     belongs to someone else. Then the whole change is left as it is.
//   - A cgroup that was removed, also if one was made again at the same path,
//     and anything from before a reboot: nothing is there to restore.
//   - What cannot be undone now (EBUSY, EINVAL) stays active and is tried again,
//     after pauses that grow to 30 s, for as long as the cgroup is there.
//   - One process holds the journal. For one that hangs, Lift puts back what is
//     overdue, once.
//   - No single damaged line of the journal loses the way back.
//   - A journal that cannot be written stops new changes, never an undo.
//
// Between comparing a file and writing it the kernel offers no lock; somebody
// who writes in those microseconds is overwritten.
package enforce
