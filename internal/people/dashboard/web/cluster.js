// The cluster: how often tasks are held up, what came of caps, what it cost, and which jobs
// should not share a machine.

import * as api from './api.js';
import {count, h, now, number, percent, swap, time} from './dom.js';
import {Grid} from './grid.js';
import {choice, jobLink, section, stat} from './parts.js';
import {chart} from './plots.js';
import {kindOf, outcomeOf} from './words.js';

/** lost is what victims' work cost beyond normal while neighbours held them up: the CPU time
 * that was needed in addition, and for runq the time that was waited. A sample counts for the
 * time since the one before it, at most two minutes. */
const lost = since => `WITH v AS (
  SELECT i.signal, i.spec_mean, s.cpu, s.cost, least(epoch_ms(s.ts) - lag(epoch_ms(s.ts)) OVER (PARTITION BY i.machine, i.id ORDER BY s.ts), 120000) / 1000 AS dt
  FROM incidents i JOIN samples s ON s.machine = i.machine AND s.task = i.victim_task AND s.signal = i.signal AND s.variant = i.variant
  WHERE i.kind = 'neighbour' AND i.updated >= ${since} AND s.ts BETWEEN i.began AND coalesce(i.closed, i.updated) AND s.cost > 0)
SELECT signal = 'runq' AS waited, sum(CASE WHEN signal = 'runq' THEN cpu * dt * greatest(0, cost - spec_mean) ELSE cpu * dt * greatest(0, 1 - spec_mean / cost) END) AS seconds
FROM v WHERE signal IN ('cpi', 'cpt', 'cps', 'runq') GROUP BY ALL`;

/** saved is what the same victims did not lose under caps that helped: their cost before
 * the last cap against that under it, over the samples while it was in force. */
const saved = since => `WITH r AS (
  SELECT i.machine, i.id, i.victim_task, i.signal, i.variant, CAST(json_extract(i.doc, '$.rounds[#-1].from') AS BIGINT) AS a,
    CAST(coalesce(nullif(json_extract_string(i.doc, '$.rounds[#-1].ended'), ''), json_extract_string(i.doc, '$.updated')) AS BIGINT) AS b,
    CAST(json_extract_string(i.doc, '$.rounds[#-1].cost_before') AS DOUBLE) AS before
  FROM incidents i WHERE i.outcome = 'true-positive' AND i.updated >= ${since}),
v AS (SELECT r.signal, r.before, s.cpu, s.cost, least(epoch_ms(s.ts) - lag(epoch_ms(s.ts)) OVER (PARTITION BY r.machine, r.id ORDER BY s.ts), 120000) / 1000 AS dt
  FROM r JOIN samples s ON s.machine = r.machine AND s.task = r.victim_task AND s.signal = r.signal AND s.variant = r.variant
  WHERE epoch_ms(s.ts) > r.a AND epoch_ms(s.ts) <= r.b AND s.cost > 0)
SELECT signal = 'runq' AS waited, sum(CASE WHEN signal = 'runq' THEN cpu * dt * greatest(0, before - cost) ELSE cpu * dt * greatest(0, before / cost - 1) END) AS seconds
FROM v WHERE signal IN ('cpi', 'cpt', 'cps', 'runq') GROUP BY ALL`;

const hours = s => !s ? 'none' : s >= 3600 ? `${number(s / 3600)} h` : s >= 60 ? `${number(s / 60)} min` : `${number(s)} s`;
const inks = {neighbour: '--red', nobody: '--c2', indeterminate: '--c3', 'own-quota': '--c4', steal: '--c5', 'self-wait': '--c6', 'phase-change': '--c1'};

export function page(_, query, context) {
  const q = {since: '168h', ...query};
  let tooMany; // the time whose samples a query cannot read
  const stats = h('div.stats'), rates = h('div.charts'), results = h('div.panel');
  const pairs = new Grid({label: 'Pairs', sort: 'confidence', empty: 'No pair of jobs in this time: no suspect was named.', columns: [
    {key: 'victim', label: 'Victim', sort: p => p.victim_job, cell: p => jobLink(p.victim_job)},
    {key: 'antagonist', label: 'Antagonist', sort: p => p.antagonist_job, cell: p => jobLink(p.antagonist_job)},
    {key: 'incidents', label: 'Incidents', num: true, sort: p => p.incidents, cell: p => count(p.incidents)},
    {key: 'machines', label: 'Machines', num: true, drop: 'medium', sort: p => p.machines, cell: p => count(p.machines)},
    {key: 'strength', label: 'Strength', num: true, drop: 'medium', sort: p => p.strength, cell: p => number(p.strength), title: 'Median of the victim’s cost ÷ its threshold'},
    {key: 'helped', label: 'Caps that helped', num: true, sort: p => p.helped, cell: p => p.caps ? `${p.helped} of ${p.caps}` : 'none tried'},
    {key: 'confidence', label: 'Confidence', num: true, sort: p => p.confidence || p.incidents / 1e6, cell: p => p.caps ? `≥ ${percent(p.confidence)}` : '–', title: 'Lower end of the 95 % interval of the share of caps that help'},
    {key: 'newest', label: 'Last', num: true, drop: 'wide', sort: p => p.newest, cell: p => time(p.newest)},
  ]});
  const element = h('div', null, h('div.bar', null, h('h1', null, 'Cluster'), choice('Over', [['24h', 'the last day'], ['168h', 'the last week'], ['720h', 'the last 30 days']], q.since, v => {
    q.since = v;
    context.replace({since: v === '168h' ? '' : v});
    context.reload();
  })), stats, rates, section('Jobs that should not share a machine', h('p.note', null, h('a', {href: '#/sql?canned=interference-pairs'}, 'The same by SQL'), '; ', h('code', null, 'quell advise-scheduler --yaml'), ' writes it as Kubernetes anti-affinity.'), pairs.element),
  section('Outcomes of caps and trials', results));

  return {
    title: 'Cluster', element, every: 60_000,
    async load(signal) {
      const from = `make_timestamptz(${(now() - parseInt(q.since, 10) * 3600_000) * 1000})`;
      const step = q.since === '24h' ? 3600_000 : q.since === '168h' ? 6 * 3600_000 : 24 * 3600_000;
      const ask = text => api.sql(text, q.since, signal);
      const [list, rate, caps] = await Promise.all([api.get('/v1/pairs', {since: q.since}, signal),
        ask(`SELECT CAST(floor(epoch_ms(began) / ${step}) AS BIGINT) AS t, kind, count(*) AS n FROM incidents WHERE began >= ${from} GROUP BY ALL ORDER BY 1`),
        ask(`SELECT outcome, count(*) AS n, median(relative_cost) AS relative FROM incidents WHERE capped_task <> '' AND updated >= ${from} GROUP BY ALL ORDER BY n DESC`)]);
      let cost, gain;
      if (tooMany !== q.since) {
        try {
          [cost, gain] = [await ask(lost(from)), await ask(saved(from))];
        } catch (e) {
          if (e.status !== 422) throw e;
          tooMany = q.since; // the rest is shown all the same
        }
      }
      const total = rate.reduce((sum, r) => sum + r.n, 0), neighbours = rate.filter(r => r.kind === 'neighbour').reduce((sum, r) => sum + r.n, 0);
      const seconds = (rows, waited) => rows.find(r => r.waited === waited)?.seconds || 0;
      swap(stats, stat(count(total), 'incidents'), stat(count(neighbours), 'by neighbours', neighbours ? 'bad' : ''),
        gain ? [stat(hours(seconds(cost, false)), 'of CPU time lost by victims'), stat(hours(seconds(cost, true)), 'waited for CPUs beyond normal'),
        stat(hours(seconds(gain, false)), 'of CPU time saved by caps', seconds(gain, false) ? 'good' : ''), stat(hours(seconds(gain, true)), 'of waiting saved by caps', seconds(gain, true) ? 'good' : '')] : stat('–', 'lost and saved: too many samples for a query; choose a shorter time'));
      drawRates(rate, step);
      swap(results, caps.length === 0 ? h('p.state', null, 'Nothing was capped in this time.') : h('table', null, h('thead', null, h('tr', null, h('th', {scope: 'col'}, 'Outcome'), h('th.num', {scope: 'col'}, 'Incidents'), h('th.num', {scope: 'col', title: 'Median of the victim’s cost under the cap ÷ before it'}, 'Relative cost'), h('th', {scope: 'col'}, 'Means'))),
        h('tbody', null, caps.map(r => h('tr', null, h('td', null, outcomeOf(r.outcome)[0] || 'running'), h('td.num', null, count(r.n)), h('td.num', null, number(r.relative)), h('td.why', null, outcomeOf(r.outcome)[1]))))));
      pairs.set(list);
    },
    event: name => name === 'incident' ? undefined : false,
  };

  function drawRates(rows, step) {
    if (!rows.length) {
      swap(rates, h('p.state', null, 'No incident in this time.'));
      return;
    }
    const last = Math.floor(now() / step), first = Math.min(rows[0].t, last - Math.floor(parseInt(q.since, 10) * 3600_000 / step));
    const x = Array.from({length: last - first + 1}, (_, i) => (first + i) * step), names = [...new Set(rows.map(r => r.kind))].sort((a, b) => (b === 'neighbour') - (a === 'neighbour'));
    const values = new Map(names.map(n => [n, x.map(() => 0)]));
    for (const r of rows) if (r.t >= first && r.t <= last) values.get(r.kind)[r.t - first] = r.n;
    swap(rates, chart({title: `Incidents every ${step / 3600_000 === 1 ? 'hour' : step / 3600_000 + ' hours'}, by cause`, unit: 'incidents', x, height: 180, least: 1, write: count, about: 'Incidents by the time they began.',
      series: names.map(n => ({name: kindOf(n), values: values.get(n), ink: inks[n] || '--muted'}))}));
  }
}
