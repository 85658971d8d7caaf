// Requests to the coordinator. All errors are of class Refused, with the message that the coordinator gave.
export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

let csrf = '';
export const setCsrf = (token) => { csrf = token; };

export async function call(method, path, body) {
  let reply;
  try {
    reply = await fetch('/api/v1/' + path, {
      method,
      headers: method === 'GET' ? {} : {'Content-Type': 'application/json', 'X-Muster-CSRF': csrf},
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Refused(0, 'UNAVAILABLE', 'the coordinator does not respond; retrying');
  }
  const text = await reply.text();
  let json = {};
  try { json = JSON.parse(text); } catch { /* a proxy's page: the status says enough */ }
  if (!reply.ok) throw new Refused(reply.status, json.error?.code ?? '', json.error?.message ?? `HTTP ${reply.status}`);
  return json;
}
export const get = (path) => call('GET', path);

// All jobs, page by page; the first page is short, so that there is something to see. `seen` gets all so far.
export async function allJobs(all, seen = () => {}) {
  const jobs = [];
  let page = '';
  do {
    const limit = page ? 1000 : 100;
    const reply = await get(`jobs?view=summary&all=${all ? 1 : 0}&limit=${limit}&page=${encodeURIComponent(page)}`);
    jobs.push(...reply.jobs ?? []);
    page = reply.next_page;
    if (page) seen(jobs);
  } while (page);
  return jobs;
}

// A stream of server-sent events. It connects again after its last item until it is closed. A browser opens six
// connections to a host at most, for all its tabs: a page has one stream, and a tab that is hidden has none until it is
// shown again. `handlers`: by the event's name; `open` is called each time that the stream has connected.
// `cursor`: where it begins, "" for the newest item. Returns {close, cursor}: cursor() is the id of the last item.
export function watch(path, cursor, handlers) {
  let source, last = cursor, closed = false, timer;
  const open = () => {
    const url = new URL('/api/v1/' + path, location.origin);
    if (last) url.searchParams.set('cursor', last); else url.searchParams.set('tail', '0');
    source = new EventSource(url);
    source.onopen = () => handlers.open?.();
    for (const [name, handler] of Object.entries(handlers)) {
      if (name === 'open') continue;
      source.addEventListener(name, (event) => {
        if (event.lastEventId) last = event.lastEventId;
        handler(JSON.parse(event.data));
      });
    }
    for (const name of ['end', 'refused']) source.addEventListener(name, () => close());
    source.onerror = () => {
      source?.close();
      if (!closed && !document.hidden) timer = setTimeout(open, 1000);
    };
  };
  const seen = () => {
    clearTimeout(timer);
    source?.close();
    source = undefined;
    if (!document.hidden) open();
  };
  const close = () => {
    closed = true;
    clearTimeout(timer);
    document.removeEventListener('visibilitychange', seen);
    source?.close();
  };
  document.addEventListener('visibilitychange', seen);
  seen();
  return {close, cursor: () => last};
}

// Calls `load` soon after each call of soon(): one at a time, and so seldom that it takes a tenth of the time at most,
// so that a list of 10,000 jobs that changes all the time keeps neither the browser nor the coordinator busy.
export function paced(load, least = 300) {
  let timer, busy = false, wanted = false, over = false, rest = least;
  const run = async () => {
    timer = undefined;
    busy = true;
    wanted = false;
    const begin = performance.now();
    try {
      await load();
    } finally {
      busy = false;
      rest = Math.max(least, 9 * (performance.now() - begin));
      if (wanted) soon();
    }
  };
  const soon = () => {
    wanted = true;
    if (!over && !busy && timer === undefined) timer = setTimeout(run, rest);
  };
  return {soon, stop: () => { over = true; clearTimeout(timer); }};
}
