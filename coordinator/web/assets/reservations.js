import {el, state, table, time} from './dom.js';
import {allJobs, get} from './http.js';

const NAMED = 8;  // most nodes or jobs of a cell
const HEADS = ['reservation', 'state', 'start', 'end', 'nodes', 'for', 'jobs in it', 'overlapping jobs', 'note'];

const nodeLink = (id) => el('a', {href: '/nodes/' + encodeURIComponent(id)}, id);
const jobLink = (id) => el('a', {href: '/jobs/' + encodeURIComponent(id)}, id);
const jobAndState = (job) => el('span', {}, jobLink(job.id), ' ', state(job.state));
const forWhom = ({users, projects}) => [...users, ...projects.map((project) => 'project ' + project)].join(', ') || 'maintenance';

// "a, b and 5 more"
const some = (items, draw) => el('span', {}, items.slice(0, NAMED).flatMap((item, i) => [i > 0 ? ', ' : '', draw(item)]),
  items.length > NAMED ? ` and ${items.length - NAMED} more` : '');

// The current or next reservation of a node: "maint until ...", "maint from ...". Nothing if there is none.
export const reservedFor = (reservation) => !reservation ? [] : [el('a', {href: '/reservations'}, reservation.name),
  Date.parse(reservation.start) > Date.now() ? ` from ${time(reservation.start)}` : ` until ${time(reservation.end)}`];

// Reservations by start, with the jobs that run in them or wait for them. `live`: of app.js.
export function reservationsPage(view, live) {
  const none = el('p', {id: 'none', hidden: true}, 'There are no reservations. An admin sets one with ',
    el('code', {}, 'muster reservations set NAME --nodes NODE,NODE --start TIME --for 4h'), '.');
  const list = el('div', {id: 'reservations', hidden: true}, table(HEADS, []));
  const body = list.querySelector('tbody');
  let shown;
  view.replaceChildren(el('h1', {}, 'Reservations'), none, list);
  return live(async () => {
    const {reservations} = await get('reservations');
    const jobs = (reservations.length > 0 ? await allJobs(false) : []).map(({job}) => job).filter((job) => job.reservation)
      .map(({id, state, reservation}) => ({id, state, reservation}));
    const text = JSON.stringify([reservations, jobs]);
    if (text === shown) return;
    shown = text;
    const focused = body.contains(document.activeElement) ? document.activeElement.getAttribute('href') : undefined;
    body.replaceChildren(...table(HEADS, reservations.map((r) => [r.name, state(r.state), time(r.start), time(r.end), some(r.nodes, nodeLink),
      forWhom(r), some(jobs.filter((job) => job.reservation === r.name), jobAndState), some(r.overlapping_jobs, jobLink), r.note]))
      .querySelectorAll('tbody tr'));
    if (focused) [...body.querySelectorAll('a')].find((a) => a.getAttribute('href') === focused)?.focus({preventScroll: true});
    none.hidden = reservations.length > 0;
    list.hidden = reservations.length === 0;
  });
}
