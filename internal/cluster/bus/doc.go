// Package bus carries wire's messages over NATS. Uplink is the agent's side, Bus the
// server's. The NATS server itself is bus/embedded or an external one.
//
//	agent                     account     NATS                         server
//	spool ──up.sample.<machine>──> samples ──────────────────────────> Consumer ─> store
//	  <── inbox.<machine>.… ────── samples <────────────────────────── Ack, when it is stored
//	spool ──up.record.<machine>──> samples ──────────────────────────> Consumer ─> store
//	  <── spec.<job>.<platform> ── specs <── core subject <── PutSpecs ──> bucket specs
//	  ──reply.<machine>.specs────> commands ───────────────────────────> ServeSpecs
//	  <── renewed.<machine> ────── commands <───────────────────────── ServeSpecs <── bucket specs
//	  <── command.machine.<machine>, command.all ── commands <── Decide ──> bucket decisions
//	  ──reply.<machine>.state────> commands ───────────────────────────> ServeDecisions
//
// An agent has a connection to each of three accounts; buckets are in a fourth, where only
// servers publish. credential.Account says why.
//
// # Guarantees
//
// A batch that Uplink accepts is on the agent's disk soon after, and stays there until the
// server has stored it: the server answers after the commit that holds it. A kill or a power cut
// of the agent, of the NATS server or of the server loses nothing that was on the agent's disk.
// An agent sends its batches in order, as many at a time as the server has room for, and the next
// ones after the answer. A reader that stores the highest n for each (machine, boot), and drops
// batches with n at or below it, therefore sees every batch exactly once, however often it was
// sent. That order is the contract; do not pipeline.
//
// # Back-pressure
//
// What comes waits in the server's memory, up to a bound. Beyond it the server refuses at once,
// and agents send again later, after pauses that double. So each agent has one delivery in
// flight; a server that is too slow answers later, its agents' spools grow, and deliveries have
// more batches each, which cost less. With its answer the server says how large the next
// delivery may be. Answers tell it how many agents send, so that all of them together fit.
//
// Decisions are desired state: signed documents with a revision, one for all machines and one
// for each machine that has any. A machine says which revisions it has when it connects, when
// they change and once a minute, and a server sends what it lacks. An agent follows only what
// a server has signed for it, keeps it on disk, and never goes back to an older revision.
package bus
