import {el, table, state, number} from './dom.js';
import {get} from './http.js';
import {chart} from './charts.js';

// {"optimizer.lr": "0.001", ...} of a tree; lists and what is absent as they are in JSON.
export function flatten(tree, prefix = '', into = {}) {
  for (const [key, value] of Object.entries(tree ?? {})) {
    const path = prefix ? prefix + '.' + key : key;
    if (value !== null && typeof value === 'object' && !Array.isArray(value)) flatten(value, path, into);
    else into[path] = typeof value === 'string' ? value : JSON.stringify(value);
  }
  return into;
}

// The lowest value that a series ever had: bins keep theirs.
function lowest({metrics}, key) {
  const values = (metrics.series[key]?.min ?? []).filter((value) => typeof value === 'number');
  return values.length > 0 ? Math.min(...values) : undefined;
}

// Several jobs side by side: what differs between their specs, how they stand, and their losses in one chart.
export async function comparePage(view, ids) {
  if (ids.length === 0) {
    view.replaceChildren(el('h1', {}, 'Compare'), el('p', {}, 'Select jobs to compare on the page ', el('a', {href: '/jobs'}, 'Jobs'), '.'));
    return () => {};
  }
  const jobs = await Promise.all(ids.map(async (id) => {
    const path = 'jobs/' + encodeURIComponent(id);
    const [reply, history] = await Promise.all([get(path), get(path + '/metrics?points=1000')]);
    return {id: reply.job.id, job: reply.job, last: reply.last_metrics, metrics: history.metrics, spec: flatten(reply.job.spec)};
  }));
  const fields = [...new Set(jobs.flatMap(({spec}) => Object.keys(spec)))].filter((key) => new Set(jobs.map(({spec}) => spec[key])).size > 1).sort();
  const row = (name, of) => [el('strong', {}, name), ...jobs.map(of)];
  const figures = [row('state', ({job}) => state(job.state)), row('user', ({job}) => job.owner),
    row('step', ({job, last}) => String(Math.max(Number(job.progress_step), Number(last?.step ?? 0)))),
    row('loss', ({last}) => number(last?.loss)), row('best loss', (job) => number(lowest(job, 'loss'))),
    row('validation loss', ({last}) => number(last?.validation_loss)), row('best validation loss', (job) => number(lowest(job, 'validation_loss'))),
    row('tokens per second', ({last}) => number(last?.tokens_per_second)), row('training seconds', ({job}) => number(job.time_breakdown?.training)),
    row('restarts', ({job}) => String(job.restarts))];
  const losses = chart('loss', jobs.map(({id}) => id));
  view.replaceChildren(el('h1', {}, 'Compare'), table(['', ...jobs.map(({id}) => el('a', {href: '/jobs/' + encodeURIComponent(id)}, id))], figures),
    losses.box, el('h2', {}, 'Fields that differ'), fields.length === 0 ? el('p', {}, 'The specs of these jobs are equal.') :
      table(['field', ...jobs.map(({id}) => id)], fields.map((key) => [key, ...jobs.map(({spec}) => spec[key] ?? '')])));
  view.querySelector('table').id = 'compared';
  const joined = uPlot.join(jobs.map(({metrics}) => {
    const values = metrics.series.loss?.last;
    return [metrics.steps, values ? values.map((v) => typeof v === 'number' ? v : null) : metrics.steps.map(() => null)];
  }));
  losses.draw(...joined);
  return () => {};
}
