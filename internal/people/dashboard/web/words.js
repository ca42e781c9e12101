// What an incident says in words, and the commands that follow from it.

import {number, percent, visible} from './dom.js';

const millis = 1; // below it, CPU seconds for a piece of work are written in milliseconds and less
/** signals by name: what it is, its unit, what a suspect's usage is in, and what a victim does N times as much. */
export const signals = {
  cpi: {what: 'cycles per instruction', unit: 'cycles/instruction', usage: 'CPU-s/s', cpu: true,
    verb: (v, x) => `${v} needs ${x} its normal CPU cycles for the same instructions`},
  cpt: {what: 'CPU time per transaction', unit: 's/transaction', usage: 'CPU-s/s', cpu: true, small: millis,
    verb: (v, x) => `${v} needs ${x} its normal CPU time for a transaction`},
  cps: {what: 'CPU time per system call', unit: 's/call', usage: 'CPU-s/s', cpu: true, small: millis,
    verb: (v, x) => `${v} needs ${x} its normal CPU time for a system call`},
  runq: {what: 'wait for a CPU', unit: 's/CPU-s', usage: 'CPU-s/s', cpu: true,
    verb: (v, x) => `${v} waits ${x} its normal for a CPU`},
  io: {what: 'time of disk requests', unit: 's/request', usage: 'requests/s', small: millis,
    verb: (v, x) => `${v} waits ${x} its normal for disks`},
  net: {what: 'wait of packets', unit: 's/packet', usage: 'packets/s', small: millis,
    verb: (v, x) => `${v} waits ${x} its normal to send`},
  probe: {what: 'memory latency of the machine', unit: 's/load', usage: 'CPU-s/s',
    verb: (v, x) => `memory takes ${x} its normal time`},
  steal: {what: 'time taken by the hypervisor', unit: 's/CPU-s', usage: '',
    verb: (v, x) => `the hypervisor takes ${x} its normal time from ${v}`},
};

const unknown = {what: 'cost', unit: '', usage: '', verb: (v, x) => `${v} costs ${x} its normal`};
export const signalOf = name => Object.hasOwn(signals, name) ? signals[name] : {...unknown, what: visible(name)};

export const cost = (signal, v) => number(v, signalOf(signal).small);

/** ratio is how many times its normal a cost is: "6 ×"; "" if that says nothing. */
export function ratio(v, mean) {
  const x = v / mean;
  if (!(mean > 0) || !Number.isFinite(x)) return '';
  if (x > 100) return '> 100 ×';
  return (x >= 10 ? Math.round(x) : x >= 3 ? +x.toFixed(1) : +x.toFixed(2)) + ' ×';
}

/** short is the name of a task for a sentence: its job, else the end of its name. */
export function short(t) {
  if (t.job) return visible(t.job);
  return visible(lastPart(t.task || ''));
}

export const lastPart = name => name.split('/').filter(Boolean).pop() || name || 'a task';

const causes = {
  'own-quota': (inc, v) => inc.held_by ? `the CPU quota of ${visible(inc.held_by)}, a cgroup above it, throttles it; no neighbour is to blame`
    : `its own CPU quota throttles it; no neighbour is to blame`,
  steal: () => `the hypervisor gives the CPU to another VM`,
  'self-wait': () => `its own threads wait for each other; no neighbour is to blame`,
  'phase-change': () => `its own behaviour changed; no neighbour is to blame`,
};

export const kinds = {
  neighbour: 'neighbour', nobody: 'no suspect named', indeterminate: 'cannot tell yet', 'own-quota': 'own quota',
  steal: 'hypervisor', 'self-wait': 'own threads', 'phase-change': 'own change',
};
export const kindOf = k => Object.hasOwn(kinds, k) ? kinds[k] : visible(k || '');

const mayBeNeighbour = kind => kind === 'neighbour' || kind === 'nobody' || kind === 'indeterminate';

/** suspects are those that were not excluded. A record without a list has none. */
export const suspects = inc => (inc.suspects || []).filter(s => !s.excluded);

/** accused is the suspect that the incident names or limited; undefined if there is none. */
export function accused(inc) {
  const all = suspects(inc);
  if (inc.antagonists > 0 && all.length) return all[0];
  const order = ['none', 'possible', 'likely', 'proven'];
  const found = (inc.findings || []).map(f => f.suspect).sort((a, b) => order.indexOf(b.level) - order.indexOf(a.level))[0];
  if (found) return found;
  const round = (inc.rounds || []).at(-1);
  if (round) return all.find(s => s.task === round.suspect.task) || round.suspect;
  return undefined;
}

/** main is the suspect to show in one line: the accused, else the first. */
export const main = inc => accused(inc) || (mayBeNeighbour(inc.kind) ? suspects(inc)[0] : undefined);

/** figure is what a suspect's level rests on, briefly. */
export function figure(s) {
  if (!s) return '';
  if (s.method === 'trial') return 'tried';
  if (s.method === 'accounting') return percent((s.share || 0) + (s.pushed || 0));
  if (s.method === 'correlation' || !s.method && s.correlation) return `r ${s.correlation.toFixed(2)}`; // records of older agents have no method
  if (s.probability > 0) return `p ${s.probability.toFixed(2)}`;
  return '';
}

/** sentence says in one sentence what an incident is. */
export function sentence(inc) {
  const v = short(inc.victim), sig = signalOf(inc.signal);
  const x = ratio(inc.cost, inc.spec_mean);
  const what = x ? sig.verb(v, x) : `${v} costs ${cost(inc.signal, inc.cost)} ${sig.unit}, over its threshold of ${cost(inc.signal, inc.threshold)}`;
  if (Object.hasOwn(causes, inc.kind)) return `${what}: ${causes[inc.kind](inc, v)}.`;
  const s = main(inc);
  if (!s) return `${what}; no suspect is named.`;
  const name = s.task === '(other)' ? 'programs outside any task' : short(s);
  if (accused(inc)) {
    if (s.level === 'possible') return `${what}; limiting ${name} has not helped.`;
    return `${what} while ${name} ${s.method === 'accounting' ? served(inc.signal) : 'runs'}.`;
  }
  if (s.level === 'possible') return `${what}; ${name} may be the cause, another task may be too.`;
  return `${what}; there is no evidence against any neighbour.`;
}

function served(signal) {
  if (signal === 'io') return 'keeps the disk busy';
  if (signal === 'net') return 'sends';
  return 'runs';
}

/** running are the rounds whose caps hold: one whose lease is over has ended, also if its machine cannot say so. */
export const running = (inc, at) => (inc.rounds || []).filter(r => !r.ended && r.until > at);

/** state says what is being done about an incident. */
export function state(inc, at) {
  const [r] = running(inc, at);
  if (r && !inc.closed) return {text: r.trial ? 'trial' : 'capped', level: 'act'};
  if (!inc.closed) return {text: 'open', level: 'bad'};
  return {text: 'closed', level: 'calm'};
}

export const outcomes = {
  'true-positive': ['helped', 'the victim recovered under the cap', 'good'],
  'false-positive': ['made it worse', 'the victim’s cost rose under the cap', 'bad'],
  noise: ['no effect', 'the victim’s cost did not change under the cap', 'warn'],
  'suspect-exited': ['suspect ended', 'the capped task ended; that says nothing about the cap', ''],
  'victim-exited': ['victim ended', 'the victim ended under the cap', ''],
  'not-measured': ['not measured', 'the cap ended before the victim gave a sample under it', ''],
  'cap-failed': ['cap failed', 'the cap could not be applied', 'bad'],
  'cap-taken-over': ['cap taken over', 'another program changed the limit meanwhile', 'warn'],
  'would-cap': ['advice', 'a cap or a trial was advised, and nothing was done', 'warn'],
  'not-acted': ['not acted', 'nothing was done', ''],
};
export const outcomeOf = o => Object.hasOwn(outcomes, o) ? outcomes[o] : o ? [visible(o), '', ''] : ['', '', ''];

/** quoted is an argument for a POSIX shell; undefined if a terminal could not take it safely. */
export function quoted(text) {
  if (visible(text) !== text) return undefined;
  return /^[A-Za-z0-9/._:@=+,-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

/** mayCap says why a suspect cannot be capped for others; "" if it can. */
export function mayNotCap(s, signal) {
  if (!s) return 'no suspect is named';
  if (s.task === '(other)') return 'it runs outside any task';
  if (s.class === 'latency-sensitive') return 'it is latency-sensitive';
  if (s.never_cap) return 'its rule says never-cap';
  if (!signalOf(signal).cpu) return 'a CPU cap does not help here';
  return '';
}

/** capCommand is what an operator can paste to limit a suspect; "" if there is none. With local
 * it is for the agent of the machine on which it is pasted. */
export function capCommand(inc, s, trial, local) {
  if (mayNotCap(s, inc.signal)) return '';
  const args = [s.task, inc.machine].map(quoted);
  if (args.includes(undefined) || s.task.startsWith('-')) return '';
  const why = quoted(trial ? `trial: does it hurt ${short(inc.victim)}?` : `incident ${inc.id}`) || "'incident'", id = quoted(inc.id);
  return `quell cap ${args[0]}${local ? '' : ` --machine ${args[1]}`}${id ? ` --incident ${id}` : ''} --rate 0.1 --for ${trial ? '2m' : '10m'} --reason ${why}`;
}

/** standsIn reports whether a task stands in for its machine: its CPU usage is that of all tasks there. */
export const standsIn = t => t.costs.length > 0 && t.costs.every(c => c.signal === 'probe' || c.signal === 'steal');

// How much older than its machine's newest sample a task's may be: all tasks of a machine are sampled at once.
const apart = 150_000;

/** assess gives each task its distress, and whether its samples are old: the server lists tasks of the last 10 minutes. */
export function assess(tasks) {
  const newest = new Map();
  for (const t of tasks) newest.set(t.machine, Math.max(t.at, newest.get(t.machine) || 0));
  for (const t of tasks) {
    t.worst = distress(t);
    t.old = newest.get(t.machine) - t.at > apart;
  }
}

/** distress is a task's highest cost ÷ threshold; undefined while its normal cost is not known. */
export function distress(t) {
  let worst;
  for (const c of t.costs) {
    if (c.cost === null || !(c.limit > 0)) continue;
    const x = c.cost / c.limit;
    if (!worst || x > worst.x) worst = {x, level: x > 1 ? 'over' : c.cost - c.mean > near * (c.limit - c.mean) ? 'near' : 'calm', ...c};
  }
  return worst;
}

// near is the part of the way from its normal cost to its threshold from which on a task is
// shown as near it.
const near = 0.8;
export const levelOf = t => t.worst ? t.worst.level : 'none';
