// SQL over everything that is stored, with canned queries.

import * as api from './api.js';
import {clock, count, h, now, number, plural, say, swap, visible} from './dom.js';
import {Grid} from './grid.js';
import {choice, field} from './parts.js';

const examples = {
  'tables and columns': 'SELECT table_name, column_name, data_type\nFROM information_schema.columns ORDER BY ALL',
  'a victim and its neighbours, by the minute': "SELECT time_bucket(INTERVAL 1 MINUTE, ts) AS minute, task, avg(cost) AS cost, avg(cpu) AS cpu\nFROM samples WHERE signal = 'runq' GROUP BY ALL ORDER BY ALL",
  'how far from normal each job runs': 'SELECT s.job, s.signal, quantile_cont(s.cost / p.cost_mean, 0.5) AS median, quantile_cont(s.cost / p.cost_mean, 0.99) AS p99\nFROM samples s JOIN specs p USING (job, platform, signal, variant)\nGROUP BY ALL ORDER BY p99 DESC',
  'what operators did': 'SELECT "at", who, "from", what, target, why, outcome FROM audit ORDER BY "at" DESC LIMIT 100',
};

export function page(_, query, context) {
  let canned = [], answer;
  const keep = () => context.replace({sql: text.value, since: since === '24h' ? '' : since}); // the page is made again for another zone or token
  const text = h('textarea', {rows: 7, id: 'sql', spellcheck: 'false', autocapitalize: 'off', onchange: keep, onkeydown: e => {
    if (e.key === 'Enter' && (e.ctrlKey || e.metaKey)) run();
  }});
  text.value = query.sql || examples['how far from normal each job runs'];
  const list = h('div'), params = h('div.bar'), out = h('div');
  let since = query.since || '24h', running;
  const button = h('button.primary', {type: 'button', onclick: () => run()}, 'Run');
  const element = h('div', null, h('h1', null, 'SQL'), list, params,
    h('label.field.wide', {for: 'sql'}, h('span', null, 'One SELECT, in DuckDB’s dialect'), text),
    h('div.bar', null, button, h('span.sub', null, 'Ctrl + Enter'), choice('Files of', [['1h', 'the last hour'], ['24h', 'the last day'], ['168h', 'the last week'], ['all', 'all times']], since, v => { since = v; })),
    out);

  function choose(name) {
    const c = canned.find(c => c.name === name);
    swap(params);
    if (c) {
      text.value = c.sql;
      const boxes = (c.params || []).map(p => [p, h('input', {name: p, autocomplete: 'off', oninput: () => {
        const values = new Map(boxes.map(([key, box]) => [key, api.quote(box.value)]));
        text.value = c.sql.replace(/\$(\w+)/g, (name, key) => values.get(key) ?? name); // a text as replacement has patterns of its own
      }})]);
      swap(params, h('p.note', null, visible(c.help)), boxes.map(([p, box]) => field(p, box)));
    } else if (examples[name]) text.value = examples[name];
  }

  async function run() {
    running?.abort();
    running = new AbortController();
    const own = running, begun = performance.now();
    button.disabled = true;
    swap(out, h('p.loading', null, 'Running …'));
    keep();
    try {
      const from = since === 'all' ? 0 : (now() - parseInt(since, 10) * 3600_000) * 1000;
      const sql = text.value.replaceAll('$since', `make_timestamptz(${from})`); // of a canned query; the time may be chosen after it
      answer = await api.post('/v1/query', since === 'all' ? {sql} : {sql, since}, own.signal);
      show(performance.now() - begun);
    } catch (e) {
      if (e.name !== 'AbortError') swap(out, h('div.problem', {role: 'alert'}, h('p', null, visible(e.message)), e.remedy && h('p.note', null, visible(e.remedy))));
    } finally {
      button.disabled = false;
    }
  }

  function show(ms) {
    const numeric = answer.columns.map(c => /^(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|DOUBLE|FLOAT|DECIMAL)/.test(c.type));
    const grid = new Grid({label: 'Result', sort: '', empty: 'No row.', columns: answer.columns.map((c, i) => ({key: String(i), label: visible(c.name), num: numeric[i], title: c.type, sort: r => r[i] ?? undefined, cell: r => value(r[i], numeric[i])}))});
    grid.set(answer.rows);
    const size = `${plural(answer.rows.length, 'row')} in ${number(ms / 1000)} s${answer.truncated ? '; there are more, which were cut off' : ''}`;
    say(size); // the rows themselves are not read out
    swap(out, h('div.bar', null, h('span.sub', null, size),
      h('button', {type: 'button', onclick: save}, 'Save as CSV')), grid.element);
  }

  function save() {
    // A cell that begins as a formula gets an apostrophe, as in quell's traces.
    const cell = v => {
      const t = v === null ? '' : typeof v === 'object' ? JSON.stringify(v) : String(v);
      const safe = typeof v === 'string' && /^[=+\-@\t']/.test(t) ? `'${t}` : t;
      return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
    };
    const lines = [answer.columns.map(c => cell(c.name)), ...answer.rows.map(r => r.map(cell))].map(l => l.join(','));
    const a = h('a', {href: URL.createObjectURL(new Blob([lines.join('\n') + '\n'], {type: 'text/csv'})), download: `quell-${clock(Date.now()).replaceAll(':', '')}.csv`});
    a.click();
    setTimeout(() => URL.revokeObjectURL(a.href), 1000);
  }

  return {
    title: 'SQL', element, every: 0,
    leave: () => running?.abort(),
    async load(signal) {
      if (canned.length) return;
      canned = await api.get('/v1/queries', {}, signal);
      swap(list, choice('Begin with', [['', 'a query of your own'], ...Object.keys(examples).map(n => [n, n]), ...canned.map(c => [c.name, `${c.name}: ${c.help}`])], query.canned || '', choose));
      if (query.canned) choose(query.canned);
    },
    event: () => false,
  };
}

function value(v, numeric) {
  if (v === null) return h('span.sub', null, 'null');
  if (numeric && typeof v === 'number') return Number.isInteger(v) ? count(v) : String(Number(v.toPrecision(6)));
  return visible(typeof v === 'object' ? JSON.stringify(v) : v);
}
