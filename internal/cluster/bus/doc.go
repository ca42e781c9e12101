// Package bus carries wire's messages over NATS. Uplink is the agent's side, Bus the
// server's. The NATS server itself is bus/embedded or an external one.
//
//	agent                     account     NATS                         server
//	spool ──up.sample.<machine>──> samples ─> stream samples ──────────> Consumer, in order
//	spool ──up.record.<machine>──> samples ─> stream records ──────────> Consumer
//	  <── spec.<job>.<platform> ── specs <── core subject <── PutSpecs ── bucket specs
//	  <── command.machine.<machine>, command.all ── commands <──────────── Command, signed
//	  ──reply.<machine>.<id>─────> commands ───────────────────────────> Command
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
// The stream's files are fsynced once a second, so a power cut there can lose
// acknowledged batches. The agent therefore keeps a batch until the same connection has
// answered again 10 s after its acknowledgement, and sends all kept batches again after
// every reconnect.
package bus
