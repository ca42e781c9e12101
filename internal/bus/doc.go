// Package bus carries wire's messages over NATS: an agent's side of it (Uplink)
// and a server's (Bus). The NATS server itself is in bus/embedded, or anywhere.
//
//	agent                           NATS                            server
//	spool ──sample.<machine>──> stream samples ──────────────────> Consumer, in order
//	spool ──record.<machine>──> stream records ──────────────────> Consumer
//	  <── spec.<job>.<platform> ── core subject <── PutSpecs ── bucket specs
//	  <── command.machine.<machine>, command.all ── core subjects <── Command; replies go back
//
// # What is promised
//
// A batch that Uplink has taken in is on the agent's disk soon after; once it is
// there, a kill of the agent, of the NATS server or of both loses nothing. An agent sends
// its batches one after the other, in order, and never one before the one
// before it was acknowledged: so a reader of the stream that remembers the
// highest n for each (machine, boot) and drops what is at or under it sees every
// batch exactly once, whatever was sent again. That order is the contract; do not
// pipeline.
//
// The stream's files are fsynced once a second, so a power cut there can take
// acknowledged batches with it. The agent therefore keeps a batch until the
// same connection has answered again 10 s past its acknowledgement, and sends
// all it has kept whenever it has connected anew.
package bus
