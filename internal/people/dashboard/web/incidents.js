// All incidents: filtered, sorted, and addressable.

import * as api from './api.js';
import {h, say} from './dom.js';
import {counted} from './grid.js';
import {choice, filter, fromEvent, has, hasMore, incidentGrid} from './parts.js';
import {kinds, main, short} from './words.js';

export function page(_, query, context) {
  const q = {since: '24h', state: 'all', kind: '', level: '', find: '', sort: 'found', order: '', job: '', machine: '', ...query};
  let list = [];
  const shown = h('span.sub', {role: 'status'});
  const grid = incidentGrid('Incidents', {sort: q.sort});
  grid.descending = q.order !== 'up';
  grid.onsort = (key, down) => {
    Object.assign(q, {sort: key, order: down ? '' : 'up'});
    keep();
  };
  const set = (key, reload) => value => {
    q[key] = value;
    keep();
    if (reload) context.reload();
    else draw();
  };
  const element = h('div', null, h('h1', null, 'Incidents'),
    h('div.bar', null,
      filter('Filter', q.find, set('find')),
      choice('Since', [['1h', 'the last hour'], ['24h', 'the last day'], ['168h', 'the last week'], ['720h', 'the last 30 days']], q.since, set('since', true)),
      choice('State', [['all', 'all'], ['open', 'open'], ['acted', 'capped or tried']], q.state, set('state')),
      choice('Cause', [['', 'all'], ...Object.entries(kinds)], q.kind, set('kind')),
      choice('Confidence', [['', 'all'], ['proven', 'proven'], ['likely', 'likely or more'], ['possible', 'possible or more']], q.level, set('level')),
      shown),
    grid.element);

  function keep() {
    const standard = {since: '24h', state: 'all', sort: 'found'};
    context.replace(Object.fromEntries(Object.entries(q).filter(([k, v]) => v && v !== standard[k])));
  }

  function draw() {
    const order = ['none', 'possible', 'likely', 'proven'];
    const rows = list.filter(i => (q.state !== 'open' || !i.closed) && (q.state !== 'acted' || i.rounds?.length) && (!q.kind || i.kind === q.kind) &&
      (!q.level || order.indexOf(main(i)?.level) >= order.indexOf(q.level)) &&
      (!q.find || has(q.find, i.id, i.machine, i.victim.task, i.victim.job, main(i)?.task, main(i)?.job)));
    grid.set(rows, list.length ? 'No incident matches the filters.' : 'No incident in this time.');
    shown.textContent = counted(rows.length, list.length, 'incidents') + (hasMore(list) ? ', the newest; the server lists no more' : '');
  }

  return {
    title: 'Incidents', element,
    async load(signal) {
      list = await api.get('/v1/incidents', {since: q.since, job: q.job, machine: q.machine, brief: 'true'}, signal);
      draw();
    },
    event(name, e) {
      if (name !== 'incident' || q.job && e.victim_job !== q.job || q.machine && e.machine !== q.machine) return false;
      const known = list.some(i => i.id === e.id);
      const inc = fromEvent(list, e);
      draw();
      if (!known) say(`New incident: ${short(inc.victim)} on ${e.machine}`);
    },
  };
}
