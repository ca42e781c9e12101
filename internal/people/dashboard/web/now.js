// What is going on now: the tasks that suffer, on which machines, and all tasks by distress.

import * as api from './api.js';
import {count, h, link, now, number, percent, plural, say, span, svg, swap, visible} from './dom.js';
import {bar} from './bar.js';
import {Grid, counted} from './grid.js';
import {badge, filter, fromEvent, has, hasMore, incidentGrid, incidentLink, machineLink, section, since, stat, taskName} from './parts.js';
import {assess, cost, lastPart, levelOf, main, sentence, short, signalOf} from './words.js';

const silent = 180_000; // a machine that has sent nothing for so long is shown as silent
const removed = 24 * 3600_000; // and after so long it is shown after all others, and its incidents are not
const reported = '168h'; // an agent reports an open incident every few minutes: what is older need not be read
const mostSquares = 90;
const mostCosts = 100_000; // of tasks that the server lists, by machine: a browser cannot read the trailer that says that there are more

export function page(_, query, context) {
  let tasks = [], incidents = [], machines = [], left = [], part = false, cut = false, unlisted = '', typed = query.find || '';
  const headline = h('div.headline');
  const open = incidentGrid('Open incidents', {without: ['state', 'outcome'], sort: 'cost', empty: 'No open incident.'});
  const places = h('div.places'), leftOver = h('div');
  const find = filter('Filter', typed, text => {
    typed = text;
    context.replace({find: typed});
    grid.element.scrollTop = 0;
    fillTasks();
  });
  const shown = h('span.sub', {role: 'status'});
  const grid = new Grid({
    label: 'Tasks', sort: 'distress', empty: 'No task has sent a sample in the last 10 minutes.', of: levelOf,
    columns: [
      {key: 'task', label: 'Task', sort: t => t.job || t.task, cell: t => h('a', {href: link('job', t.job || t.task)}, taskName(t.task, t.job))},
      {key: 'machine', label: 'Machine', drop: 'medium', sort: t => t.machine, cell: t => machineLink(t.machine)},
      {key: 'class', label: 'Class', drop: 'wide', sort: t => t.class, cell: t => visible(t.class)},
      {key: 'cpu', label: 'CPU', num: true, sort: t => t.cpu, cell: t => number(t.cpu), title: 'CPU seconds per second'},
      {key: 'signal', label: 'Worst signal', drop: 'wide', sort: t => t.worst?.signal, cell: t => t.worst ? h('span', {title: signalOf(t.worst.signal).what}, visible(t.worst.signal)) : '–'},
      {key: 'cost', label: 'Cost', drop: 'wide', num: true, sort: t => t.worst?.cost, cell: t => t.worst ? `${cost(t.worst.signal, t.worst.cost)} ${signalOf(t.worst.signal).unit}` : '–'},
      {key: 'distress', label: 'Of threshold', num: true, sort: t => t.worst?.x, cell: t => t.worst ? bar(t) : h('span.sub', {title: 'The normal cost of its job is not known yet'}, 'learning'),
        title: 'Cost ÷ threshold: above 100 % a sample is an outlier'},
      {key: 'state', label: 'State', sort: t => t.role || '', cell: t => t.old ? since(t) : t.role ? badge(t.role, t.role === 'victim' ? 'bad' : t.role === 'capped' ? 'act' : 'warn') : t.worst?.x > 1 ? badge('over', 'warn') : ''},
    ],
  });
  const element = h('div', null, headline, section('Open incidents', open.element, leftOver), section('Machines', places),
    h('section', null, h('div.bar', null, h('h2', null, 'Tasks'), shown, find), grid.element));

  function fillTasks() {
    const rows = typed ? tasks.filter(t => has(typed, t.task, t.job, t.machine)) : tasks;
    grid.set(rows, unlisted || (typed && tasks.length ? 'No task matches the filter.' : undefined));
    shown.textContent = counted(rows.length, tasks.length, 'tasks') + (cut ? ', the first by machine; the server lists no more' : '');
  }

  function draw() {
    const roles = new Map();
    for (const i of incidents) {
      if (i.closed) continue;
      const s = main(i);
      if (s && i.antagonists > 0) roles.set(`${i.machine} ${s.task}`, 'suspect');
      roles.set(`${i.machine} ${i.victim.task}`, 'victim');
    }
    assess(tasks);
    for (const t of tasks) t.role = t.old ? '' : t.capped ? 'capped' : roles.get(`${t.machine} ${t.task}`);
    drawHeadline();
    drawIncidents();
    drawMachines();
    fillTasks();
  }

  function drawIncidents() {
    open.set(incidents.filter(i => !i.closed));
    swap(leftOver, left.length > 0 && h('p.note', null, `${count(left.length)} more of machines that have sent nothing for a day: their agents did not close them. `, h('a', {href: `#/incidents?since=${reported}&state=open`}, 'Those of the last week')));
  }

  function drawHeadline() {
    const bad = incidents.filter(i => !i.closed);
    const victims = list => new Set(list.map(i => `${i.machine} ${i.victim.task}`)); // a task may have an incident of each signal
    const hurt = victims(bad.filter(i => i.kind === 'neighbour'));
    const at = new Set(bad.filter(i => i.kind === 'neighbour').map(i => i.machine));
    const present = tasks.filter(t => !t.old), over = present.filter(t => t.worst?.x > 1).length, capped = present.filter(t => t.capped).length;
    const learning = present.filter(t => !t.worst).length, there = machines.filter(m => now() - m.last_seen < removed).length;
    let title, ink = 'calm', more = '';
    if (hurt.size) {
      ink = 'bad';
      title = `${part ? 'At least ' : ''}${plural(hurt.size, 'task')} ${hurt.size === 1 ? 'is' : 'are'} held up by neighbours on ${plural(at.size, 'machine')}`;
      const worst = bad.filter(i => i.kind === 'neighbour').sort((a, b) => (b.cost / b.spec_mean || 0) - (a.cost / a.spec_mean || 0))[0];
      more = h('p.lead', null, h('a', {href: incidentLink(worst)}, sentence(worst)));
    } else if (bad.length) {
      ink = 'warn';
      const n = victims(bad).size;
      title = `${plural(n, 'task')} ${n === 1 ? 'suffers' : 'suffer'}, and no neighbour is named`;
    } else if (!machines.length) {
      title = 'No machine has sent anything yet';
      more = h('p.lead', null, 'Start quell-agent on a machine, with this server’s bus as its server.url: docs/server.md.');
    } else if (!tasks.length && !unlisted) {
      ink = 'warn';
      title = 'No machine has sent a sample in the last 10 minutes';
    } else title = 'No task is held up';
    const least = n => (cut ? '≥ ' : '') + count(n);
    swap(headline, h('h1', {class: ink}, title), more,
      h('div.stats', null, stat(count(there), there === 1 ? 'machine' : 'machines'), stat(least(present.length), present.length === 1 ? 'task' : 'tasks'),
        stat(least(over), 'over their threshold', over ? 'warn' : ''), stat(least(capped), 'capped', capped ? 'act' : ''),
        learning > 0 && stat(least(learning), 'whose normal cost is being learnt')));
  }

  function drawMachines() {
    const by = new Map(machines.map(m => [m.machine, {machine: m.machine, last: m.last_seen, tasks: []}]));
    for (const t of tasks) {
      if (!by.has(t.machine)) by.set(t.machine, {machine: t.machine, last: t.at, tasks: []});
      if (!t.old) by.get(t.machine).tasks.push(t);
    }
    const x = t => t.worst?.x ?? -1, order = ['over', 'near', 'calm', 'none'];
    const rows = [...by.values()];
    for (const m of rows) {
      m.tasks.sort((a, b) => order.indexOf(levelOf(a)) - order.indexOf(levelOf(b)) || x(b) - x(a));
      m.x = m.tasks.length ? x(m.tasks[0]) : -1;
      m.victims = m.tasks.filter(t => t.role === 'victim').length;
      m.late = now() - m.last > silent;
      m.rank = m.x > 1 ? 2 : m.late && now() - m.last < removed ? 1 : 0;
    }
    rows.sort((a, b) => b.victims - a.victims || b.rank - a.rank || b.x - a.x || (a.machine < b.machine ? -1 : 1));
    const most = 40;
    swap(places, rows.length === 0 && h('p.state', null, 'No machine has sent anything yet.'), rows.slice(0, most).map(m => {
      const worst = m.tasks[0];
      return h('a.place', {href: link('machine', m.machine)},
        h('span.name', null, visible(m.machine)),
        strip(m.tasks),
        h('span.worst', null, m.late ? h('span.bad', null, `silent for ${span(now() - m.last)}`) : worst?.worst ? [visible(worst.job || lastPart(worst.task)), ' ', h('b', {class: levelOf(worst)}, percent(worst.worst.x))]
          : h('span.sub', null, m.tasks.length ? 'learning' : cut ? 'not listed' : 'no tasks')));
    }), rows.length > most && h('p.note', null, `${count(rows.length - most)} more machines are calmer or silent; the table below has their tasks.`),
    rows.length > 0 && h('p.note.legend', null, ['over', 'near', 'calm', 'none'].map(l => h('span.key', null, h(`i.square.${l}`), {over: 'over the threshold', near: 'near it', calm: 'normal', none: 'being learnt'}[l]))));
  }

  return {
    title: 'Now', element,
    async load(signal) {
      unlisted = '';
      const all = api.get('/v1/tasks', {}, signal).catch(e => {
        if (e.status !== 422) throw e;
        unlisted = `The tasks are too many to list: ${visible(e.message)}.`; // incidents and machines are shown all the same
        return [];
      });
      const [t, m, i] = await Promise.all([all, api.get('/v1/machines', {}, signal), api.get('/v1/incidents', {open: 'true', since: reported, brief: 'true'}, signal)]);
      const heard = new Map(m.map(x => [x.machine, x.last_seen])), gone = x => !(now() - heard.get(x.machine) < removed);
      [tasks, machines, incidents, left, part] = [t, m, i.filter(x => !gone(x)), i.filter(gone), hasMore(i)];
      cut = t.reduce((n, x) => n + x.costs.length, 0) >= mostCosts;
      draw();
    },
    event(name, e) {
      if (name !== 'incident') return name === 'action' ? undefined : false;
      const known = incidents.some(i => i.id === e.id);
      const inc = fromEvent(incidents, e);
      drawIncidents();
      drawHeadline();
      if (!known && !e.closed) say(`New incident: ${short(inc.victim)} on ${e.machine}`);
    },
  };
}

/** strip is a square for each task, the worst first. */
function strip(tasks) {
  const wide = 8, high = 14, paths = new Map();
  const counts = {};
  tasks.forEach((t, i) => {
    const l = levelOf(t);
    counts[l] = (counts[l] || 0) + 1;
    if (i < mostSquares) paths.set(l, (paths.get(l) || '') + `M${i * wide} 0h${wide - 2}v${high}h${2 - wide}z`);
  });
  const n = Math.min(tasks.length, mostSquares) * wide;
  const about = `${plural(tasks.length, 'task')}: ${counts.over || 0} over the threshold, ${counts.near || 0} near it`;
  return h('span.strip', null, svg('svg', {class: 'squares', viewBox: `0 0 ${Math.max(n, wide)} ${high}`, width: Math.max(n, wide), height: high, role: 'img', 'aria-label': about},
    [...paths].map(([l, d]) => svg('path', {class: l, d}))), tasks.length > mostSquares && h('span.sub', null, `+${count(tasks.length - mostSquares)}`));
}
