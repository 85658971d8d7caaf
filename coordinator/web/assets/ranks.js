// The ranks of a generation as a grid: where each runs, its state, and the op it is at.
import {el, name, number, stateClass, windowed} from './dom.js';

const CELL = 190, HEIGHT = 44;  // pixels; the height is the style sheet's
const STALLED = 5;  // seconds without progress, from which a rank is marked

const AXES = {stage: 'stage', replica: 'replica', shard_in_stage: 'shard', context: 'context', tensor: 'tensor'};
const place = (role) => role ? Object.entries(AXES).filter(([axis]) => role[axis] > 0)
  .map(([axis, word]) => `${word} ${role[axis]}`).join(', ') : '';
const stall = ({stalled_seconds: seconds, frozen}) =>
  seconds >= 1 ? `, no progress for ${Math.round(seconds)} s${frozen ? ' (frozen)' : ''}` : '';

// "step 12, ReduceScatter h.3, no progress for 4 s"
function where({rank, progress}) {
  if (!progress) return rank.exit?.message ?? '';
  // Not every rank reports its step: all finish one together.
  return [Number(progress.step) > 0 ? `step ${progress.step}` : '', progress.op].filter((text) => text).join(', ') + stall(progress);
}

// One line about all: how far they are apart, and which one is the furthest behind.
function outline(ranks) {
  const known = ranks.filter(({progress}) => progress && Number(progress.step) > 0);
  if (known.length === 0) return `${ranks.length} ranks`;
  const steps = known.map(({progress}) => Number(progress.step));
  const least = steps.reduce((a, b) => Math.min(a, b)), most = steps.reduce((a, b) => Math.max(a, b));
  const behind = known.filter(({progress}) => Number(progress.step) === least);
  const longest = behind.reduce((a, b) => b.progress.stalled_seconds > a.progress.stalled_seconds ? b : a);
  const apart = least < most || longest.progress.stalled_seconds >= 1;
  return `${ranks.length} ranks, ${least === most ? `at step ${least}` : `at steps ${least} to ${most}`}` +
    (apart ? `; rank ${longest.rank.rank} on ${longest.rank.node}: ${where(longest)}` : '');
}

// Returns {box, show(generation, progress)}.
export function rankGrid() {
  const head = el('h2', {}), about = el('p', {id: 'ranks-outline', role: 'status'});
  let columns = 1, ranks = [];
  const cell = ({rank, progress}) => {
    const standing = name(rank.state), at = where({rank, progress});
    const title = [`rank ${rank.rank} on ${rank.node}`, place(rank.role), standing, at].filter((text) => text).join(': ');
    return el('span', {class: `rank ${progress?.stalled_seconds >= STALLED ? 'bad' : stateClass(standing)}`, role: 'listitem', title},
      el('span', {}, `${rank.rank} ${rank.node} `, standing === 'running' ? '' : standing), el('span', {class: 'dim'}, at));
  };
  const list = windowed(HEIGHT, ({cells}) => {
    const row = el('div', {class: 'row ranks', role: 'presentation'}, cells.map(cell));
    row.style.setProperty('--columns', columns);
    return row;
  }, ({first}) => first, 'ranks', 'short ranks');
  list.box.id = 'ranks';
  const arrange = () => {
    columns = Math.max(1, Math.floor((list.box.clientWidth || 800) / CELL));
    const rows = [];
    for (let i = 0; i < ranks.length; i += columns) rows.push({first: i, columns, cells: ranks.slice(i, i + columns)});
    list.show(rows);
  };
  new ResizeObserver(() => requestAnimationFrame(() => {
    if (Math.max(1, Math.floor(list.box.clientWidth / CELL)) !== columns) arrange();
  })).observe(list.box);
  const box = el('section', {hidden: true}, head, about, list.box);
  return {box, show(generation, progress) {
    const of = new Map(progress.map((seen) => [seen.rank, seen]));
    ranks = generation.ranks.map((rank) => ({rank, progress: of.get(rank.rank)}));
    head.textContent = `Ranks of generation ${number(generation.number)}`;
    about.textContent = outline(ranks);
    box.hidden = false;
    arrange();
  }};
}
