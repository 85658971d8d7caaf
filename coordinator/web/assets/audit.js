import {el, table, time} from './dom.js';
import {get} from './http.js';

// Who changed what, and who was refused. The address has the filter, so that a view can be shared.
export async function auditPage(view) {
  const query = new URLSearchParams(location.search);
  const field = (name, hint) => el('input', {type: 'search', name, placeholder: hint, 'aria-label': name, value: query.get(name) ?? ''});
  const fields = [field('user', 'user'), field('method', 'method: Cancel, Nodes'), field('object', 'object: job/gpt2, node/')];
  const rows = el('div', {id: 'audit'}), more = el('button', {id: 'more', hidden: true}, 'Older');
  const body = () => rows.querySelector('tbody');
  let page = '', entries = 0;
  async function load() {
    const ask = new URLSearchParams({limit: 200, page});
    for (const input of fields) if (input.value) ask.set(input.name, input.value);
    // A reply may have no entry that fits, and more after it.
    do {
      ask.set('page', page);
      const reply = await get('audit?' + ask);
      const next = table(['time', 'user', 'role', 'token', 'from', 'method', 'object', 'outcome'], reply.entries.map((e) => [time(e.time), e.user, e.role,
        e.token_id, e.peer, e.method, e.object, el('span', {class: e.code === 'OK' ? '' : 'bad'},
          [e.code, e.message, e.details.join(', '), Number(e.left_out) > 0 ? `${e.left_out} earlier calls of this user are not listed: they changed nothing, and exceeded the limit of entries a minute` : ''].filter((t) => t).join(': '))]));
      if (body()) body().append(...next.querySelectorAll('tbody tr')); else rows.replaceChildren(next);
      entries += reply.entries.length;
      page = reply.next_page;
      if (reply.entries.length > 0) break;
    } while (page);
    more.hidden = !page;
  }
  more.addEventListener('click', () => load());
  const filter = el('form', {onsubmit: (event) => {
    event.preventDefault();
    for (const input of fields) if (input.value) query.set(input.name, input.value); else query.delete(input.name);
    history.replaceState(null, '', '/audit' + (query.toString() ? '?' + query : ''));
    rows.replaceChildren();
    page = '';
    load();
  }}, ...fields, el('button', {}, 'Filter'));
  view.replaceChildren(el('h1', {}, 'Audit'), filter, rows, more);
  await load();
  return () => {};
}
