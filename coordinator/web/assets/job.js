import {chart} from './charts.js';
import {el, table, name, state, number, time} from './dom.js';
import {call, get, paced, watch} from './http.js';
import {plannedParts} from './plan.js';
import {rankGrid} from './ranks.js';

const LINES = 5000, EVENTS = 1000, CHARTS = 12, SERIES = 256, POINTS = 4000, GENERATIONS = 20;  // most of each
const REFRESH = 2000;  // milliseconds, while its ranks run
const PARTS = [['training', '#15803d'], ['queued', '#9ca3af'], ['starting', '#60a5fa'], ['checkpoint_stall', '#a78bfa'], ['detecting', '#f59e0b'],
  ['recovering', '#f97316'], ['recomputing', '#ef4444'], ['paused', '#64748b']];

function ledger(breakdown) {
  const bar = el('div', {class: 'bar', role: 'img', 'aria-label': 'how the job spent its time'});
  const words = [];
  const total = PARTS.reduce((sum, [part]) => sum + (breakdown?.[part] ?? 0), 0);
  for (const [part, color] of PARTS) {
    const seconds = breakdown?.[part] ?? 0;
    if (seconds <= 0) continue;
    const piece = el('div', {title: `${part}: ${number(seconds)} s`});
    piece.style.width = 100 * seconds / total + '%';
    piece.style.background = color;
    bar.append(piece);
    words.push(`${part.replace('_', ' ')} ${number(seconds)} s`);
  }
  return [bar, el('p', {class: 'dim'}, words.join(', '))];
}

// Generations on one line of time, from submission to now or the end.
function generationBar(job, generations) {
  const begin = Date.parse(job.submitted), end = job.ended ? Date.parse(job.ended) : Date.now();
  const bar = el('div', {class: 'bar times', id: 'generations', role: 'img', 'aria-label': `${generations.length} generations`});
  for (const g of generations) {
    const from = Date.parse(g.created), to = g.ended ? Date.parse(g.ended) : end;
    const piece = el('div', {class: name(g.reason) === 'failed' ? 'failed' : '',
      title: `generation ${g.number}: ${name(g.state)} ${name(g.reason).replace('unspecified', '')}, from step ${g.resumed_step}, ${time(g.created)}`});
    piece.style.left = 100 * Math.max(0, from - begin) / Math.max(1, end - begin) + '%';
    piece.style.width = 100 * Math.max(0, to - from) / Math.max(1, end - begin) + '%';
    bar.append(piece);
  }
  return bar;
}

// The page of a job. Returns what to call when it is left.
export async function jobPage(view, id) {
  const actions = el('form', {onsubmit: (event) => event.preventDefault()});
  const head = el('div', {}), summary = el('div', {}), charts = el('section', {}), times = el('div', {}), ranks = rankGrid();
  const past = el('div', {}), planned = el('section', {}), logs = el('section', {}), events = el('section', {});
  // Outside of the summary, which is drawn anew every two seconds: the link keeps the focus.
  const reservation = el('a', {href: '/reservations', id: 'reservation'}), reserved = el('p', {hidden: true}, 'reservation ', reservation);
  view.replaceChildren(head, actions, summary, reserved, charts, times, ranks.box, past, planned, logs, events);
  let ended = false, running = false, shownStep = 0;
  const step = el('strong', {id: 'step'});
  const reach = (reached) => {
    shownStep = Math.max(shownStep, Number(reached ?? 0));
    step.textContent = String(shownStep);
  };

  const act = (verb) => el('button', {onclick: async () => {
    if (verb === 'cancel' && !confirm('Cancel this job?')) return;
    try { await call('POST', `jobs/${id}/${verb}`, {}); } catch (error) { alert(error.message); }
    standing.soon();
  }}, verb);
  actions.append(act('pause'), act('resume'), act('cancel'));

  async function refresh() {
    const reply = await get(`jobs/${id}?generations=${GENERATIONS}`);
    if (ended) return;
    const {job, generations} = reply;
    const newest = generations[0];
    const failure = job.failure;
    running = newest !== undefined && !newest.ended;
    reach(job.progress_step);
    reach(reply.last_metrics?.step);
    head.replaceChildren(el('h1', {id: 'job'}, job.id), el('p', {}, state(job.state), ' ', el('span', {id: 'reason'}, job.reason)));
    summary.replaceChildren(
      el('p', {}, 'step ', step, job.spec.train ? ` of ${job.spec.train.steps}` : '', `, submitted by ${job.owner} at ${time(job.submitted)}`),
      job.labels.length > 0 ? el('p', {id: 'labels'}, job.labels.map((label) => el('code', {}, label + ' '))) : '',
      job.note ? el('p', {id: 'note'}, job.note) : '',
      failure ? el('div', {class: 'bad', id: 'failure'}, el('h2', {}, 'First fault'), el('p', {}, failure.exit?.message ?? ''), el('p', {}, failure.hint),
        el('pre', {}, (failure.exit?.last_lines ?? []).join('\n'))) : '');
    reservation.textContent = job.reservation;
    reserved.hidden = !job.reservation;
    times.replaceChildren(el('h2', {}, 'Time'), ...ledger(job.time_breakdown));
    if (newest) ranks.show(newest, reply.progress);
    past.replaceChildren(el('h2', {}, 'Generations'), generationBar(job, generations),
      table(['generation', 'state', 'reason', 'ranks', 'created', 'ended', 'resumed from step'], generations.map((g) => [String(g.number), state(g.state),
        name(g.reason).replace('unspecified', ''), String(g.ranks.length), time(g.created), time(g.ended), String(g.resumed_step)])),
      generations.length > 0 && Number(generations.at(-1).number) > 1 ? el('p', {class: 'dim'}, `and ${Number(generations.at(-1).number) - 1} earlier generations: see muster describe`) : '',
      el('h2', {}, 'Checkpoints'), el('div', {id: 'checkpoints'},
        table(['step', 'directory', 'published'], [...(job.checkpoints ?? []), ...(job.script_checkpoint ? [job.script_checkpoint] : [])].map((c) => [String(c.step), c.directory, time(c.published)]))));
    return job;
  }
  const standing = paced(() => refresh().catch(() => {}));
  const timer = setInterval(() => { if (running && !document.hidden) standing.soon(); }, REFRESH);

  // What a point of the watch has, by the names that the history's series have.
  const valuesOf = (point) => ({loss: point.loss, validation_loss: point.validation_loss, tokens_per_second: point.tokens_per_second,
    samples_per_second: point.samples_per_second, ...Object.fromEntries((point.reported ?? []).map((m) => ['reported.' + m.name, m.value]))});
  const shown = (key) => key === 'loss' || key === 'validation_loss' || key.endsWith('_per_second') || key.startsWith('reported.');
  const series = new Map(), drawn = new Map(), drawings = el('div', {class: 'charts'}), more = el('p', {class: 'dim'});
  let steps = [], pending = false;
  const seriesOf = (key) => {
    if (!series.has(key)) series.set(key, steps.map(() => null));
    return series.get(key);
  };
  // The tokens say the same as the samples.
  const charted = () => [...series.keys()].filter((key) => key !== 'samples_per_second' || !series.has('tokens_per_second'));
  const redraw = () => {
    for (const key of charted().slice(0, CHARTS)) {
      if (!drawn.has(key)) {
        const title = key.replace('reported.', '').replaceAll('_', ' ');
        drawn.set(key, chart(title, [title]));
        drawings.append(drawn.get(key).box);
      }
      drawn.get(key).draw(steps, series.get(key));
    }
    const left = charted().length - CHARTS;
    more.textContent = left > 0 ? `and ${left} other metrics: muster metrics` : '';
    charts.dataset.step = steps.at(-1) ?? 0;
  };
  async function loadMetrics() {
    const {metrics, cursor} = await get(`jobs/${id}/metrics?points=1000`);
    steps = metrics.steps;
    series.set('loss', steps.map(() => null));
    for (const [key, values] of Object.entries(metrics.series)) if (shown(key)) series.set(key, values.last);
    charts.append(el('h2', {}, 'Metrics'), drawings, more);
    redraw();
    return cursor;
  }
  const addPoint = ({metrics}) => {
    const reached = Number(metrics.step);
    let at = steps.length;
    while (at > 0 && steps[at - 1] >= reached) --at;
    const replaced = steps[at] === reached ? 1 : 0;
    const values = valuesOf(metrics);
    for (const [key, value] of Object.entries(values)) if (value !== undefined && (series.has(key) || series.size < SERIES)) seriesOf(key);
    steps.splice(at, replaced, reached);
    for (const [key, all] of series) all.splice(at, replaced, values[key] ?? (replaced ? all[at] : null));
    if (steps.length > POINTS) {
      // The older half with every second point; the page, loaded again, has the lowest and highest of each.
      const kept = (_, i) => i >= POINTS / 2 || i % 2 === 0;
      steps = steps.filter(kept);
      for (const [key, all] of series) series.set(key, all.filter(kept));
    }
    reach(reached);
    if (pending) return;
    pending = true;
    setTimeout(() => { pending = false; if (!ended) redraw(); }, 500);
  };

  const box = el('div', {class: 'log', id: 'log', tabindex: '0', 'aria-label': 'log lines'});
  const search = el('input', {type: 'search', placeholder: 'lines that contain', 'aria-label': 'search'});
  const rank = el('input', {type: 'number', min: '0', placeholder: 'all ranks', 'aria-label': 'rank'});
  // Lines are drawn together, ten times a second at most: each time the browser lays out the whole box.
  let unshown = [], drawing;
  const showLines = (lines) => {
    unshown = [...unshown, ...lines].slice(-LINES);
    drawing ??= setTimeout(drawLines, 100);
  };
  const drawLines = () => {
    clearTimeout(drawing);
    drawing = undefined;
    const bottom = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    box.append(...unshown.map((line) => el('div', {}, line)));
    unshown = [];
    while (box.childElementCount > LINES) box.firstChild.remove();
    if (bottom) box.scrollTop = box.scrollHeight;
  };
  let filter = {text: '', rank: ''};
  async function loadLogs() {
    filter = {text: search.value, rank: rank.value};
    const query = new URLSearchParams({tail: 1000});
    if (filter.text) query.set('grep', filter.text);
    if (filter.rank) query.set('rank', filter.rank);
    const {lines, cursor} = await get(`jobs/${id}/logs?${query}`);
    box.replaceChildren();
    unshown = lines.map((line) => `[${line.rank}] ${line.text}`);
    drawLines();
    return cursor;
  }
  const addLog = ({log}) => showLines(log.text.replace(/\n$/, '').split('\n').filter((text) => text.includes(filter.text)).map((text) => `[${log.rank}] ${text}`));

  const list = el('ol', {id: 'events'});
  const addEvents = (some) => {
    list.append(...some.slice(-EVENTS).map((event) => el('li', {}, el('span', {class: 'dim'}, time(event.time) + ' '), `${event.kind} ${event.message}`)));
    while (list.childElementCount > EVENTS) list.firstChild.remove();
  };
  async function loadEvents() {
    const {events: known, cursor} = await get(`jobs/${id}/events`);
    events.append(el('h2', {}, 'Events'), list);
    addEvents(known);
    return cursor;
  }

  // One stream for all three, each from where it was read.
  let stream;
  const follow = (positions) => {
    const cursor = Object.entries(positions).map(([kind, at]) => `${kind}:${at}`).join(',');
    stream = watch(`jobs/${id}/watch?events=1&metrics=1&logs=1` + (filter.rank ? `&rank=${filter.rank}` : ''), cursor, {
      state: ({event}) => { addEvents([event]); standing.soon(); }, metrics: addPoint, log: addLog,
      gap: ({gap}) => { if (gap.what === 'logs') showLines(['[log lines were dropped here]']); }});
  };
  const searchLogs = async () => {
    const positions = Object.fromEntries(stream.cursor().split(',').map((part) => part.split(':')));
    stream.close();
    let logsFrom = positions.logs;
    try { logsFrom = await loadLogs(); } catch (error) { showLines([error.message]); }
    if (!ended) follow({...positions, logs: logsFrom});
  };
  const leave = () => { ended = true; clearInterval(timer); standing.stop(); stream?.close(); };
  logs.append(el('h2', {}, 'Logs'), el('form', {onsubmit: (event) => { event.preventDefault(); if (stream) searchLogs(); }}, search, rank,
    el('button', {}, 'Search')), box);
  try {
    const [first, ...from] = await Promise.all([refresh(), loadEvents(), loadMetrics(), loadLogs()]);
    if (first?.spec.train) planned.append(...plannedParts(id));
    planned.append(el('details', {}, el('summary', {}, 'Spec'), el('pre', {id: 'spec'}, JSON.stringify(first?.spec, null, 2))));
    follow({events: from[0], metrics: from[1], logs: from[2]});
  } catch (error) {
    leave();
    throw error;
  }
  return leave;
}
