// One machine: the tasks that share it, their CPU usage, and its incidents.

import * as api from './api.js';
import {count, h, link, number, swap, time, visible} from './dom.js';
import {bar} from './bar.js';
import {Grid} from './grid.js';
import {badge, cutOff, incidentGrid, section, seen, since, stat, taskName} from './parts.js';
import {chart} from './plots.js';
import {assess, lastPart, levelOf, main, signalOf, standsIn, cost} from './words.js';

const inks = ['--c1', '--c2', '--c3', '--c4', '--c5', '--c6'];

export function page(machine, query, context) {
  const head = h('div'), plots = h('div.charts'), pairs = h('div.panel');
  const incidents = incidentGrid(`Incidents on ${machine}`, {without: ['machine'], empty: 'No incident on this machine in the last week.'});
  const grid = new Grid({label: 'Tasks', sort: 'cpu', empty: 'No task has sent a sample in the last 10 minutes.', of: levelOf, columns: [
    {key: 'task', label: 'Task', sort: t => t.job || t.task, cell: t => h('a', {href: link('job', t.job || t.task)}, taskName(t.task, t.job))},
    {key: 'class', label: 'Class', drop: 'medium', sort: t => t.class, cell: t => visible(t.class)},
    {key: 'cpu', label: 'CPU', num: true, sort: t => t.cpu, cell: t => number(t.cpu), title: 'CPU seconds per second'},
    {key: 'costs', label: 'Costs', drop: 'wide', cell: t => t.costs.filter(c => c.cost !== null).map((c, i) => [i > 0 && ', ', h('span', {title: `${signalOf(c.signal).what}, ${signalOf(c.signal).unit}`}, `${visible(c.signal)} ${cost(c.signal, c.cost)}`)])},
    {key: 'x', label: 'Of threshold', num: true, sort: t => t.worst?.x, cell: t => t.worst ? bar(t) : h('span.sub', null, 'learning')},
    {key: 'state', label: 'State', sort: t => t.capped ? 1 : 0, cell: t => t.old ? since(t) : t.capped ? badge('capped', 'act') : ''},
  ]});
  const element = h('div', null, h('p.crumb', null, h('a', {href: '#/now'}, 'Now'), ' / machines'), head, plots, section('Tasks that share it', grid.element), section('Which task hurt which', pairs), section('Incidents', incidents.element));

  return {
    title: visible(machine), element, every: 60_000,
    async load(signal) {
      const step = 60_000;
      const [machines, tasks, list, usage] = await Promise.all([api.get('/v1/machines', {}, signal), api.get('/v1/tasks', {machine}, signal), api.get('/v1/incidents', {machine, since: '168h', brief: 'true'}, signal),
        context.caller?.machine ? [] : api.sql(`WITH u AS (SELECT task, CAST(floor(epoch_ms(ts) / ${step}) AS BIGINT) AS t, max(cpu) AS cpu FROM samples WHERE machine = ${api.quote(machine)} AND signal NOT IN ('probe', 'steal') GROUP BY ALL),
top AS (SELECT task FROM u GROUP BY task ORDER BY sum(cpu) DESC LIMIT ${inks.length})
SELECT t, task, cpu FROM u WHERE task IN (SELECT task FROM top) ORDER BY t`, '1h', signal)]);
      const known = machines.find(m => m.machine === machine);
      if (!known && !tasks.length && !list.length) throw new api.Refused(404, `No machine ${machine} has sent anything.`, 'Its name is that of its agent’s configuration (machine).');
      assess(tasks);
      const present = tasks.filter(t => !t.old), over = present.filter(t => t.worst?.x > 1).length;
      const used = present.reduce((sum, t) => sum + (standsIn(t) ? 0 : t.cpu), 0);
      swap(head, h('div.title', null, h('h1', null, visible(machine)), known && h('span', null, 'last message ', seen(known.last_seen))),
        h('div.stats', null, stat(count(present.length), present.length === 1 ? 'task' : 'tasks'), stat(number(used), 'CPUs used by tasks'),
          stat(count(over), 'over their threshold', over ? 'warn' : ''), stat(count(list.filter(i => !i.closed).length), 'open incidents', list.some(i => !i.closed) ? 'bad' : ''),
          known && stat(count(known.lives), known.lives === 1 ? 'run of its agent' : 'runs of its agent')));
      grid.set(tasks);
      incidents.set(list);
      drawPairs(list);
      drawUsage(usage, step);
    },
    event: (name, e) => e.machine === machine ? undefined : false,
  };

  function drawUsage(rows, step) {
    if (rows.length < 2) {
      swap(plots);
      return;
    }
    const first = rows[0].t, last = rows.at(-1).t, names = [...new Set(rows.map(r => r.task))];
    const x = Array.from({length: last - first + 1}, (_, i) => (first + i) * step);
    const values = new Map(names.map(n => [n, x.map(() => null)]));
    for (const r of rows) values.get(r.task)[r.t - first] = r.cpu;
    swap(plots, x.length > 1 && chart({title: 'CPU usage of the busiest tasks, last hour', unit: 'CPU-s/s', x, height: 200, about: `CPU usage of ${names.map(visible).join(', ')}.`,
      series: names.map((n, i) => ({name: n === '(other)' ? 'outside any task' : visible(lastPart(n)), values: values.get(n), ink: inks[i]}))}));
  }

  function drawPairs(list) {
    const by = new Map();
    for (const i of list) {
      const s = main(i);
      if (!s || !(i.antagonists > 0)) continue;
      const k = `${i.victim.task}\n${s.task}`, p = by.get(k) || {victim: i.victim, suspect: s, n: 0, last: 0};
      p.n++;
      p.last = Math.max(p.last, i.opened);
      by.set(k, p);
    }
    const rows = [...by.values()].sort((a, b) => b.n - a.n).slice(0, 20);
    swap(pairs, cutOff(list), rows.length === 0 ? h('p.state', null, 'No task was named in the last week.') : h('table', null,
      h('thead', null, h('tr', null, h('th', {scope: 'col'}, 'Suspect'), h('th', {scope: 'col'}, 'Victim'), h('th.num', {scope: 'col'}, 'Incidents'), h('th', {scope: 'col'}, 'Last'))),
      h('tbody', null, rows.map(p => h('tr', null, h('td', null, taskName(p.suspect.task, p.suspect.job)), h('td', null, taskName(p.victim.task, p.victim.job)), h('td.num', null, p.n), h('td', null, time(p.last)))))));
  }
}
