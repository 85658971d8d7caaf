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
    throw new Refused(0, 'UNAVAILABLE', 'the coordinator does not answer; trying again');
  }
  const text = await reply.text();
  let json = {};
  try { json = JSON.parse(text); } catch { /* a proxy's page: the status says enough */ }
  if (!reply.ok) throw new Refused(reply.status, json.error?.code ?? '', json.error?.message ?? `HTTP ${reply.status}`);
  return json;
}
export const get = (path) => call('GET', path);

// A stream of server-sent events that comes again after its last item until it is closed. `handlers`: by the event's name.
export function watch(path, cursor, handlers) {
  let source, last = cursor, closed = false, timer;
  const open = () => {
    const url = new URL('/api/v1/' + path, location.origin);
    if (last) url.searchParams.set('cursor', last); else url.searchParams.set('tail', '0');
    source = new EventSource(url);
    for (const [name, handler] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => {
        if (event.lastEventId) last = event.lastEventId;
        handler(JSON.parse(event.data));
      });
    }
    for (const name of ['end', 'refused']) source.addEventListener(name, () => close());
    source.onerror = () => {
      source.close();
      if (!closed) timer = setTimeout(open, 1000);
    };
  };
  const close = () => { closed = true; clearTimeout(timer); source.close(); };
  open();
  return close;
}
