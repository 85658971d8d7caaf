// The ranks of a generation as a grid: where each runs, its part of the model, and its state.
import {el, name, number, stateClass, windowed} from './dom.js';

const CELL = 190, HEIGHT = 44;  // pixels; the height is the style sheet's

const place = (role) => role ? ['stage', 'shard', 'replica', 'tensor'].filter((axis) => role[axis] > 0)
  .map((axis) => `${axis} ${role[axis]}`).join(', ') : '';

// "1000 ranks: 998 running, 2 exited"
function outline(ranks) {
  const counts = new Map();
  for (const rank of ranks) counts.set(name(rank.state), (counts.get(name(rank.state)) ?? 0) + 1);
  return `${ranks.length} ranks: ` + [...counts].map(([standing, count]) => `${count} ${standing}`).join(', ');
}

function cell(rank) {
  const standing = name(rank.state), about = rank.exit?.message || place(rank.role);
  const title = [`rank ${rank.rank} on ${rank.node}`, place(rank.role), standing, rank.exit?.message].filter((text) => text).join(': ');
  return el('span', {class: `rank ${stateClass(standing)}`, role: 'listitem', title},
    el('span', {}, `${rank.rank} ${rank.node} ${standing}`), el('span', {class: 'dim'}, about));
}

// Returns {box, show(generation)}.
export function rankGrid() {
  const head = el('h2', {}), about = el('p', {id: 'ranks-outline'});
  let columns = 1, ranks = [];
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
  return {box, show(generation) {
    ranks = generation.ranks;
    head.textContent = `Ranks of generation ${number(generation.number)}`;
    about.textContent = outline(ranks);
    box.hidden = false;
    arrange();
  }};
}
