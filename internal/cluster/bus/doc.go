// Package bus carries wire's messages over NATS. Uplink is the agent's side, Bus the
// server's. The NATS server itself is bus/embedded or an external one.
//
//	agent                     account     NATS                         server
//	spool ──up.sample.<machine>──> samples ─> stream samples ──────────> Consumer, in order
//	spool ──up.record.<machine>──> samples ─> stream records ──────────> Consumer
//	  <── spec.<job>.<platform> ── specs <── core subject <── PutSpecs ── bucket specs
//	  <── command.machine.<machine>, command.all ── commands <── Decide ──> bucket decisions
//	  ──reply.<machine>.state────> commands ───────────────────────────> ServeDecisions
//
// An agent has a connection to each of three accounts; streams and buckets are in a fourth,
// where only servers publish. credential.Account says why.
//
// # Guarantees
//
// A batch that Uplink accepts is on the agent's disk soon after. Once it is there, a kill
// of the agent, of the NATS server or of both loses nothing. An agent sends its batches
// one at a time, in order, each after the previous one was acknowledged. A reader of the
// stream that stores the highest n for each (machine, boot), and drops batches with n at
// or below it, therefore sees every batch exactly once, however often it was sent. That
// order is the contract; do not pipeline.
//
// Decisions are desired state: signed documents with a revision, one for all machines and one
// for each machine that has any. A machine says which revisions it has when it connects, when
// they change and once a minute, and a server sends what it lacks. An agent follows only what
// a server has signed for it, keeps it on disk, and never goes back to an older revision.
//
// The stream's files are fsynced once a second, so a power cut there can lose
// acknowledged batches. The agent therefore keeps a batch until the same connection has
// answered again 10 s after its acknowledgement, and sends all kept batches again after
// every reconnect.
package bus
