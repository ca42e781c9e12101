// The frame: which page is shown, its data's age, the token, the clock's zone, the keys.

import * as api from './api.js';
import {clock, h, isUTC, link, now, say, setNow, setUTC, span, swap, tick, visible, zoneName} from './dom.js';

// Pages are loaded when they are first shown. Each exports page(name, query, context), which
// returns {title, element, load(signal)} and optionally event(name, data), which updates the
// page at once and returns false if the event is not about it, and every, how often to load.
const pages = {
  now: () => import('./now.js'), incidents: () => import('./incidents.js'), incident: () => import('./incident.js'),
  job: () => import('./job.js'), machine: () => import('./machine.js'), cluster: () => import('./cluster.js'), sql: () => import('./sql.js'),
};

const $ = id => document.getElementById(id);
const main = $('main');
const every = 15_000; // a page that is open reads its data again this often
const soon = 2500; // after an event: by then the server has stored what it tells of
const late = 20_000; // how long a page may wait for its data before it says that what it shows is old
let current = {}; // page, abort controller, timers
let caller; // as the server sees it
let stream; // of events
let fetched = 0, failed; // when data last came, and why none does

const context = {
  get caller() { return caller; },
  reload: () => load(0),
  replace(query) { // another address of the same page, without loading it again
    const {page, name} = parse();
    history.replaceState(null, '', link(page, name, query));
  },
};

function parse() {
  const [path, query] = location.hash.replace(/^#\/?/, '').split('?');
  const [page, ...rest] = path.split('/');
  let name = rest.join('/');
  try {
    name = decodeURIComponent(name);
  } catch { /* typed by hand: taken as it is */ }
  return {page: page || 'now', name, query: Object.fromEntries(new URLSearchParams(query))};
}

async function show() {
  leave();
  const {page, name, query} = parse();
  const own = current = {abort: new AbortController()};
  for (const a of document.querySelectorAll('nav a')) {
    const is = a.getAttribute('href') === '#/' + page || page === 'incident' && a.hash === '#/incidents';
    if (is) a.setAttribute('aria-current', 'page');
    else a.removeAttribute('aria-current');
  }
  swap(main, h('p.loading', null, 'Loading …'));
  if (!Object.hasOwn(pages, page)) {
    document.title = 'quell';
    swap(main, h('h1', null, 'No such page'), h('p', null, h('a', {href: '#/now'}, 'What is going on now')));
    return;
  }
  try {
    const module = await pages[page]();
    if (own !== current) return;
    own.page = module.page(name, query, context);
    document.title = `${own.page.title} · quell`;
    await load(0);
    if (own === current) scrollTo(0, 0);
  } catch (e) {
    if (own === current && e instanceof TypeError && await older()) location.reload();
    else if (own === current) swap(main, problem(e));
  }
}

/** older reports whether the server has other files by now than those of this tab: it was upgraded. */
async function older() {
  try {
    const answer = await fetch('/', {cache: 'no-store', credentials: 'omit'});
    return answer.ok && !(await answer.text()).includes(new URL('.', import.meta.url).pathname);
  } catch {
    return false;
  }
}

function leave() {
  current.abort?.abort();
  clearTimeout(current.timer);
  current.page?.leave?.();
}

/** load reads the page's data and shows it: at once, and then again and again. */
async function load(wait) {
  const own = current;
  if (!own.page) return;
  if (wait > 0) {
    const due = Date.now() + wait;
    if (own.timer && own.due <= due) return; // events that do not cease must not put it off
    clearTimeout(own.timer);
    own.due = due;
    own.timer = setTimeout(() => load(0), wait);
    return;
  }
  clearTimeout(own.timer);
  own.timer = undefined;
  if (own.loading) {
    own.again = true;
    return;
  }
  own.loading = true;
  own.loaded = Date.now();
  try {
    if (!caller) await identify(); // the server did not answer when the page was opened
    await own.page.load(own.abort.signal);
    if (own !== current) return;
    fetched = Date.now();
    failed = undefined;
    if (!own.page.element.isConnected) swap(main, own.page.element);
    performance.mark('quell-data');
    document.title = `${own.page.title} · quell`; // an incident has one when it is read
    if (!own.shown) say(`${own.page.title} is shown`);
    own.shown = true;
  } catch (e) {
    if (own !== current || e.name === 'AbortError') return;
    failed = e;
    if (!own.shown) swap(main, problem(e));
  } finally {
    own.loading = false;
    state();
  }
  const next = document.hidden ? 0 : own.page.every ?? every;
  if (own.again) {
    own.again = false;
    load(soon);
  } else if (next) load(next);
}

/** problem says what is wrong and what to do. */
function problem(e) {
  return h('div.problem', {role: 'alert'}, h('h1', null, e.status === 403 ? 'Not allowed' : e.status === 401 ? 'A token is needed' : 'No data'),
    h('p', null, visible(e.message)), e.remedy && h('p.note', null, visible(e.remedy)),
    e.status === 401 && h('button', {type: 'button', onclick: () => askToken()}, 'Enter a token'),
    e.status !== 401 && h('button', {type: 'button', onclick: () => show()}, 'Try again'));
}

/** state shows whether the data is live. */
let connection = 'lost', since = Date.now(); // of the stream of events
function state() {
  const live = $('live');
  const why = failed?.message || current.loading && Date.now() - current.loaded > late && 'The server has not answered yet.';
  const text = failed?.status === 401 ? 'no token' : why ? 'no answer' : connection === 'live' ? 'live' : 'reconnecting';
  if (live.textContent !== text) live.textContent = text;
  live.className = 'live ' + (why ? 'bad' : connection === 'live' ? 'good' : 'warn');
  const old = fetched && Date.now() - fetched;
  const stale = $('stale');
  let warn = '', age = '';
  if (why && current.shown) {
    warn = `Data of ${clock(fetched + now() - Date.now())} ${zoneName()}. ${visible(why)} Trying again.`;
    age = ` It is ${span(old)} old.`;
  } else if (connection !== 'live' && current.shown && Date.now() - since > 10_000) {
    const again = current.page.every ?? every;
    warn = `No live updates: the stream of events is interrupted.${again ? ` The page is read again every ${again / 1000} s.` : ''}`;
  }
  stale.hidden = !warn;
  if (stale.dataset.said !== warn) { // an alert is read out whenever it changes: not each second
    stale.dataset.said = warn;
    swap(stale, warn, h('span.age', {'aria-hidden': 'true'}));
  }
  const shown = stale.querySelector('.age');
  if (shown.textContent !== age) shown.textContent = age;
}

function onEvent(name, data) {
  const own = current;
  if (!own.page || !own.shown) return;
  if (own.page.event?.(name, data) === false) return; // not about this page
  // After a quiet time the page is read soon, under many events as rarely as without any.
  load(Math.max(soon, (own.page.every || every) - (Date.now() - own.loaded)));
}

// The caller, as the server sees it.

async function identify() {
  try {
    caller = await api.get('/v1/caller');
    setNow(caller.now);
    document.body.classList.toggle('local', Boolean(caller.machine)); // one machine: no cluster, no SQL
    $('who').textContent = caller.name ? `${visible(caller.name)} · ${caller.scope}` : 'no token, read only';
    $('who').title = caller.name ? 'This tab’s token' : 'Without a token this server may be read and not operated';
  } catch (e) {
    caller = undefined;
    $('who').textContent = 'Sign in';
  }
}

function dialog(title, ...children) {
  const d = h('dialog', {'aria-labelledby': 'dialog-title', onclose: () => d.remove()}, h('h2', {id: 'dialog-title'}, title), children);
  document.body.append(d);
  d.showModal();
  return d;
}

let asking, declined; // the refused token that the user does not want to replace now
function askToken(why) {
  if (asking?.open || why && declined === api.token()) return;
  const decline = () => { declined = api.token(); };
  const field = h('input', {type: 'password', id: 'token', autocomplete: 'off', spellcheck: 'false', required: true});
  const form = h('form', {onsubmit: async e => {
    e.preventDefault();
    asking.close();
    api.setToken(field.value.trim());
    await begin();
  }},
  why && h('p', {role: 'alert'}, visible(why.message)),
  h('label', {for: 'token'}, 'Token'), field,
  h('p.note', null, 'It is kept in this tab until you close it. An operator of quell-server makes one: ', h('code', null, 'quell-server token NAME viewer'), '; ', h('code', null, 'quell ui'), ' prints its own.'),
  h('div.buttons', null, api.token() && h('button', {type: 'button', onclick: async () => {
    api.setToken('');
    asking.close();
    await begin();
  }}, 'Forget the token'), h('button', {type: 'button', onclick: () => { decline(); asking.close(); }}, 'Cancel'), h('button.primary', {type: 'submit'}, 'Use it')));
  asking = dialog('Token', form);
  asking.addEventListener('cancel', decline); // by Escape
}

addEventListener('quell-token', e => askToken(e.detail));

// Keys and settings.

const themes = ['system', 'light', 'dark'];
function theme(name) {
  if (name === 'system') document.documentElement.removeAttribute('data-theme');
  else document.documentElement.dataset.theme = name;
  $('theme').textContent = name === 'system' ? 'Auto' : name === 'light' ? 'Light' : 'Dark';
  dispatchEvent(new Event('quell-look'));
}

const themeNow = () => themes.includes(localStorage.getItem('quell-theme')) ? localStorage.getItem('quell-theme') : 'system';
const keysOn = () => localStorage.getItem('quell-keys') !== 'off';

function help() {
  const keys = [['g n', 'now'], ['g i', 'incidents'], ['g c', 'cluster'], ['g s', 'SQL'], ['/', 'filter'], ['r', 'read again'], ['?', 'this help']];
  const box = h('input', {type: 'checkbox', id: 'keys', onchange: () => localStorage.setItem('quell-keys', box.checked ? 'on' : 'off')});
  box.checked = keysOn();
  const d = dialog('Help',
    h('p', null, 'A ', h('b', null, 'victim'), ' is a task whose work costs more than normal. A ', h('b', null, 'suspect'), ' is a task that ran meanwhile. An ', h('b', null, 'incident'),
      ' is a victim with what was found, done and achieved. ', h('b', null, 'Proven'), ': the kernel’s accounts show it, or limiting the suspect helped. ', h('b', null, 'Likely'),
      ': a trial would prove it. ', h('b', null, 'Possible'), ': this suspect or another one.'),
    h('table.keys', null, h('tbody', null, keys.map(([k, what]) => h('tr', null, h('th', {scope: 'row'}, h('kbd', null, k)), h('td', null, what))))),
    h('p', null, box, ' ', h('label', {for: 'keys'}, 'Keyboard shortcuts')),
    h('p.note', null, `All times are in ${zoneName()}, by the server’s clock. ${caller?.machine ? 'quell-agent' : 'quell-server'} ${caller ? visible(caller.version) : ''}`),
    h('div.buttons', null, h('button.primary', {type: 'button', onclick: () => d.close()}, 'Close')));
}

let went = 0;
addEventListener('keydown', e => {
  if (!keysOn() || e.ctrlKey || e.metaKey || e.altKey || e.target.closest?.('input, textarea, select, dialog')) return;
  if (Date.now() - went < 1500) {
    const to = {n: 'now', i: 'incidents', c: 'cluster', s: 'sql'}[e.key];
    went = 0;
    if (to) location.hash = '#/' + to;
  } else if (e.key === 'g') went = Date.now();
  else if (e.key === '?') help();
  else if (e.key === 'r') load(0);
  else if (e.key === '/' && main.querySelector('input[type=search]')) {
    e.preventDefault();
    main.querySelector('input[type=search]').focus();
  }
});

function zone() {
  $('zone').textContent = `${clock(now())} ${zoneName()}`;
}

$('help').addEventListener('click', help);
$('who').addEventListener('click', () => askToken());
$('zone').addEventListener('click', () => { setUTC(!isUTC()); zone(); show(); });
$('theme').addEventListener('click', () => {
  const next = themes[(themes.indexOf(themeNow()) + 1) % themes.length];
  localStorage.setItem('quell-theme', next);
  theme(next);
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => dispatchEvent(new Event('quell-look')));
document.querySelector('.skip').addEventListener('click', e => { e.preventDefault(); main.focus(); });
// A hidden tab asks for nothing: a browser has only six connections to a server for all tabs.
document.addEventListener('visibilitychange', () => {
  if (document.hidden) stream?.stop();
  else {
    follow();
    if (current.page) load(0);
  }
});
addEventListener('pagehide', () => { stream?.stop(); leave(); });
addEventListener('pageshow', e => { if (e.persisted) begin(); });
addEventListener('hashchange', show);
setInterval(() => { zone(); tick(); state(); }, 1000);

function follow() {
  stream?.stop();
  stream = api.events(onEvent, s => {
    if (s !== connection) since = Date.now();
    connection = s;
    state();
  });
}

async function begin() {
  follow();
  await identify();
  zone();
  await show();
}

theme(themeNow());
zone();
begin();
