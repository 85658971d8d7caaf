import {chart} from './charts.js';
import {el, table, name, state, number, time} from './dom.js';
import {call, get, watch} from './http.js';
import {ownership, rankRows, RANK_HEADS, timeline} from './plan.js';

const LINES = 5000, CHARTS = 12, SERIES = 256;  // most of each
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

const place = (role) => role ? ['stage', 'shard', 'replica', 'tensor'].filter((axis) => role[axis] > 0).map((axis) => `${axis} ${role[axis]}`).join(', ') : '';

// The page of a job. Returns what to call when it is left.
export async function jobPage(view, id) {
  const actions = el('form', {onsubmit: (event) => event.preventDefault()});
  const head = el('div', {}), summary = el('div', {}), charts = el('section', {}), live = el('div', {});
  const logs = el('section', {}), events = el('section', {});
  const planned = el('section', {});
  view.replaceChildren(head, actions, summary, charts, live, planned, logs, events);
  let ended = false, timer;

  const act = (verb) => el('button', {onclick: async () => {
    if (verb === 'cancel' && !confirm('Cancel this job?')) return;
    try { await call('POST', `jobs/${id}/${verb}`, {}); } catch (error) { alert(error.message); }
    refresh();
  }}, verb);

  actions.append(act('pause'), act('resume'), act('cancel'));

  async function refresh() {
    const reply = await get('jobs/' + id);
    if (ended) return;
    const {job, generations} = reply;
    const newest = generations[0];
    const failure = job.failure;
    head.replaceChildren(el('h1', {id: 'job'}, job.id), el('p', {}, state(job.state), ' ', el('span', {id: 'reason'}, job.reason)));
    summary.replaceChildren(
      el('p', {}, 'step ', el('strong', {id: 'step'}, String(Math.max(Number(job.progress_step), Number(reply.last_metrics?.step ?? 0)))),
        job.spec.train ? ` of ${job.spec.train.steps}` : '', `, submitted by ${job.owner} at ${time(job.submitted)}`),
      job.labels.length > 0 ? el('p', {id: 'labels'}, job.labels.map((label) => el('code', {}, label + ' '))) : '',
      job.note ? el('p', {id: 'note'}, job.note) : '',
      failure ? el('div', {class: 'bad', id: 'failure'}, el('h2', {}, 'First fault'), el('p', {}, failure.exit?.message ?? ''), el('p', {}, failure.hint),
        el('pre', {}, (failure.exit?.last_lines ?? []).join('\n'))) : '');
    live.replaceChildren(el('h2', {}, 'Time'), ...ledger(job.time_breakdown),
      newest ? el('h2', {}, `Ranks of generation ${newest.number}`) : '',
      newest ? el('div', {class: 'grid', id: 'ranks'}, newest.ranks.map((rank) => el('span', {title: [place(rank.role), rank.exit?.message ?? ''].filter((t) => t).join(': ')},
        `${rank.rank} ${rank.node} `, state(rank.state)))) : '',
      el('h2', {}, 'Generations'), generationBar(job, generations),
      table(['generation', 'state', 'reason', 'ranks', 'created', 'ended', 'resumed from step'], generations.map((g) => [String(g.number), state(g.state),
        name(g.reason).replace('unspecified', ''), String(g.ranks.length), time(g.created), time(g.ended), String(g.resumed_step)])),
      el('h2', {}, 'Checkpoints'), el('div', {id: 'checkpoints'},
        table(['step', 'directory', 'published'], (job.checkpoints ?? []).map((c) => [String(c.step), c.directory, time(c.published)]))));
    return job;
  }
  const soon = () => { clearTimeout(timer); timer = setTimeout(() => refresh().catch(() => {}), 300); };
  const first = await refresh();

  // What a point of the watch has, by the names that the history's series have.
  const valuesOf = (point) => ({loss: point.loss, validation_loss: point.validation_loss, tokens_per_second: point.tokens_per_second,
    samples_per_second: point.samples_per_second, ...Object.fromEntries((point.reported ?? []).map((m) => ['reported.' + m.name, m.value]))});
  const history = await get(`jobs/${id}/metrics?points=1000`);
  const steps = history.metrics.steps, series = new Map(), drawn = new Map();
  const more = el('p', {class: 'dim'});
  const seriesOf = (key) => {
    if (!series.has(key)) series.set(key, history.metrics.series[key]?.last ?? steps.map(() => null));
    return series.get(key);
  };
  const shown = (key) => key === 'loss' || key === 'validation_loss' || key.endsWith('_per_second') || key.startsWith('reported.');
  for (const key of ['loss', ...Object.keys(history.metrics.series)]) if (shown(key)) seriesOf(key);
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
  const drawings = el('div', {class: 'charts'});
  charts.append(el('h2', {}, 'Metrics'), drawings, more);
  redraw();

  const details = el('details', {id: 'plan'}, el('summary', {}, 'Plan: who owns what, and a step'));
  details.addEventListener('toggle', async () => {
    if (!details.open || details.childElementCount > 1) return;
    const wait = el('p', {class: 'dim'}, 'planning');
    details.append(wait);
    try {
      const plan = await get(`jobs/${id}/plan`);
      wait.replaceWith(...plan.table ? [el('h3', {}, 'Who owns what'), ownership(plan.table), ...plan.placement.map((line) => el('p', {class: 'dim'}, line))] :
        [el('p', {class: 'dim'}, 'The table is too large to show; muster plan draws it.')],
      ...plan.ops.length > 0 ? [el('h3', {}, 'A step, as planned'), timeline(plan.ops)] : [], table(RANK_HEADS, rankRows(plan.ranks.slice(0, 1000))));
    } catch (error) {
      wait.textContent = error.message;
    }
  });
  if (first?.spec.train) planned.append(details);
  planned.append(el('details', {}, el('summary', {}, 'Spec'), el('pre', {id: 'spec'}, JSON.stringify(first?.spec, null, 2))));

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
    const values = valuesOf(metrics);
    for (const [key, value] of Object.entries(values)) if (value !== undefined && (series.has(key) || series.size < SERIES)) seriesOf(key);
    steps.splice(at, replaced, step);
    for (const [key, all] of series) all.splice(at, replaced, values[key] ?? (replaced ? all[at] : null));
    if (pending) return;
    pending = true;
    setTimeout(() => { pending = false; if (!ended) { redraw(); soon(); } }, 500);
  }});
  return () => { ended = true; clearTimeout(timer); closeLogs(); closeEvents(); closeMetrics(); };
}
