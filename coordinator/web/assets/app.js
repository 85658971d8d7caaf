import {el, table, windowed, name, state, number, bytes} from './dom.js';
import {call, get, setCsrf, watch} from './http.js';
import {auditPage} from './audit.js';
import {comparePage} from './compare.js';
import {jobPage} from './job.js';
import {nodePage} from './node.js';
import {projectsPage} from './projects.js';

const view = document.getElementById('view'), notice = document.getElementById('notice');
let leave = () => {}, visit = 0;

const link = (path, text) => el('a', {href: path}, text);
const jobLink = (id) => link('/jobs/' + encodeURIComponent(id), id);

// Calls `load` now, and again when the state of any job or node has changed.
async function live(load) {
  let timer, over = false;
  const again = () => { clearTimeout(timer); timer = setTimeout(() => { if (!over) load().catch(failed); }, 300); };
  await load();
  const close = watch('watch', '', {state: again});
  return () => { over = true; clearTimeout(timer); close(); };
}

async function clusterPage() {
  return live(async () => {
    const {nodes} = await get('nodes');
    const slots = nodes.flatMap((node) => node.slots);
    view.replaceChildren(el('h1', {}, 'Cluster'),
      el('p', {id: 'slots'}, `${nodes.length} nodes, ${slots.length} slots, ${slots.filter((s) => name(s.state) === 'free').length} free`),
      table(['node', 'state', 'slots', 'busy cores', 'memory', 'busy GPUs', 'faults', 'version'], nodes.map((node) => [link('/nodes/' + encodeURIComponent(node.id), node.id),
        [state(node.state), node.draining ? ' draining' : '', node.drain_reason ? ` (${node.drain_reason})` : ''].map((p) => p),
        node.slots.map((slot) => el('span', {}, state(slot.state), ' ', slot.job ? jobLink(slot.job) : '', ' ')),
        node.use ? `${node.use.busy_cores.toFixed(1)} of ${node.use.cores}` : '',
        node.use ? `${bytes(node.use.used_memory_bytes)} of ${bytes(node.use.memory_bytes)}` : bytes(node.slots.reduce((sum, slot) => sum + Number(slot.memory_bytes), 0)),
        node.use?.devices.length ? `${node.use.devices.reduce((sum, device) => sum + device.busy, 0).toFixed(1)} of ${node.use.devices.length}` : '',
        String(node.recent_faults), node.version])));
  });
}

async function allJobs(all) {
  const jobs = [];
  let page = '';
  do {
    const reply = await get(`jobs?view=summary&all=${all ? 1 : 0}&page=${encodeURIComponent(page)}`);
    jobs.push(...reply.jobs);
    page = reply.next_page;
  } while (page);
  return jobs;
}

async function queuePage() {
  return live(async () => {
    const queued = (await allJobs(false)).filter(({job}) => Number(job.queue_position) > 0);
    view.replaceChildren(el('h1', {}, 'Queue'), queued.length === 0 ? el('p', {}, 'No job waits.') :
      table(['place', 'job', 'user', 'ranks', 'priority', 'why it waits'], queued.map(({job}) => [String(job.queue_position), jobLink(job.id),
        job.owner, String(job.spec.resources?.ranks ?? 1), String(job.spec.priority ?? 0), job.reason])));
  });
}

function jobsPage() {
  const find = el('input', {type: 'search', placeholder: 'id, user, state or label', 'aria-label': 'filter'});
  const count = el('span', {class: 'dim', id: 'count'});
  const chosen = new Set();
  const choose = (id) => el('input', {type: 'checkbox', checked: chosen.has(id), 'aria-label': 'compare ' + id,
    onchange: (event) => { if (event.target.checked) chosen.add(id); else chosen.delete(id); showChosen(); }});
  const compare = el('a', {id: 'compare', href: '/compare', hidden: true});
  const showChosen = () => {
    compare.hidden = chosen.size < 2;
    compare.href = '/compare?jobs=' + [...chosen].map(encodeURIComponent).join(',');
    compare.textContent = `compare ${chosen.size} jobs`;
  };
  const list = windowed(28, ({job, last_metrics}) => el('div', {class: 'row', role: 'listitem'}, el('span', {}, choose(job.id), ' ', jobLink(job.id)),
    state(job.state), el('span', {}, job.owner),
    el('span', {}, `${Math.max(Number(job.progress_step), Number(last_metrics?.step ?? 0))}${job.spec.train ? '/' + job.spec.train.steps : ''}`),
    el('span', {class: 'dim'}, last_metrics?.loss !== undefined ? `loss ${number(last_metrics.loss)} ` : '', (job.labels ?? []).join(' '), ' ', job.reason)));
  let jobs = [];
  const show = () => {
    const text = find.value.toLowerCase();
    const shown = jobs.filter(({job}) => !text || job.id.toLowerCase().includes(text) || job.owner.toLowerCase().includes(text) || name(job.state) === text ||
      (job.labels ?? []).some((label) => label.toLowerCase().startsWith(text)));
    count.textContent = `${shown.length} of ${jobs.length} jobs`;
    list.show(shown);
  };
  find.addEventListener('input', show);
  view.replaceChildren(el('h1', {}, 'Jobs'), el('form', {onsubmit: (event) => event.preventDefault()}, find, count, compare), list.box);
  return live(async () => { jobs = await allJobs(true); show(); });
}

function signInPage(message) {
  const token = el('input', {type: 'password', autocomplete: 'off', 'aria-label': 'token', id: 'token'});
  view.replaceChildren(el('h1', {}, 'Sign in'), el('p', {}, 'Run ', el('code', {}, 'muster ui'), ', or give a token:'),
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
          page === 'nodes' && id ? await nodePage(view, id) : await clusterPage();
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
