// One node: what holds its slots, and how busy it was within the last hour.
import {chart} from './charts.js';
import {bytes, el, name, state, table} from './dom.js';
import {get} from './http.js';
import {reservedFor} from './reservations.js';

const GIB = 2 ** 30;

export async function nodePage(view, id) {
  const charts = [['busy cores', (use) => use.busy_cores], ['used memory, GiB', (use) => Number(use.used_memory_bytes) / GIB]];
  const gpus = [['busy GPUs', (use) => use.devices.reduce((sum, device) => sum + device.busy, 0)],
    ['used GPU memory, GiB', (use) => use.devices.reduce((sum, device) => sum + Number(device.used_memory_bytes), 0) / GIB]];
  const drawn = new Map();
  const about = el('p', {id: 'use'}), reserved = el('p', {id: 'reserved', hidden: true}), slots = el('div', {id: 'held'}), pictures = el('div', {class: 'charts'});
  view.replaceChildren(el('h1', {}, id), about, reserved, slots, el('h2', {}, 'Last hour'), pictures);

  async function load() {
    const node = (await get('nodes')).nodes.find((known) => known.id === id);
    if (!node) {
      about.textContent = 'The coordinator knows no node with this id. See the list on the page Cluster.';
      return;
    }
    const {points} = await get(`nodes/${encodeURIComponent(id)}/use`);
    const use = node.use;
    about.replaceChildren(state(node.state), use ? ` ${use.busy_cores.toFixed(1)} of ${use.cores} cores busy, ` +
      `${bytes(use.used_memory_bytes)} of ${bytes(use.memory_bytes)} memory used` : ' (use not measured)');
    reserved.replaceChildren('reserved: ', ...reservedFor(node.reservation));
    reserved.hidden = !node.reservation;
    const deviceOf = new Map((use?.devices ?? []).map((device) => [device.slot, device]));
    slots.replaceChildren(table(['slot', 'state', 'job', 'device', 'memory', 'busy'], node.slots.map((slot) => [String(slot.index),
      state(slot.state), slot.job ? el('a', {href: '/jobs/' + encodeURIComponent(slot.job)}, slot.job) : '', slot.model || name(slot.device),
      bytes(slot.memory_bytes), deviceOf.has(slot.index) ? `${Math.round(100 * deviceOf.get(slot.index).busy)}%` : ''])));
    const minutes = points.map((point) => (Date.parse(point.time) - Date.now()) / 60000);
    for (const [title, value] of points.some((point) => point.devices.length > 0) ? [...charts, ...gpus] : charts) {
      if (!drawn.has(title)) {
        const picture = chart(title, [title], 'minutes');
        drawn.set(title, picture);
        pictures.append(picture.box);
      }
      drawn.get(title).draw(minutes, points.map(value));
    }
  }

  await load();
  const timer = setInterval(() => load().catch(() => {}), 15000);
  return () => clearInterval(timer);
}
