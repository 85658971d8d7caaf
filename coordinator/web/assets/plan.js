// Pictures of a plan: who owns what, and the time line of a step.
import {el, bytes, number} from './dom.js';

// Hues far apart for neighbors.
const hue = (i) => `hsl(${(i * 137.5) % 360} 60% 55%)`;

// Owned stretches of a unit's flat buffer: [{shard, length}], in order.
function stretches(unit, firstShard) {
  if (unit.boundaries.length > 1) {
    const at = unit.boundaries.map(Number);
    return at.slice(1).map((end, i) => ({shard: firstShard + i, length: end - at[i]})).filter((s) => s.length > 0);
  }
  return unit.pieces.flatMap((piece) => piece.extents.map((e) => ({shard: e.shard, length: Number(e.length)})));
}

// A canvas of rows with boxes: rows is [{label, boxes: [{begin, end, color, title}]}], in units of `extent`.
function rowsPicture(id, label, rows, extent) {
  const ROW = 18, LEFT = 150;
  const canvas = el('canvas', {id, role: 'img', 'aria-label': label, tabindex: '0'});
  const says = el('p', {class: 'dim', role: 'status'}, ' ');
  const box = el('div', {class: 'scroll'}, canvas, says);
  const draw = () => {
    const width = Math.max(320, Math.min(1200, box.clientWidth || 800)), height = rows.length * ROW, scale = devicePixelRatio || 1;
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.style.width = width + 'px';
    canvas.style.height = height + 'px';
    const to = canvas.getContext('2d');
    to.scale(scale, scale);
    to.font = '12px system-ui, sans-serif';
    to.fillStyle = getComputedStyle(document.body).color;
    rows.forEach((row, y) => to.fillText(row.label, 0, y * ROW + 13, LEFT - 8));
    rows.forEach((row, y) => row.boxes.forEach((b) => {
      const x = LEFT + (width - LEFT) * b.begin / extent, end = LEFT + (width - LEFT) * b.end / extent;
      to.fillStyle = b.color;
      to.fillRect(x, y * ROW + 2, Math.max(0.5, end - x), ROW - 4);
    }));
  };
  canvas.addEventListener('mousemove', (event) => {
    const area = canvas.getBoundingClientRect();
    const row = rows[Math.floor((event.clientY - area.top) / ROW)], at = (event.clientX - area.left - LEFT) / (area.width - LEFT) * extent;
    says.textContent = row?.boxes.find((b) => b.begin <= at && at < b.end)?.title ?? ' ';
  });
  new ResizeObserver(draw).observe(box);
  return box;
}

// Each unit is a row as long as its elements, in the colors of the shards that own them.
export function ownership(table) {
  const stages = table.stages || 1, each = table.shards / stages;
  let longest = 1;
  const rows = table.units.map((unit) => {
    let at = 0;
    const boxes = stretches(unit, unit.stage * each).map(({shard, length}) => {
      const begin = at;
      at += length;
      return {begin, end: at, color: hue(shard), title: `${unit.unit}: shard ${shard} owns ${number(length)} elements from ${number(begin)} on`};
    });
    longest = Math.max(longest, at);
    return {label: unit.unit, boxes};
  });
  return rowsPicture('ownership', `which of ${table.shards} shards owns what of ${rows.length} units`, rows, longest);
}

// A step of each stage and stream, as planned.
export function timeline(ops) {
  const rows = new Map();
  let last = 1e-9;
  for (const op of ops) {
    const label = `stage ${op.stage} ${op.stream}`;
    if (!rows.has(label)) rows.set(label, {label, boxes: []});
    const [kind] = op.op.split(' ');
    let code = 0;
    for (const c of kind) code = (code * 31 + c.charCodeAt(0)) % 997;
    rows.get(label).boxes.push({begin: op.begin_seconds, end: op.end_seconds, color: hue(code),
      title: `${op.op}: ${number(1000 * op.begin_seconds)} to ${number(1000 * op.end_seconds)} ms`});
    last = Math.max(last, op.end_seconds);
  }
  return rowsPicture('timeline', `a planned step of ${number(1000 * last)} ms`, [...rows.values()], last);
}

export const rankRows = (ranks) => ranks.map((rank) => [rank.rank, rank.node, rank.stage, rank.shard, rank.replica, rank.tensor,
  bytes(rank.parameter_bytes), bytes(rank.optimizer_bytes), bytes(rank.activation_bytes), bytes(rank.peak_bytes)].map(String));
export const RANK_HEADS = ['rank', 'node', 'stage', 'shard', 'replica', 'tensor', 'parameters', 'optimizer', 'activations', 'peak'];
