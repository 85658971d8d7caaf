// Elements. Text is always a text node, so what a job or a log says is never read as HTML.
export function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, '');
    else if (value !== false && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ''));
  return element;
}

export function table(heads, rows) {
  return el('div', {class: 'scroll'}, el('table', {},
    el('thead', {}, el('tr', {}, heads.map((head) => el('th', {scope: 'col'}, head)))),
    el('tbody', {}, rows.map((row) => el('tr', {}, row.map((cell) => el('td', {}, cell)))))));
}

const FOCUSABLE = 'a, button, input';

// A list of any length with only the rows in sight, and a screen more on either side, in the document. A row whose item
// says the same as before stays the element that it was, and the focus stays where it is when a row is drawn anew.
// `key`: of an item, unlike all others. `kind`: a further class of the box.
export function windowed(rowHeight, draw, key, label, kind = '') {
  const space = el('div', {});
  const box = el('div', {class: ('rows ' + kind).trim(), tabindex: '0', role: 'list', 'aria-label': label}, space);
  let items = [], rows = new Map();  // by key: {text, element}
  const update = () => {
    space.style.height = items.length * rowHeight + 'px';
    const height = box.clientHeight || 600;
    const begin = Math.max(0, Math.floor((box.scrollTop - height) / rowHeight));
    const end = Math.min(items.length, Math.ceil((box.scrollTop + 2 * height) / rowHeight));
    const focused = box.contains(document.activeElement) ? document.activeElement : null;
    const next = new Map();
    let focus = focused;
    for (let i = begin; i < end; ++i) {
      const id = key(items[i]), text = JSON.stringify(items[i]), known = rows.get(id);
      const element = known?.text === text ? known.element : draw(items[i]);
      if (focused && known && element !== known.element && known.element.contains(focused)) {
        focus = element.querySelectorAll(FOCUSABLE)[[...known.element.querySelectorAll(FOCUSABLE)].indexOf(focused)];
      }
      element.style.top = i * rowHeight + 'px';
      next.set(id, {text, element});
    }
    for (const [id, {element}] of rows) if (next.get(id)?.element !== element) element.remove();
    rows = next;
    let at = space.firstChild;
    for (const {element} of next.values()) {
      if (element === at) at = at.nextSibling; else space.insertBefore(element, at);
    }
    if (focus && focus !== document.activeElement) focus.focus({preventScroll: true});
  };
  box.addEventListener('scroll', () => requestAnimationFrame(update));
  new ResizeObserver(update).observe(box);
  return {box, show: (list) => { items = list; update(); }};
}

export const name = (value) => (value ?? '').replace(/^(JOB|NODE|SLOT|RANK|GENERATION|RESERVATION)_STATE_|^END_REASON_/, '').toLowerCase();
export const stateClass = (state) => ({running: 'good', completed: 'good', live: 'good', used: 'good', active: 'good', failed: 'bad', lost: 'bad',
  stuck: 'bad', queued: 'wait', starting: 'wait', stopping: 'wait', paused: 'wait', away: 'wait', inactive: 'wait'}[state] ?? 'dim');
export const state = (value) => el('span', {class: stateClass(name(value))}, name(value));
export const number = (value) => value === undefined ? '' : Number(value).toLocaleString('en', {maximumSignificantDigits: 5});
export function bytes(value) {
  let size = Number(value), unit = 0;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  while (size >= 1024 && unit < units.length - 1) { size /= 1024; ++unit; }
  return `${number(Number(size.toPrecision(3)))} ${units[unit]}`;
}
export const time = (text) => text ? new Date(text).toLocaleString() : '';
