// Pictures of a plan and of what ranks really did: who owns what, and the time lines of a step.
import {el, bytes, number, table} from './dom.js';
import {call, get} from './http.js';

// Hues far apart for neighbors.
const hue = (i) => `hsl(${(i * 137.5) % 360} 60% 55%)`;

// Owned stretches of a unit's flat buffer: [{shard, length}], in order. `owner` has the number, in the table, of each
// shard of the unit's stage and tensor share (OwnerAt in strategies/schedule/mesh.h).
function stretches(unit, owner) {
  if (unit.boundaries.length > 1) {
    const at = unit.boundaries.map(Number);
    return at.slice(1).map((end, i) => ({shard: owner(i), length: end - at[i]})).filter((s) => s.length > 0);
  }
  return unit.pieces.flatMap((piece) => piece.extents.map((e) => ({shard: e.shard, length: Number(e.length)})));
}

// A canvas of rows with boxes: rows is [{label, boxes: [{begin, end, color, title}]}], in units of `extent`; the boxes of
// a row in their order. The mouse and the arrow keys choose a box, whose title is written below, after the row's name (its
// label if it has none).
function rowsPicture(id, label, rows, extent) {
  const ROW = 18, LEFT = 150;
  const canvas = el('canvas', {id, role: 'application', 'aria-label': `${label}; use the arrow keys to read its boxes`, tabindex: '0', 'data-rows': rows.length,
    'data-boxes': rows.reduce((sum, row) => sum + row.boxes.length, 0)});
  const says = el('p', {class: 'dim says', role: 'status'}, ' ');
  const box = el('div', {class: 'scroll'}, canvas, says);
  let chosen = null;  // {row, at}: indexes
  const draw = () => {
    const width = Math.max(320, Math.min(1200, box.clientWidth || 800)), height = rows.length * ROW, scale = devicePixelRatio || 1;
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.style.width = width + 'px';
    canvas.style.height = height + 'px';
    const to = canvas.getContext('2d');
    to.scale(scale, scale);
    to.font = '12px system-ui, sans-serif';
    const ink = getComputedStyle(document.body).color;
    to.fillStyle = ink;
    rows.forEach((row, y) => to.fillText(row.label, 0, y * ROW + 13, LEFT - 8));
    const sides = (b) => [LEFT + (width - LEFT) * b.begin / extent, LEFT + (width - LEFT) * b.end / extent];
    rows.forEach((row, y) => row.boxes.forEach((b) => {
      const [x, end] = sides(b);
      to.fillStyle = b.color;
      to.fillRect(x, y * ROW + 2, Math.max(0.5, end - x), ROW - 4);
    }));
    const b = chosen && rows[chosen.row].boxes[chosen.at];
    if (!b) return;
    const [x, end] = sides(b);
    to.strokeStyle = ink;
    to.lineWidth = 2;
    to.strokeRect(x, chosen.row * ROW + 1, Math.max(2, end - x), ROW - 2);
  };
  const choose = (row, at) => {
    chosen = {row, at};
    says.textContent = `${rows[row].name ?? rows[row].label}: ${rows[row].boxes[at]?.title ?? 'nothing'}`;
    draw();
  };
  // The box of a row that is nearest to a moment.
  const nearest = (row, when) => rows[row].boxes.reduce((best, b, i, all) =>
    Math.abs((b.begin + b.end) / 2 - when) < Math.abs((all[best].begin + all[best].end) / 2 - when) ? i : best, 0);
  canvas.addEventListener('mousemove', (event) => {
    const area = canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - area.top) / ROW), at = (event.clientX - area.left - LEFT) / (area.width - LEFT) * extent;
    const found = rows[row]?.boxes.findIndex((b) => b.begin <= at && at < b.end) ?? -1;
    if (found >= 0) choose(row, found); else says.textContent = ' ';
  });
  canvas.addEventListener('keydown', (event) => {
    const down = {ArrowDown: 1, ArrowUp: -1}[event.key] ?? 0, right = {ArrowRight: 1, ArrowLeft: -1}[event.key] ?? 0;
    if ((!down && !right) || rows.length === 0) return;
    event.preventDefault();
    if (!chosen) return choose(0, 0);
    const row = Math.min(rows.length - 1, Math.max(0, chosen.row + down)), b = rows[chosen.row].boxes[chosen.at];
    choose(row, down ? nearest(row, b ? (b.begin + b.end) / 2 : 0) : Math.min(rows[row].boxes.length - 1, Math.max(0, chosen.at + right)));
  });
  new ResizeObserver(draw).observe(box);
  return box;
}

// Each unit is a row as long as its elements, in the colors of the shards that own them.
function ownership(table) {
  const tensor = table.tensor || 1, each = table.shards / (table.stages || 1) / tensor;
  let longest = 1;
  const rows = table.units.map((unit) => {
    let at = 0;
    const label = tensor > 1 ? `${unit.unit} tensor ${unit.tensor}` : unit.unit;
    const boxes = stretches(unit, (i) => (unit.stage * each + i) * tensor + unit.tensor).map(({shard, length}) => {
      const begin = at;
      at += length;
      return {begin, end: at, color: hue(shard), title: `shard ${shard} owns ${number(length)} elements, from element ${number(begin)}`};
    });
    longest = Math.max(longest, at);
    return {label, boxes};
  });
  return rowsPicture('ownership', `which of ${table.shards} shards owns what of ${rows.length} units`, rows, longest);
}

// The same color for all ops of a kind, in plans and in traces.
function colorOf(op) {
  const [kind] = op.split(' ');
  let code = 0;
  for (const c of kind) code = (code * 31 + c.charCodeAt(0)) % 997;
  return hue(code);
}

// A step of each stage and stream, as planned.
function timeline(ops) {
  const rows = new Map();
  let last = 1e-9;
  for (const op of ops) {
    const label = `stage ${op.stage} ${op.stream}`;
    if (!rows.has(label)) rows.set(label, {label, boxes: []});
    rows.get(label).boxes.push({begin: op.begin_seconds, end: op.end_seconds, color: colorOf(op.op),
      title: `${op.op}: ${number(1000 * op.begin_seconds)} to ${number(1000 * op.end_seconds)} ms`});
    last = Math.max(last, op.end_seconds);
  }
  return rowsPicture('timeline', `a planned step of ${number(1000 * last)} ms`, [...rows.values()], last);
}

// A time as protobuf writes it, "2026-01-31T12:00:00.123456789Z": whole seconds since 1970, and nanoseconds.
function momentOf(text) {
  const [, whole, fraction] = /^([^.Z]*)(?:\.(\d+))?Z$/.exec(text) ?? [null, text, ''];
  return {seconds: Date.parse(whole + 'Z') / 1000, nanoseconds: Number((fraction ?? '').padEnd(9, '0'))};
}

// Spans of a lane in as many rows as are needed for none to overlap another: [[span]], each row in the order of time.
function apart(spans) {
  const rows = [], end = (span) => Number(span.begin) + Number(span.nanoseconds);
  const order = [...spans].sort((a, b) => a.begin - b.begin || b.nanoseconds - a.nanoseconds);
  for (const span of order) {
    const row = rows.find((row) => end(row.at(-1)) <= Number(span.begin));
    if (row) row.push(span); else rows.push([span]);
  }
  return rows;
}

// What each rank did in the steps of a trace (proto/trace.proto): a row for each of its lanes, and more where spans of
// a lane overlap.
function traced(ranks) {
  const steps = ranks.flatMap(({steps: of}) => of.map((step) => momentOf(step.begin)));
  const zero = steps.reduce((least, at) => Math.min(least, at.seconds), Infinity);
  const since = (begin) => { const at = momentOf(begin); return 1000 * (at.seconds - zero) + at.nanoseconds / 1e6; };
  const first = ranks.flatMap(({steps: of}) => of.map((step) => since(step.begin))).reduce((a, b) => Math.min(a, b), Infinity);
  const rows = [];
  let last = 1e-9;
  for (const rank of ranks) {
    const lanes = new Map();  // rows, by lane
    for (const step of rank.steps) {
      const begin = since(step.begin) - first;
      const boxOf = (span) => {
        const from = begin + Number(span.begin) / 1e6, to = from + Number(span.nanoseconds) / 1e6, op = step.names[span.name] ?? '';
        last = Math.max(last, to);
        return {begin: from, end: to, color: colorOf(op), title: `step ${step.step}, ${op}: ${number(to - from)} ms, from ${number(from)} ms`};
      };
      for (const lane of new Set(step.spans.map((span) => span.lane))) {
        if (!lanes.has(lane)) lanes.set(lane, []);
        const its = lanes.get(lane);
        apart(step.spans.filter((span) => span.lane === lane)).forEach((spans, i) => {
          const text = lane.replace('LANE_', '').toLowerCase().replaceAll('_', ' ') + (i > 0 ? ` (${i + 1})` : '');
          its[i] ??= {label: `rank ${rank.rank} ${text}`, name: `${rank.name} ${text}`, boxes: []};
          its[i].boxes.push(...spans.map(boxOf));
        });
      }
    }
    rows.push(...[...lanes.values()].flat());
  }
  return rowsPicture('traced', `${ranks.length} ranks, ${number(last)} ms`, rows, last);
}

// What is planned for a job, and a trace of its ranks, each made when it is asked for.
export function plannedParts(id) {
  const plan = el('details', {id: 'plan'}, el('summary', {}, 'Plan: ownership of tensors, and one step'));
  plan.addEventListener('toggle', async () => {
    if (!plan.open || plan.childElementCount > 1) return;
    const wait = el('p', {class: 'dim'}, 'planning');
    plan.append(wait);
    try {
      const reply = await get(`jobs/${id}/plan`);
      wait.replaceWith(...reply.table ? [el('h3', {}, 'Ownership of tensors'), ownership(reply.table), ...reply.placement.map((line) => el('p', {class: 'dim'}, line))] :
        [el('p', {class: 'dim'}, 'The partition table is too large to show here. To draw it, run muster plan -o svg.')],
      ...reply.ops.length > 0 ? [el('h3', {}, 'A step, as planned'), timeline(reply.ops)] : [], table(RANK_HEADS, rankRows(reply.ranks.slice(0, 1000))));
    } catch (error) {
      wait.textContent = error.message;
    }
  });
  const steps = el('input', {type: 'number', min: '1', max: '20', value: '1', id: 'trace-steps'});
  const ranks = el('input', {placeholder: 'the first eight', id: 'trace-ranks', pattern: '[0-9, ]*'});
  const record = el('button', {}, 'Record'), says = el('p', {class: 'dim', id: 'trace-says', role: 'status'}), picture = el('div', {});
  const form = el('form', {onsubmit: async (event) => {
    event.preventDefault();
    record.disabled = true;
    says.textContent = 'recording the next steps ...';
    try {
      const reply = await call('POST', `jobs/${id}/trace`, {steps: Number(steps.value), ranks: (ranks.value.match(/\d+/g) ?? []).map(Number), wait: '60s'});
      picture.replaceChildren(reply.ranks.length > 0 ? traced(reply.ranks) : '');
      says.textContent = `generation ${reply.generation}` + (reply.missing.length > 0 ? `; ranks ${reply.missing.join(', ')} have not reported yet: record again` : '') +
        '. The times of each rank are by the clock of its node. For Perfetto, run muster trace --save FILE.';
    } catch (error) {
      says.textContent = error.message;
    }
    record.disabled = false;
  }}, el('label', {}, 'steps ', steps), el('label', {}, 'ranks ', ranks), record);
  const trace = el('details', {id: 'trace'}, el('summary', {}, 'Trace: the ops of each rank in a step'), form, says, picture);
  return [plan, trace];
}

const rankRows = (ranks) => ranks.map((rank) => [rank.rank, rank.node, rank.stage, rank.shard, rank.replica, rank.context, rank.tensor,
  bytes(rank.parameter_bytes), bytes(rank.optimizer_bytes), bytes(rank.activation_bytes), bytes(rank.peak_bytes)].map(String));
const RANK_HEADS = ['rank', 'node', 'stage', 'shard', 'replica', 'context', 'tensor', 'parameters', 'optimizer', 'activations', 'peak'];
