import {el, windowed, name, state, number, bytes} from './dom.js';
import {allJobs, call, get, paced, setCsrf, watch} from './http.js';
import {auditPage} from './audit.js';
import {comparePage} from './compare.js';
import {jobPage} from './job.js';
import {nodePage} from './node.js';
import {projectsPage} from './projects.js';
import {reservationsPage, reservedFor} from './reservations.js';

const view = document.getElementById('view'), notice = document.getElementById('notice');
let leave = () => {}, visit = 0;

const link = (path, text) => el('a', {href: path}, text);
const jobLink = (id) => link('/jobs/' + encodeURIComponent(id), id);

const ROW = 28;  // pixels: style.css
const PATIENCE = 500;  // milliseconds for the stream, before a page is shown without

// Calls `load` now, and again when the state of any job or node has changed.
async function live(load) {
  const pace = paced(() => load().catch(failed));
  let loading = false, opened;
  const open = new Promise((resolve) => { opened = resolve; });
  // A change between a load and the stream's begin would be missed, so the stream comes first if it can.
  const stream = watch('watch', '', {state: pace.soon, open: () => { opened(); if (loading) pace.soon(); }});
  await Promise.race([open, new Promise((resolve) => setTimeout(resolve, PATIENCE))]);
  loading = true;
  const close = () => { pace.stop(); stream.close(); };
  try {
    await load();
  } catch (error) {
    close();
    throw error;
  }
  return close;
}

// "6 used by a-job, 2 free": one part for each state and job of a node's slots.
function slotsOf(node) {
  const parts = new Map();
  for (const slot of node.slots) {
    const key = slot.state + ' ' + slot.job;
    if (!parts.has(key)) parts.set(key, {slot, count: 0});
    ++parts.get(key).count;
  }
  return [...parts.values()].map(({slot, count}, i) => el('span', {}, i > 0 ? ', ' : '', `${count} `, state(slot.state),
    slot.job ? [' by ', jobLink(slot.job)] : ''));
}

function clusterPage() {
  const head = el('p', {id: 'slots'});
  const list = windowed(ROW, (node) => el('div', {class: 'row node', role: 'listitem'}, el('span', {}, link('/nodes/' + encodeURIComponent(node.id), node.id)),
    el('span', {}, state(node.state), node.draining ? ' draining' : '', node.drain_reason ? ` (${node.drain_reason})` : ''), el('span', {}, slotsOf(node)),
    el('span', {class: 'reservation'}, reservedFor(node.reservation)),
    el('span', {}, node.use ? `${node.use.busy_cores.toFixed(1)} of ${node.use.cores} cores busy` : ''),
    el('span', {}, node.use ? `${bytes(node.use.used_memory_bytes)} of ${bytes(node.use.memory_bytes)}` : bytes(node.slots.reduce((sum, slot) => sum + Number(slot.memory_bytes), 0))),
    el('span', {}, node.use?.devices.length ? `${node.use.devices.reduce((sum, device) => sum + device.busy, 0).toFixed(1)} of ${node.use.devices.length} GPUs busy` : ''),
    el('span', {class: Number(node.recent_faults) > 0 ? 'bad' : 'dim'}, `${node.recent_faults} faults`), el('span', {class: 'dim'}, node.version)),
  (node) => node.id, 'nodes', 'short');
  view.replaceChildren(el('h1', {}, 'Cluster'), head, list.box);
  return live(async () => {
    const {nodes} = await get('nodes');
    const slots = nodes.flatMap((node) => node.slots);
    head.textContent = `${nodes.length} nodes, ${slots.length} slots, ${slots.filter((s) => name(s.state) === 'free').length} free`;
    list.box.classList.toggle('reserved', nodes.some((node) => node.reservation));
    list.show(nodes);
  });
}

function queuePage() {
  const head = el('p', {id: 'count'});
  const list = windowed(ROW, ({job}) => el('div', {class: 'row queued', role: 'listitem'}, el('span', {}, String(job.queue_position)),
    el('span', {}, jobLink(job.id)), el('span', {}, job.owner), el('span', {}, `${job.spec.resources?.ranks ?? 1} ranks`),
    el('span', {}, `priority ${job.spec.priority ?? 0}`), el('span', {class: 'dim'}, job.reason)), ({job}) => job.id, 'queue', 'short');
  view.replaceChildren(el('h1', {}, 'Queue'), head, list.box);
  return live(async () => {
    const queued = (await allJobs(false)).filter(({job}) => Number(job.queue_position ?? 0) > 0);
    head.textContent = queued.length === 0 ? 'No jobs are queued.' : `Queued jobs: ${queued.length}, next first.`;
    list.show(queued);
  });
}

function jobsPage() {
  const find = el('input', {type: 'search', placeholder: 'id, user, state or label', 'aria-label': 'filter'});
  const count = el('span', {class: 'dim', id: 'count', role: 'status'});
  const chosen = new Set();
  const choose = (id) => el('input', {type: 'checkbox', checked: chosen.has(id), 'aria-label': 'compare ' + id,
    onchange: (event) => { if (event.target.checked) chosen.add(id); else chosen.delete(id); showChosen(); }});
  const compare = el('a', {id: 'compare', href: '/compare', hidden: true});
  const showChosen = () => {
    compare.hidden = chosen.size < 2;
    compare.href = '/compare?jobs=' + [...chosen].map(encodeURIComponent).join(',');
    compare.textContent = `compare ${chosen.size} jobs`;
  };
  const list = windowed(ROW, ({job, last_metrics}) => el('div', {class: 'row', role: 'listitem'}, el('span', {}, choose(job.id), ' ', jobLink(job.id)),
    state(job.state), el('span', {}, job.owner),
    el('span', {}, `${Math.max(Number(job.progress_step ?? 0), Number(last_metrics?.step ?? 0))}${job.spec.train ? '/' + (job.spec.train.steps ?? 0) : ''}`),
    el('span', {class: 'dim'}, last_metrics?.loss !== undefined ? `loss ${number(last_metrics.loss)} ` : '', (job.labels ?? []).join(' '), ' ', job.reason)),
  ({job}) => job.id, 'jobs');
  let jobs = [], whole = false;
  const fits = ({job}, text) => job.id.toLowerCase().includes(text) || (job.owner ?? '').toLowerCase().includes(text) || name(job.state) === text ||
    (job.labels ?? []).some((label) => label.toLowerCase().startsWith(text));
  const show = () => {
    const text = find.value.toLowerCase();
    const shown = text ? jobs.filter((job) => fits(job, text)) : jobs;
    count.textContent = `${shown.length} of ${jobs.length} jobs${whole ? '' : ', still loading'}`;
    list.show(shown);
  };
  find.addEventListener('input', show);
  view.replaceChildren(el('h1', {}, 'Jobs'), el('form', {onsubmit: (event) => event.preventDefault()}, find, count, compare), list.box);
  return live(async () => {
    const all = await allJobs(true, (some) => { if (!whole) { jobs = some; show(); } });
    jobs = all;
    whole = true;
    show();
  });
}

function signInPage(message) {
  const token = el('input', {type: 'password', autocomplete: 'off', 'aria-label': 'token', id: 'token'});
  view.replaceChildren(el('h1', {}, 'Sign in'), el('p', {}, 'Run ', el('code', {}, 'muster ui'), ' and open its link, or enter a token:'),
    el('form', {onsubmit: (event) => { event.preventDefault(); signIn({token: token.value}); }}, token, el('button', {id: 'sign-in'}, 'Sign in')),
    message ? el('p', {class: 'bad', id: 'refused'}, message) : '');
  token.focus();
}

async function signIn(body) {
  try {
    await call('POST', 'sign-in', body);
  } catch (error) {
    return signInPage(error.message);
  }
  await start();
}

function failed(error) {
  if (error.status === 401) return signInPage('');
  notice.textContent = error.message;
  notice.hidden = false;
  if (error.status === 0 || error.status === 503) setTimeout(route, 1000);
}

async function route() {
  const now = ++visit;
  leave();
  leave = () => {};
  const [page, id] = location.pathname.split('/').slice(1).map(decodeURIComponent);
  for (const item of document.querySelectorAll('nav a')) {
    if (item.getAttribute('href') === '/' + page) item.setAttribute('aria-current', 'page'); else item.removeAttribute('aria-current');
  }
  try {
    const ids = (new URLSearchParams(location.search).get('jobs') ?? '').split(',').filter((text) => text);
    const close = page === 'jobs' && id ? await jobPage(view, encodeURIComponent(id)) : page === 'jobs' ? await jobsPage() :
      page === 'queue' ? await queuePage() : page === 'compare' ? await comparePage(view, ids) :
        page === 'projects' ? await projectsPage(view) : page === 'audit' ? await auditPage(view) :
          page === 'reservations' ? await reservationsPage(view, live) : page === 'nodes' && id ? await nodePage(view, id) : await clusterPage();
    notice.hidden = true;
    if (now === visit) leave = close; else close();
  } catch (error) {
    if (now === visit) failed(error);
  }
}

async function start() {
  try {
    const session = await get('session');
    setCsrf(session.csrf);
    document.getElementById('who').textContent = `${session.user} (${session.role})`;
    document.getElementById('out').hidden = false;
    document.getElementById('audit-link').hidden = session.role !== 'admin' && session.role !== 'local';
  } catch (error) {
    return failed(error);
  }
  await route();
}

document.getElementById('out').addEventListener('click', async () => { await call('POST', 'sign-out', {}); location.assign('/'); });
document.addEventListener('click', (event) => {
  const at = event.target.closest('a[href^="/"]');
  if (!at || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
  event.preventDefault();
  history.pushState(null, '', at.getAttribute('href'));
  route().then(() => view.focus());
});
addEventListener('popstate', route);

const code = new URLSearchParams(location.hash.slice(1)).get('code');
if (code) {
  history.replaceState(null, '', location.pathname);
  signIn({code});
} else {
  start();
}
