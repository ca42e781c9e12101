// One job: what it normally costs, how that was lately, its worst neighbours, the jobs that it hurts.

import * as api from './api.js';
import {count, h, number, plural, swap, time, visible} from './dom.js';
import {Grid} from './grid.js';
import {bar} from './bar.js';
import {choice, cutOff, incidentGrid, jobLink, machineLink, section, stat, taskName} from './parts.js';
import {chart} from './plots.js';
import {cost, distress, levelOf, main, signalOf, signals} from './words.js';

const bins = 48;
export function page(job, query, context) {
  const q = {spec: query.spec || '', span: query.span || '24h'};
  let specs = [], spec;
  const head = h('div'), plots = h('div.charts'), worst = h('div'), hurts = h('div');
  const victim = incidentGrid(`Incidents of ${job}`, {without: ['victim'], empty: 'No incident of this job in the last week.'});
  const grid = new Grid({label: 'Tasks', sort: 'x', empty: 'No task of this job has sent a sample in the last 10 minutes.', of: levelOf, columns: [
    {key: 'task', label: 'Task', sort: t => t.task, cell: t => taskName(t.task)},
    {key: 'machine', label: 'Machine', sort: t => t.machine, cell: t => machineLink(t.machine)},
    {key: 'cpu', label: 'CPU', num: true, sort: t => t.cpu, cell: t => number(t.cpu)},
    {key: 'x', label: 'Of threshold', num: true, sort: t => t.worst?.x, cell: t => t.worst ? bar(t) : h('span.sub', null, 'learning')},
    {key: 'signal', label: 'Worst signal', drop: 'medium', sort: t => t.worst?.signal, cell: t => t.worst ? visible(t.worst.signal) : '–'},
  ]});
  const element = h('div', null, head, plots,
    h('div.columns', null, section('Worst neighbours', worst), section('Jobs that it hurts', hurts)),
    section('Incidents', victim.element), section('Tasks', grid.element));
  const key = s => [s.signal, s.platform, s.variant].join(' ');

  async function drawPlots(signal) {
    if (spec && context.caller?.machine) {
      swap(plots, h('p.state', null, 'quell-server keeps samples, and shows their distribution and history here; an agent alone does not.'));
      return;
    }
    if (!spec) {
      swap(plots, h('p.state', null, 'Its normal cost is not known yet: it is learnt from samples on several machines, which takes hours. See docs/specs.md.'));
      return;
    }
    const where = `job = ${api.quote(job)} AND signal = ${api.quote(spec.signal)} AND platform = ${api.quote(spec.platform)} AND variant = ${api.quote(spec.variant)} AND cost IS NOT NULL`;
    const limit = spec.threshold;
    const hours = q.span === '24h' ? 24 : 168, step = hours * 3600_000 / 144;
    const [parts, history] = await Promise.all([
      api.sql(`WITH s AS (SELECT cost FROM samples WHERE ${where}), r AS (SELECT least(min(cost), ${limit}) AS low, greatest(quantile_cont(cost, 0.995), ${limit} * 1.1) AS high FROM s)
SELECT CAST(least(${bins - 1}, greatest(0, floor((cost - low) / nullif(high - low, 0) * ${bins}))) AS INTEGER) AS bin, low, high, count(*) AS n FROM s, r GROUP BY ALL ORDER BY 1`, q.span, signal),
      api.sql(`SELECT CAST(floor(epoch_ms(ts) / ${step}) AS BIGINT) AS t, quantile_cont(cost, 0.5) AS p50, quantile_cont(cost, 0.95) AS p95, count(*) AS n FROM samples WHERE ${where} GROUP BY ALL ORDER BY 1`, q.span, signal),
    ]);
    const out = [];
    if (parts.length && parts[0].bin !== null) {
      const {low, high} = parts[0], wide = (high - low) / bins, n = new Array(bins).fill(0);
      for (const p of parts) n[p.bin] = p.n;
      const total = n.reduce((a, b) => a + b, 0), x = n.map((_, i) => low + (i + 0.5) * wide);
      const fit = spec.stddev > 0 ? x.map(v => total * wide / (spec.stddev * Math.sqrt(2 * Math.PI)) * Math.exp(-((v - spec.mean) ** 2) / (2 * spec.stddev ** 2))) : x.map(() => null);
      const over = x.reduce((sum, v, i) => sum + (v > limit ? n[i] : 0), 0);
      out.push(chart({title: `Distribution of its ${signalOf(spec.signal).what}`, unit: `samples by ${signalOf(spec.signal).unit}`, x, time: false, height: 200, write: number,
        series: [{name: 'samples', values: n, ink: '--victim', bars: true, fill: true, width: 0}, {name: 'normal, by the spec', values: fit, ink: '--ink', points: false}],
        marks: [{at: limit, name: 'threshold', ink: '--red'}, {at: spec.mean, name: 'mean'}],
        about: `${count(total)} samples; mean ${cost(spec.signal, spec.mean)}, σ ${cost(spec.signal, spec.stddev)}, threshold ${cost(spec.signal, limit)}; about ${count(over)} over it.`}));
    }
    if (history.length > 1) {
      const first = history[0].t, last = history.at(-1).t, by = new Map(history.map(r => [r.t, r]));
      const x = [], p50 = [], p95 = [];
      for (let t = first; t <= last; t++) {
        x.push(t * step);
        p50.push(by.get(t)?.p50 ?? null);
        p95.push(by.get(t)?.p95 ?? null);
      }
      out.push(chart({title: `Its ${signalOf(spec.signal).what} over time`, unit: signalOf(spec.signal).unit, x, height: 200, write: v => cost(spec.signal, v),
        series: [{name: 'median', values: p50, ink: '--victim'}, {name: '95 % are below', values: p95, ink: '--suspect'}], limit: {at: limit, name: 'threshold'}, about: 'Median and 95th percentile of all tasks’ samples.'}));
    }
    swap(plots, out.length ? out : h('p.state', null, `No sample of this signal in the last ${hours} hours.`));
  }

  /** neighbours aggregates incidents by the other job. A cap counts for the job of the task that was capped: the
   * suspect, or the other job without one. */
  function neighbours(list, other, suspect) {
    const by = new Map();
    for (const i of list) {
      const name = other(i);
      if (!name) continue;
      const p = by.get(name) || {name, n: 0, machines: new Set(), helped: 0, tried: 0, x: 0, last: 0};
      p.n++;
      p.machines.add(i.machine);
      p.x = Math.max(p.x, i.spec_mean > 0 ? i.cost / i.spec_mean : 0);
      for (const r of i.rounds || []) {
        if (r.with?.length || r.suspect.job !== (suspect || name)) continue; // a cap of several says nothing of one
        if (['true-positive', 'false-positive', 'noise'].includes(r.outcome)) p.tried++;
        if (r.outcome === 'true-positive') p.helped++;
      }
      p.last = Math.max(p.last, i.opened);
      by.set(name, p);
    }
    const rows = [...by.values()].sort((a, b) => b.helped - a.helped || b.n - a.n);
    if (!rows.length) return h('p.state', null, 'None in the last week.');
    return [cutOff(list), h('table', null, h('thead', null, h('tr', null, h('th', {scope: 'col'}, 'Job'), h('th.num', {scope: 'col'}, 'Incidents'), h('th.num', {scope: 'col'}, 'Machines'), h('th.num', {scope: 'col'}, 'At worst'),
      h('th', {scope: 'col'}, 'Caps that helped'), h('th', {scope: 'col'}, 'Last'))),
    h('tbody', null, rows.slice(0, 12).map(p => h('tr', null, h('td', null, jobLink(p.name)), h('td.num', null, p.n), h('td.num', null, p.machines.size), h('td.num', null, p.x ? `${number(p.x)} ×` : '–'),
      h('td', null, p.tried ? `${p.helped} of ${p.tried}` : 'none tried'), h('td', null, time(p.last))))))];
  }

  function drawHead() {
    const options = specs.map(s => [key(s), `${s.signal}${signals[s.signal] ? ': ' + signals[s.signal].what : ''} · ${s.platform}`]);
    const change = name => async v => {
      q[name] = v;
      context.replace({spec: q.spec, span: q.span === '24h' ? '' : q.span});
      context.reload();
    };
    swap(head, h('h1', null, visible(job)),
      specs.length > 0 && h('div.bar', null, choice('Normal cost of', options.map(([v, t]) => [v, visible(t)]), spec && key(spec), change('spec')), choice('Over', [['24h', 'the last day'], ['168h', 'the last week']], q.span, change('span'))),
      spec && h('div.stats', null, stat(`${cost(spec.signal, spec.mean)} ± ${cost(spec.signal, spec.stddev)}`, `normal, ${signalOf(spec.signal).unit}`), stat(cost(spec.signal, spec.threshold), 'threshold'),
        stat(count(spec.samples), 'samples learnt from'), stat(count(spec.tasks), `tasks on ${plural(spec.machines || 0, 'machine')}`), spec.state !== 'ready' && stat(visible(spec.state), 'not used to judge', 'warn')));
  }

  return {
    title: visible(job), element, every: 60_000,
    async load(signal) {
      const week = {since: '168h', brief: 'true'};
      const [all, tasks, hurt, hurting] = await Promise.all([api.get('/v1/specs', {job}, signal), api.get('/v1/tasks', {job}, signal),
        api.get('/v1/incidents', {job, ...week}, signal), api.get('/v1/incidents', {suspect: job, ...week}, signal)]);
      specs = all.sort((a, b) => (b.state === 'ready') - (a.state === 'ready') || b.samples - a.samples);
      spec = specs.find(s => key(s) === q.spec) || specs.find(s => s.signal === hurt[0]?.signal) || specs[0];
      for (const t of tasks) t.worst = distress(t);
      drawHead();
      grid.set(tasks);
      victim.set(hurt);
      swap(worst, neighbours(hurt, i => i.antagonists > 0 || i.rounds?.length ? main(i)?.job : ''));
      swap(hurts, neighbours(hurting, i => i.victim.job, job));
      await drawPlots(signal);
    },
    event: (name, e) => name === 'incident' && e.victim_job === job ? undefined : false,
  };
}
