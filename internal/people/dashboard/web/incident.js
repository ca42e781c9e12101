// One incident: what it is in a sentence, the victim's cost and the suspects' usage over the
// same time, what was done, and what can be done.

import * as api from './api.js';
import {ago, day, h, now, number, percent, plural, span, swap, time, visible, when, zoneName} from './dom.js';
import {act} from './act.js';
import {fact, jobLink, level, machineLink, outcome, paste, section, stateBadge, taskName} from './parts.js';
import {chart} from './plots.js';
import {accused, capCommand, cost, kindOf, main, mayNotCap, outcomeOf, ratio, running, sentence, short, signalOf} from './words.js';

export function page(id, query, context) {
  const element = h('div');
  let inc, drawnAt;

  function draw() {
    const sig = signalOf(inc.signal);
    swap(element,
      h('p.crumb', null, h('a', {href: '#/incidents'}, 'Incidents'), ' / ', visible(inc.id)),
      h('div.title', null, h('h1', null, sentence(inc)), h('span', null, stateBadge(inc), ' ', accused(inc) && level(accused(inc)), ' ', inc.outcome && outcome(inc))),
      tryIt(inc, context), charts(inc, sig),
      h('div.columns', null,
        section('Suspects', suspectTable(inc, sig, context), findings(inc)),
        section('Facts', facts(inc, sig))),
      rounds(inc, sig));
  }

  return {
    get title() { return inc ? `${short(inc.victim)} on ${visible(inc.machine)}` : 'Incident'; },
    element,
    async load(signal) {
      const list = await api.get('/v1/incidents', {id, machine: query.machine}, signal);
      const found = list.find(i => i.id === id);
      if (!found) throw new api.Refused(404, `There is no incident ${id}.`, 'The server keeps incidents for store.keep_records. See the list of incidents.');
      inc = found;
      // What has not changed stays as it is: an opened table, a zoomed plot.
      const at = JSON.stringify([inc.updated, inc.closed, inc.outcome, inc.rounds?.length, running(inc, now()).length, context.caller?.scope, zoneName(), day(now())]);
      if (at !== drawnAt) draw();
      drawnAt = at;
    },
    event: (name, e) => (name === 'incident' ? e.id === id : true),
  };
}

/** tryIt says what can be done: the buttons, and the same as a command. */
function tryIt(inc, context) {
  const s = main(inc), why = s ? mayNotCap(s, inc.signal) : '';
  const capped = running(inc, now());
  const buttons = [];
  const button = (text, kind, task, more) => buttons.push(h('button', {type: 'button', 'data-key': kind, class: more?.primary && 'primary', onclick: () => act({kind, inc, task, context, ...more})}, text));
  if (!inc.closed && s && !why && !capped.length) {
    button(`Cap ${short(s)} …`, 'cap', s.task, {primary: true});
    button('Trial …', 'trial', s.task);
  }
  for (const r of capped) button(`Uncap ${short(r.suspect)} …`, 'uncap', r.suspect.task, {primary: true});
  const helped = inc.victim.class === 'latency-sensitive' && !inc.victim.unprotected || inc.victim.protected;
  button(helped ? `Do not act for ${short(inc.victim)} …` : `Protect ${short(inc.victim)} …`, helped ? 'unprotect' : 'protect', inc.victim.task);
  const command = !inc.closed && !capped.length && s && capCommand(inc, s, s.level !== 'proven' && s.level !== 'likely', context.caller?.machine);
  return h('div.try', null,
    inc.closed ? h('p', null, 'It ended ', ago(inc.closed), `, at ${when(inc.closed)} ${zoneName(inc.closed)}, after ${span(inc.closed - inc.began)}.`) : null,
    capped.map(r => h('p', null, h('b', null, tasksOf(r).map(t => short(t.suspect)).join(', ')), ` ${r.with?.length ? 'are' : 'is'} capped to ${limitOf(r)} until ${when(r.until)} ${zoneName()} at the latest, by ${visible(r.by)}.`)),
    command && [h('p', null, 'Try:'), paste(command)],
    !inc.closed && s && why && accused(inc) && h('p', null, `${short(s)} cannot be capped: ${why}.`, inc.advice && ` ${visible(inc.advice)}.`),
    inc.not_done && h('p.note', null, `Nothing${inc.rounds?.length ? ' more' : ''} was done: ${visible(inc.not_done)}.`),
    h('div.buttons', null, buttons));
}

/** tasksOf are the tasks of a round, which were capped together. */
const tasksOf = r => [r, ...(r.with || [])];

const limitOf = r => r.rate ? `${number(r.rate)} CPU` : r.net ? `${number(r.net)} bytes/s` : 'an I/O rate';

const longest = 365 * 24 * 3600_000; // than any incident's chart

function charts(inc, sig) {
  const x = inc.times || [];
  const ordered = x.every((t, i) => i === 0 || t > x[i - 1]) && x[0] >= 0 && x.at(-1) - x[0] < longest;
  if (x.length < 2 || !ordered) return h('p.state', null, x.length ? 'The chart of this incident cannot be drawn: its times are out of order.' : 'There is no chart yet: it comes with the first analysis.');
  const shades = (inc.rounds || []).map(r => ({from: r.from, to: r.ended || Math.min(r.until, Math.max(inc.updated, r.from)), tasks: tasksOf(r).map(t => t.suspect.task), name: r.trial ? 'trial' : 'capped', ink: '--shade'}));
  const sync = `incident ${inc.id}`;
  const values = inc.victim_cost.slice(0, x.length);
  const over = values.filter(v => v !== null && v > inc.threshold).length;
  const marks = [{at: inc.began, name: 'began'}].filter(m => m.at > x[0] && m.at < x.at(-1));
  const sd = inc.spec_stddev || 0;
  const victim = chart({
    title: `Cost of ${short(inc.victim)}: ${sig.what}`, unit: `${sig.unit}${x.length ? `, times in ${zoneName()}` : ''}`, sync, x, height: 220, write: v => cost(inc.signal, v),
    about: `Cost of ${short(inc.victim)} over ${span(x.at(-1) - x[0])}: over the threshold of ${cost(inc.signal, inc.threshold)} in ${over} of ${values.length} intervals.`,
    series: [{name: 'cost', values, ink: '--victim', fill: true}], limit: {at: inc.threshold, name: 'threshold'},
    band: {from: Math.max(0, inc.spec_mean - sd), to: inc.spec_mean + sd, name: 'normal'}, shades, marks,
  });
  const tracks = (inc.suspect_usage || []).slice(0, 4);
  const least = Math.max(0, ...tracks.flatMap(t => t.usage)); // one scale for all, to compare them
  const usage = tracks.map(track => {
    const s = (inc.suspects || []).find(s => s.task === track.task);
    const name = s ? short(s) : visible(track.task);
    return chart({
      title: `Usage of ${name}`, unit: sig.usage, sync, x, height: 110, least, write: number, series: [{name: 'usage', values: track.usage.slice(0, x.length), ink: '--suspect', fill: true}],
      about: `Usage of ${name} at the same times.`, shades: shades.filter(b => b.tasks.includes(track.task)).map(b => ({...b, strong: true})),
    });
  });
  return h('section.charts', null, victim, usage);
}

function suspectTable(inc, sig, context) {
  const all = inc.suspects || [];
  if (!all.length) return h('p.state', null, inc.kind === 'neighbour' || inc.kind === 'nobody' ? 'No other task was busy enough to be the cause.' : 'No task is suspected: the cause is the task itself or another machine.');
  const shares = all.some(s => s.share > 0);
  return h('div.scroll', {tabindex: '0', role: 'region', 'aria-label': 'Suspects'}, h('table', {'aria-label': 'Suspects'},
    h('thead', null, h('tr', null, h('th', {scope: 'col'}, 'Suspect'), h('th', {scope: 'col'}, 'Confidence'), shares && h('th', {scope: 'col', title: 'Part of the time in which the victim was served or waited'}, 'Share of the wait'),
      h('th.num', {scope: 'col', title: sig.usage}, 'Usage'), h('th', {scope: 'col'}, 'Why'))),
    h('tbody', null, all.map((s, i) => h('tr', {class: s.excluded ? 'excluded' : i < inc.antagonists ? 'named' : ''},
      h('td', null, s.job ? h('a', {href: `#/job/${encodeURIComponent(s.job)}`}, taskName(s.task, s.job)) : taskName(s.task)),
      h('td', null, s.excluded ? '–' : level(s)),
      shares && h('td', null, s.share > 0 ? share(s) : '–'),
      h('td.num', null, number(s.usage)),
      h('td.why', null, s.excluded ? `excluded: ${visible(s.excluded)}` : visible(s.why || (i < inc.antagonists ? 'named' : 'no evidence'))))))));
}

/** share is a suspect's share of the wait, with a mark at its usual share. */
function share(s) {
  const of = (s.share || 0) + (s.pushed || 0);
  return h('span.share', {title: `usually ${percent(s.usual_share || 0)}${s.fair_share ? `, fair share ${percent(s.fair_share)}` : ''}`},
    h('span.track', null, h('i', {css: {width: percent(Math.min(1, of)).replace(' ', '')}}), h('em', {css: {left: percent(Math.min(1, s.usual_share || 0)).replace(' ', '')}})), percent(of));
}

function findings(inc) {
  const all = inc.findings || [];
  if (all.length < 2) return null;
  return [h('h3', null, 'Named in turn'), h('ul', null, all.map(f => h('li', null, taskName(f.suspect.task, f.suspect.job), ' from ', time(f.from), ' to ', time(f.until), ' ', level(f.suspect))))];
}

function facts(inc, sig) {
  const x = ratio(inc.cost, inc.spec_mean);
  return h('dl', null,
    fact('Victim', jobLink(inc.victim.job), ' ', h('code', null, visible(inc.victim.task)), h('span.sub', null, ` ${visible(inc.victim.class || '')}${inc.victim.protected ? ', protected' : ''}`)),
    fact('Machine', machineLink(inc.machine)),
    fact('Signal', `${visible(inc.signal)}: ${sig.what}`, h('span.sub', null, ` counted as ${visible(inc.variant || '')}`)),
    fact('Cost', `${cost(inc.signal, inc.cost)} ${sig.unit}`, x && ` (${x} normal)`, h('span.sub', null, `; normal ${cost(inc.signal, inc.spec_mean)} ± ${cost(inc.signal, inc.spec_stddev)}${inc.spec_own ? ', of this machine’s own history' : ', of the job'}${inc.spec_samples ? `, provisional, of ${inc.spec_samples} samples` : ''}; threshold ${cost(inc.signal, inc.threshold)}`)),
    fact('Time', 'bad since ', time(inc.began), ', found ', time(inc.opened), inc.closed ? [', ended ', time(inc.closed)] : ', not ended'),
    fact('Finding', `${kindOf(inc.kind)}`, inc.reason && `: ${visible(inc.reason)}`),
    inc.latest && fact('Latest', `${when(inc.latest.analysed)}: ${kindOf(inc.latest.kind)}, cost ${cost(inc.signal, inc.latest.cost)}`, inc.latest.reason && `; ${visible(inc.latest.reason)}`),
    fact('Decided', `by rule ${visible(inc.rule)}, enforcement ${visible(inc.mode)}`, inc.pairs ? `, ${plural(inc.pairs, 'interval')} compared` : ''),
    profiles(inc).map(p => fact('Profile', h('a', {href: p.url, rel: 'noreferrer'}, visible(p.task)))),
    inc.advice && fact('Advice', visible(inc.advice)));
}

/** profiles are the links that the agent's configuration makes; an agent may lie: no other scheme. */
const profiles = inc => (inc.profiles || []).filter(p => /^https?:\/\//.test(p.url));

function rounds(inc, sig) {
  const all = inc.rounds || [], hold = running(inc, now());
  if (!all.length) return null;
  return section('Caps and trials', h('div.scroll', {tabindex: '0', role: 'region', 'aria-label': 'Caps and trials'}, h('table', {'aria-label': 'Caps and trials'},
    h('thead', null, h('tr', null, ['From', 'Until', 'Task', 'Limit', 'By', `Cost before → under (${sig.unit})`, 'Outcome', 'Why'].map(t => h('th', {scope: 'col'}, t)))),
    h('tbody', null, all.map(r => h('tr', null, h('td', null, time(r.from)), h('td', null, r.ended ? time(r.ended) : [time(r.until), ' at the latest']),
      h('td', null, tasksOf(r).map((t, i) => [i > 0 && ', ', taskName(t.suspect.task, t.suspect.job)]), r.trial && h('span.sub', null, ' trial')), h('td', null, limitOf(r)), h('td', null, visible(r.by)),
      h('td', null, r.samples > 0 ? `${cost(inc.signal, r.cost_before)} → ${cost(inc.signal, r.cost_under)} (${number(r.relative_cost)})` : `${cost(inc.signal, r.cost_before)} → not measured`),
      h('td', null, r.outcome ? outcomeOf(r.outcome)[0] : hold.includes(r) ? 'running' : 'over'), h('td.why', null, visible(r.why || ''))))))));
}
