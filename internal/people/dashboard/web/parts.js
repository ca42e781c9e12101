// What several pages show: incidents in a table, levels, commands to paste.

import {ago, clock, count, h, link, now, say, span, time, visible} from './dom.js';
import {Grid} from './grid.js';
import {figure, kindOf, lastPart, main, outcomeOf, ratio, signalOf, state} from './words.js';

/** taskName shows the end of a task's name, which says most; the whole name is its title. */
export function taskName(name, job) {
  const end = visible(lastPart(name));
  return h('span.task', {title: visible(name)}, job && job !== lastPart(name) ? [visible(job), h('span.sub', null, ' ', end)] : end);
}

/** since says when a task that is not sampled any more was sampled last: it may have ended. */
export const since = t => h('span.sub', null, 'last seen ', time(t.at));

export const jobLink = job => job ? h('a', {href: link('job', job)}, visible(job)) : '–';
export const machineLink = m => h('a', {href: link('machine', m)}, visible(m));

/** incidentLink names the machine too: each machine numbers its own. */
export const incidentLink = i => link('incident', i.id, {machine: i.machine});

export const badge = (text, level, title) => h('span.badge', {class: `badge ${level || ''}`, title}, text);

const levelInks = {proven: 'bad', likely: 'bad', possible: 'warn', none: ''};
/** level is a suspect's level and its figure, in the words that are used everywhere. */
export function level(s) {
  if (!s) return '–';
  const l = s.level && s.level !== 'none' ? s.level : '';
  const text = [l, figure(s)].filter(Boolean).join(', ');
  return text ? badge(text, levelInks[l] || '', s.why ? visible(s.why) : undefined) : '–';
}

export const stateBadge = inc => {
  const s = state(inc, now());
  return badge(s.text, s.level);
};

export const outcome = inc => {
  const [text, about, ink] = outcomeOf(inc.outcome);
  return text ? badge(text, ink, about) : '–';
};

const lasts = inc => (inc.closed || Math.max(inc.updated, inc.began)) - inc.began;
const worse = inc => inc.spec_mean > 0 ? inc.cost / inc.spec_mean : undefined;

/** incidentGrid is the table of incidents; without leaves columns out. */
export function incidentGrid(label, {without = [], sort = 'found', empty} = {}) {
  const columns = [
    {key: 'found', label: 'Found', sort: i => i.opened, num: true, drop: 'medium', cell: i => time(i.opened)},
    {key: 'victim', label: 'Victim', sort: i => i.victim.job || i.victim.task, cell: i => h('a', {href: incidentLink(i), class: 'row'}, taskName(i.victim.task, i.victim.job))},
    {key: 'machine', label: 'Machine', drop: 'medium', sort: i => i.machine, cell: i => machineLink(i.machine)},
    {key: 'signal', label: 'Signal', drop: 'wide', sort: i => i.signal, cell: i => h('span', {title: signalOf(i.signal).what}, visible(i.signal))},
    {key: 'cost', label: '× normal', num: true, sort: worse, cell: i => ratio(i.cost, i.spec_mean) || '–', title: 'The victim’s cost ÷ its normal cost'},
    {key: 'suspect', label: 'Suspect', sort: i => main(i)?.job || main(i)?.task, cell: i => main(i) ? taskName(main(i).task, main(i).job) : h('span.sub', null, kindOf(i.kind))},
    {key: 'level', label: 'Confidence', drop: 'medium', sort: i => ['none', 'possible', 'likely', 'proven'].indexOf(main(i)?.level), num: true, cell: i => level(main(i))},
    {key: 'lasts', label: 'Lasted', num: true, drop: 'wide', sort: lasts, cell: i => span(lasts(i))},
    {key: 'outcome', label: 'Outcome', drop: 'medium', sort: i => i.outcome || '', cell: outcome},
    {key: 'state', label: 'State', sort: i => (i.closed ? 0 : 1), cell: stateBadge},
  ];
  return new Grid({label, columns: columns.filter(c => !without.includes(c.key)), sort, empty, of: i => i.closed ? '' : 'open'});
}

const mostIncidents = 1000; // that the server lists, the newest; fewer if they are large

/** hasMore reports whether a list of incidents may not have all. */
export const hasMore = list => list.more || list.length >= mostIncidents;

/** cutOff says that figures are of a list that may not have all incidents. */
export const cutOff = list => hasMore(list) && h('p.note', null, `Of the newest ${count(list.length)} incidents.`);

/** fromEvent updates a list of incidents by an event; false if that is not possible. */
export function fromEvent(list, e) {
  const inc = list.find(i => i.id === e.id && i.machine === e.machine);
  if (inc) {
    Object.assign(inc, {kind: e.kind, outcome: e.outcome, updated: e.updated, closed: e.closed || inc.closed});
    return inc;
  }
  const fresh = {id: e.id, machine: e.machine, kind: e.kind, signal: e.signal, outcome: e.outcome, updated: e.updated, opened: e.updated, began: e.updated, closed: e.closed || 0,
    victim: {task: e.victim_task, job: e.victim_job, class: ''}, suspects: e.suspect_task ? [{task: e.suspect_task, job: ''}] : [], antagonists: e.suspect_task ? 1 : 0, rounds: []};
  list.unshift(fresh);
  return fresh;
}

/** paste is a command with a button that copies it. */
export function paste(command) {
  const button = h('button', {type: 'button', 'data-key': command, onclick: async () => {
    try {
      await navigator.clipboard.writeText(command);
      button.textContent = 'Copied';
      say('The command is copied');
    } catch {
      getSelection().selectAllChildren(code); // without TLS there is no clipboard
      button.textContent = 'Selected';
    }
    setTimeout(() => { button.textContent = 'Copy'; }, 2000);
  }}, 'Copy');
  const code = h('code', null, command);
  return h('div.paste', null, code, button);
}

/** fact is a term with what it is. */
export const fact = (term, ...what) => h('div.fact', null, h('dt', null, term), h('dd', null, what));

export const stat = (value, what, ink) => h('div.stat', {class: `stat ${ink || ''}`}, h('b', null, value), h('span', null, what));

export const section = (title, ...children) => h('section', null, h('h2', null, title), children);

export const field = (label, input) => h('label.field', null, h('span', null, label), input);

export function choice(label, options, value, onchange) {
  const s = h('select', {onchange: e => onchange(e.target.value)}, options.map(([v, text]) => h('option', {value: v, selected: v === value}, text)));
  return field(label, s);
}

/** filter is a field that calls onchange a moment after typing. */
export function filter(label, value, onchange) {
  let timer;
  return field(label, h('input', {type: 'search', value, placeholder: 'job, task or machine', autocomplete: 'off', spellcheck: 'false', oninput: e => {
    clearTimeout(timer);
    timer = setTimeout(() => onchange(e.target.value.trim()), 120);
  }}));
}

/** has reports whether one of the texts contains what was typed. */
export const has = (typed, ...texts) => {
  const t = typed.toLowerCase();
  return texts.some(x => x && x.toLowerCase().includes(t));
};

export const seen = (ms, limit = 180_000) => h('span', {class: now() - ms > limit ? 'bad' : 'sub', title: clock(ms)}, ago(ms));
