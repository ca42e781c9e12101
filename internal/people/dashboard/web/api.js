// The server's API. The token is kept for this tab only (sessionStorage), and is sent in the
// header Authorization: it is never part of an address or a cookie.

const key = 'quell-token';

/** Refused is why a request has no answer. */
export class Refused extends Error {
  constructor(status, message, remedy) {
    super(message);
    this.status = status;
    this.remedy = remedy || '';
  }
}

export const token = () => sessionStorage.getItem(key) || '';
export function setToken(text) {
  if (text) sessionStorage.setItem(key, text);
  else sessionStorage.removeItem(key);
}

const headers = extra => token() ? {...extra, Authorization: 'Bearer ' + token()} : extra;

async function call(method, path, body, signal) {
  const used = token();
  let answer;
  try {
    answer = await fetch(path, {method, signal, cache: 'no-store', credentials: 'omit', redirect: 'error',
      headers: headers(body ? {'Content-Type': 'application/json'} : {}), body: body && JSON.stringify(body)});
  } catch (e) {
    if (e.name === 'AbortError') throw e;
    throw new Refused(0, 'The server does not answer.', 'Is quell-server running, and can this browser reach it?');
  }
  let value;
  try {
    value = await answer.json();
  } catch (e) {
    if (e.name === 'AbortError') throw e;
    throw new Refused(answer.status, 'The answer was cut off.', 'Try again.');
  }
  if (!answer.ok) {
    const e = new Refused(answer.status, value.error || `The server answers ${answer.status}.`, value.remedy);
    // That a token was refused before another was entered says nothing of that.
    if (e.status === 401 && used === token()) dispatchEvent(new CustomEvent('quell-token', {detail: e}));
    throw e;
  }
  if (Array.isArray(value)) value.more = answer.headers.get('Quell-Truncated') === 'true';
  return value;
}

const patience = 120_000; // longer than any list may take with the server's defaults

/** limited is a signal that also ends a request after that. Firefox before 124 has no such signal, and waits. */
const limited = signal => AbortSignal.any?.([signal, AbortSignal.timeout(patience)].filter(Boolean)) || signal;

/** get reads a resource; parameters without a value are left out. */
export function get(path, query, signal) {
  const q = new URLSearchParams(Object.entries(query || {}).filter(([, v]) => v !== '' && v !== undefined && v !== null));
  return call('GET', String(q) ? `${path}?${q}` : path, null, limited(signal));
}

export const post = (path, body, signal) => call('POST', path, body, signal);

/** sql runs a query and returns its rows as objects; more says that there are further rows. */
export async function sql(text, since, signal) {
  const a = await post('/v1/query', since ? {sql: text, since} : {sql: text}, signal);
  const names = a.columns.map(c => c.name);
  const rows = a.rows.map(r => Object.fromEntries(names.map((n, i) => [n, r[i]])));
  rows.more = a.truncated;
  return rows;
}

/** quote makes a text a literal of SQL. */
export const quote = text => `'${String(text).replaceAll("'", "''")}'`;

const silence = 45_000; // the server sends something every 15 s

/** events reads the stream of events until stop is called, and begins again when it ends. */
export function events(onEvent, onState) {
  let stopped = false, current, delay = 1000;
  (async () => {
    while (!stopped) {
      current = new AbortController();
      let refused = false;
      let watchdog = setTimeout(() => current.abort(), silence);
      try {
        const answer = await fetch('/v1/events', {headers: headers({}), signal: current.signal, cache: 'no-store', credentials: 'omit'});
        if (!answer.ok) throw new Refused(answer.status, 'The server refuses the stream of events.');
        onState('live');
        delay = 1000;
        const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
        let rest = '';
        for (;;) {
          const {done, value} = await reader.read();
          if (done) break;
          clearTimeout(watchdog);
          watchdog = setTimeout(() => current.abort(), silence);
          const blocks = (rest + value).split('\n\n');
          rest = blocks.pop();
          for (const block of blocks) {
            const e = {name: 'message', data: ''};
            for (const line of block.split('\n')) {
              if (line.startsWith('event: ')) e.name = line.slice(7);
              else if (line.startsWith('data: ')) e.data += line.slice(6);
            }
            if (!e.data) continue;
            try {
              onEvent(e.name, JSON.parse(e.data));
            } catch (mistake) {
              console.error(mistake); // the stream goes on
            }
          }
        }
      } catch (e) {
        refused = e.status === 401;
        stopped ||= refused; // until another token is entered
        if (e.status === 429 || e.status === 503) delay = Math.max(delay, 10_000);
      } finally {
        clearTimeout(watchdog);
      }
      if (stopped && !refused) return;
      onState('lost');
      if (stopped) return;
      await new Promise(resolve => setTimeout(resolve, delay));
      delay = Math.min(delay * 2, 30_000);
    }
  })();
  return {stop() { stopped = true; current.abort(); }};
}
