import {el, table, number} from './dom.js';
import {get} from './http.js';

const device = (value) => value.replace('DEVICE_', '').toLowerCase();

// Projects with their quotas, and what their users used of late.
export async function projectsPage(view) {
  const {projects} = await get('projects');
  const quotas = projects.flatMap((project) => project.quotas.map((quota) => [project.name, device(quota.device), String(quota.nominal ?? 'no quota'),
    String(quota.borrowing_limit ?? 'no limit'), String(quota.held)]));
  const usage = projects.flatMap((project) => project.usage.map(({user, slot_seconds: seconds}) => [project.name, user, number(seconds / 3600)]));
  view.replaceChildren(el('h1', {}, 'Projects'), projects.length === 0 ? el('p', {}, 'There are no projects, so all jobs share all slots. To make one, see muster quota.') : '',
    ...projects.length === 0 ? [] : [
      table(['project', 'weight', 'cohort', 'users'], projects.map((p) => [p.name, String(p.weight ?? 1), p.cohort, p.users.join(', ')])),
      el('h2', {}, 'Quotas, in slots'), table(['project', 'device', 'nominal', 'borrowing limit', 'held'], quotas),
      el('h2', {}, 'Recent use in slot hours (older use counts less)'), table(['project', 'user', 'slot hours'], usage)]);
  return () => {};
}
