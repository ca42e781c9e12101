// Elements, numbers and times. All text, whatever its source, becomes text nodes or
// attributes: no HTML is ever made from a string.

const svgNS = 'http://www.w3.org/2000/svg';

function fill(e, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith('on')) e.addEventListener(key.slice(2), value);
    else if (key === 'css') for (const [name, v] of Object.entries(value)) e.style.setProperty(name, v);
    else e.setAttribute(key, value === true ? '' : String(value));
  }
  add(e, children);
  return e;
}

function add(e, children) {
  for (const c of children.flat(Infinity)) {
    if (c === undefined || c === null || c === false || c === '') continue;
    e.append(c instanceof Node ? c : document.createTextNode(String(c)));
  }
}

/** h makes an element: h('a.name', {href: '#/x'}, 'text', child). */
export function h(tag, attributes, ...children) {
  const [name, ...classes] = tag.split('.');
  const e = document.createElement(name);
  if (classes.length) e.className = classes.join(' ');
  return fill(e, attributes, children);
}

/** svg makes an element of a drawing. */
export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(svgNS, tag), attributes, children);
}

/** swap replaces what an element contains; the focus stays on the same link or button, of several that
 * lead to one page on that in the same place. */
export function swap(e, ...children) {
  const had = e.contains(document.activeElement) && document.activeElement !== e ? document.activeElement : null;
  const keyOf = x => x.getAttribute('href') || x.dataset.key;
  const same = key => [...e.querySelectorAll('a[href], [data-key]')].filter(x => keyOf(x) === key);
  const key = had && keyOf(had), place = key && same(key).indexOf(had);
  e.replaceChildren();
  add(e, children);
  if (!key) return;
  const now = same(key);
  (now[place] || now.at(-1))?.focus({preventScroll: true});
}

/** visible escapes characters that cannot be seen or that reorder text. */
export function visible(text) {
  return String(text).replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cn}\p{Co}\p{Cs}]/gu, c => '\\u{' + c.codePointAt(0).toString(16) + '}');
}

/** number writes three significant digits; small numbers get a prefix. */
export function number(v, small = 0.001) {
  if (v === null || v === undefined || !Number.isFinite(v)) return '–';
  let unit = '';
  const size = Math.abs(v);
  if (size !== 0 && size < small) {
    for (const [factor, name] of [[1e3, 'm'], [1e6, 'µ'], [1e9, 'n']]) {
      unit = name;
      if (size * factor >= 0.9995 || name === 'n') {
        v *= factor;
        break;
      }
    }
  }
  const a = Math.abs(v);
  const digits = a >= 99.95 ? 0 : a >= 9.995 ? 1 : a < 0.0995 && a !== 0 ? 3 : 2;
  return (a >= 1e5 ? Math.round(v).toLocaleString('en-GB') : v.toFixed(digits)) + unit;
}

export const count = n => n.toLocaleString('en-GB');
export const plural = (n, what, many) => `${count(n)} ${n === 1 ? what : many || what + 's'}`;
export const percent = v => `${Math.round(v * 100)} %`;

/** span writes a duration in milliseconds in at most two units. */
export function span(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 120) return `${s} s`;
  const m = Math.round(s / 60);
  if (m < 120) return `${m} min`;
  const hours = Math.floor(m / 60);
  if (hours < 48) return m % 60 ? `${hours} h ${m % 60} min` : `${hours} h`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

// One clock for everything on the pages: the server's, in one zone, which is always shown.
let skew = 0;
let utc = localStorage.getItem('quell-zone') !== 'local';

export const setNow = server => { skew = server - Date.now(); };
export const now = () => Date.now() + skew;
export const isUTC = () => utc;
export function setUTC(v) {
  utc = v;
  localStorage.setItem('quell-zone', v ? 'utc' : 'local');
}

/** zoneName is the zone of a time: summer time has a name of its own. */
export const zoneName = (ms = Date.now()) => utc ? 'UTC'
  : new Intl.DateTimeFormat('en-GB', {timeZoneName: 'short'}).formatToParts(new Date(exists(ms) ? ms : Date.now())).find(p => p.type === 'timeZoneName').value;

const two = n => String(n).padStart(2, '0');
function parts(ms) {
  const t = new Date(ms);
  return utc ? [t.getUTCFullYear(), t.getUTCMonth() + 1, t.getUTCDate(), t.getUTCHours(), t.getUTCMinutes(), t.getUTCSeconds()]
    : [t.getFullYear(), t.getMonth() + 1, t.getDate(), t.getHours(), t.getMinutes(), t.getSeconds()];
}

/** exists reports whether a calendar has a time: what a machine reports may be any number. */
const exists = ms => Math.abs(ms) <= 8.64e15;

export function clock(ms) {
  if (!exists(ms)) return '–';
  const [, , , hour, minute, second] = parts(ms);
  return `${two(hour)}:${two(minute)}:${two(second)}`;
}

/** day is the day of a time, without its year. */
export function day(ms) {
  const [, month, d] = parts(ms);
  return `${two(month)}-${two(d)}`;
}

/** when is a time of the day, with the date if that is not today's. */
export function when(ms) {
  if (!exists(ms)) return '–';
  const [y, mo, d, hour, minute, second] = parts(ms), [ty, tmo, td] = parts(now());
  if (y === ty && mo === tmo && d === td) return `${two(hour)}:${two(minute)}:${two(second)}`;
  return `${y === ty ? '' : y + '-'}${two(mo)}-${two(d)} ${two(hour)}:${two(minute)}`;
}

/** time is an element with a time, machine-readable and complete in its title. */
export function time(ms) {
  if (!exists(ms)) return h('span', null, '–');
  const [y, mo, d, hour, minute, second] = parts(ms);
  return h('time', {datetime: new Date(ms).toISOString(), title: `${y}-${two(mo)}-${two(d)} ${two(hour)}:${two(minute)}:${two(second)} ${zoneName(ms)}`}, when(ms));
}

/** ago is an element that counts up by itself. */
export const ago = ms => h('span.ago', {'data-at': ms}, `${span(now() - ms)} ago`);

export function tick() {
  for (const e of document.querySelectorAll('.ago')) {
    const text = `${span(now() - Number(e.dataset.at))} ago`;
    if (e.textContent !== text) e.textContent = text;
  }
}

/** link is an address within the pages: link('job', 'web') or link('incidents', null, {job: 'web'}). */
export function link(page, name, query) {
  let to = '#/' + page;
  if (name !== undefined && name !== null) to += '/' + encodeURIComponent(name);
  const q = new URLSearchParams(Object.entries(query || {}).filter(([, v]) => v !== '' && v !== undefined && v !== null));
  return String(q) ? `${to}?${q}` : to;
}

/** say tells a screen reader. */
export function say(text) {
  document.getElementById('said').textContent = text;
}
