import {el, table, name, state, number, time} from './dom.js';
import {call, get, watch} from './http.js';

const LINES = 5000;
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

function chart(title, series) {
  const box = el('div', {id: 'chart-' + title});
  let plot;
  return {box, draw(steps, values) {
    const data = [steps, values.map((v) => typeof v === 'number' ? v : null)];
    if (plot) return plot.setData(data);
    const color = getComputedStyle(document.documentElement).getPropertyValue('--accent');
    const axis = {stroke: getComputedStyle(document.body).color, grid: {stroke: '#8883'}};
    plot = new uPlot({title, width: Math.min(800, box.clientWidth || 360), height: 220, scales: {x: {time: false}}, axes: [axis, axis],
      series: [{label: 'step'}, {label: series, stroke: color}]}, data, box);
  }};
}

// The page of a job. Returns what to call when it is left.
export async function jobPage(view, id) {
  const head = el('div', {}), charts = el('section', {}), logs = el('section', {}), events = el('section', {});
  view.replaceChildren(head, charts, logs, events);
  let ended = false, timer;

  const act = (verb) => el('button', {onclick: async () => {
    if (verb === 'cancel' && !confirm('Cancel this job?')) return;
    try { await call('POST', `jobs/${id}/${verb}`, {}); } catch (error) { alert(error.message); }
    refresh();
  }}, verb);

  async function refresh() {
    const reply = await get('jobs/' + id);
    if (ended) return;
    const {job, generations} = reply;
    const newest = generations[0];
    const failure = job.failure;
    head.replaceChildren(
      el('h1', {id: 'job'}, job.id), el('p', {}, state(job.state), ' ', el('span', {id: 'reason'}, job.reason)),
      el('form', {onsubmit: (event) => event.preventDefault()}, act('pause'), act('resume'), act('cancel')),
      el('p', {}, 'step ', el('strong', {id: 'step'}, String(Math.max(Number(job.progress_step), Number(reply.last_metrics?.step ?? 0)))),
        ' of ', String(job.spec?.train?.steps ?? '?'), `, submitted by ${job.owner} at ${time(job.submitted)}`),
      failure ? el('div', {class: 'bad', id: 'failure'}, el('h2', {}, 'First fault'), el('p', {}, failure.exit?.message ?? ''), el('p', {}, failure.hint),
        el('pre', {}, (failure.exit?.last_lines ?? []).join('\n'))) : '',
      el('h2', {}, 'Time'), ...ledger(job.time_breakdown),
      newest ? el('h2', {}, `Ranks of generation ${newest.number}`) : '',
      newest ? el('div', {class: 'grid', id: 'ranks'}, newest.ranks.map((rank) => el('span', {title: rank.exit?.message ?? ''},
        `${rank.rank} ${rank.node} `, state(rank.state)))) : '',
      el('h2', {}, 'Generations'),
      table(['generation', 'state', 'reason', 'ranks', 'created', 'ended', 'resumed from step'], generations.map((g) => [String(g.number), state(g.state),
        name(g.reason).replace('unspecified', ''), String(g.ranks.length), time(g.created), time(g.ended), String(g.resumed_step)])),
      el('h2', {}, 'Checkpoints'),
      table(['step', 'directory', 'published'], (job.checkpoints ?? []).map((c) => [String(c.step), c.directory, time(c.published)])),
      el('details', {}, el('summary', {}, 'Spec'), el('pre', {id: 'spec'}, JSON.stringify(job.spec, null, 2))));
  }
  const soon = () => { clearTimeout(timer); timer = setTimeout(() => refresh().catch(() => {}), 300); };
  await refresh();

  const loss = chart('loss', 'loss'), speed = chart('throughput', 'per second');
  const history = (await get(`jobs/${id}/metrics?points=1000`));
  const steps = history.metrics.steps, losses = history.metrics.series.loss?.last ?? steps.map(() => null);
  const speeds = (history.metrics.series.tokens_per_second ?? history.metrics.series.samples_per_second)?.last ?? steps.map(() => null);
  charts.append(el('h2', {}, 'Metrics'), loss.box, speed.box);
  const redraw = () => { loss.draw(steps, losses); speed.draw(steps, speeds); charts.dataset.step = steps.at(-1) ?? 0; };
  redraw();

  const box = el('div', {class: 'log', id: 'log', tabindex: '0', 'aria-label': 'log lines'});
  const search = el('input', {type: 'search', placeholder: 'lines that contain', 'aria-label': 'search'});
  const rank = el('input', {type: 'number', min: '0', placeholder: 'all ranks', 'aria-label': 'rank'});
  const show = (lines) => {
    const bottom = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    box.append(...lines.map((line) => el('div', {}, `[${line.rank}] ${line.text}`)));
    while (box.childElementCount > LINES) box.firstChild.remove();
    if (bottom) box.scrollTop = box.scrollHeight;
  };
  let closeLogs = () => {};
  async function loadLogs() {
    closeLogs();
    const query = new URLSearchParams({tail: 1000});
    if (search.value) query.set('grep', search.value);
    if (rank.value) query.set('rank', rank.value);
    const reply = await get(`jobs/${id}/logs?${query}`);
    if (ended) return;
    box.replaceChildren();
    show(reply.lines);
    closeLogs = watch(`jobs/${id}/watch?logs=1` + (rank.value ? `&rank=${rank.value}` : ''), reply.cursor, {log: ({log}) => {
      const lines = log.text.replace(/\n$/, '').split('\n').filter((text) => text.includes(search.value));
      show(lines.map((text) => ({rank: log.rank, text})));
    }});
  }
  logs.append(el('h2', {}, 'Logs'), el('form', {onsubmit: (event) => { event.preventDefault(); loadLogs(); }}, search, rank,
    el('button', {}, 'Search')), box);
  await loadLogs();

  const past = await get(`jobs/${id}/events`);
  const list = el('ol', {id: 'events'});
  const add = (event) => list.append(el('li', {}, el('span', {class: 'dim'}, time(event.time) + ' '), `${event.kind} ${event.message}`));
  past.events.forEach(add);
  events.append(el('h2', {}, 'Events'), list);

  const closeEvents = watch(`jobs/${id}/watch?events=1`, past.cursor, {state: ({event}) => { add(event); soon(); }});
  let pending = false;
  const closeMetrics = watch(`jobs/${id}/watch?metrics=1`, history.cursor, {metrics: ({metrics}) => {
    const step = Number(metrics.step);
    let at = steps.length;
    while (at > 0 && steps[at - 1] >= step) --at;
    const replaced = steps[at] === step ? 1 : 0;
    steps.splice(at, replaced, step);
    losses.splice(at, replaced, metrics.loss ?? null);
    speeds.splice(at, replaced, metrics.tokens_per_second ?? metrics.samples_per_second ?? null);
    if (pending) return;
    pending = true;
    setTimeout(() => { pending = false; if (!ended) { redraw(); soon(); } }, 500);
  }});
  return () => { ended = true; clearTimeout(timer); closeLogs(); closeEvents(); closeMetrics(); };
}
