// What an operator does: cap, uncap, protect, trial; each with a reason, for one machine.

import * as api from './api.js';
import {h, say, visible} from './dom.js';
import {short} from './words.js';

const kinds = {
  cap: {title: n => `Cap ${n}`, about: 'Its CPU time is limited for a time. The cap ends by itself.', rate: '0.1', lasts: '10m', why: inc => `incident ${inc.id}`},
  trial: {title: n => `Try whether ${n} is the cause`, about: 'It is capped for two minutes. If the victim recovers meanwhile, the incident says so.', rate: '0.1', lasts: '2m', why: inc => `trial: does it hurt ${short(inc.victim)}?`},
  uncap: {title: n => `Uncap ${n}`, about: 'Its caps end now.', why: () => ''},
  protect: {title: n => `Protect ${n}`, about: 'Other tasks may be capped when it suffers.', why: () => ''},
  unprotect: {title: n => `Do not act for ${n}`, about: 'No task is capped when it suffers.', why: () => ''},
};

/** act asks for the details of a command and sends it. */
export function act({kind, inc, task, context}) {
  const k = kinds[kind];
  const suspect = [...(inc.suspects || []), inc.victim, ...(inc.rounds || []).map(r => r.suspect)].find(t => t.task === task) || {task};
  const input = (id, label, value, more) => [h('label', {for: id}, label), h('input', {id, name: id, value, required: true, autocomplete: 'off', ...more})];
  const result = h('p.result', {role: 'alert'});
  const send = h('button.primary', {type: 'submit'}, 'Send');
  const form = h('form', {onsubmit: async e => {
    e.preventDefault();
    const value = name => form.elements.namedItem(name)?.value.trim();
    const target = {task};
    const body = {machine: inc.machine, why: value('why')};
    // A cap that names the incident is judged by its victim.
    if (kind === 'cap' || kind === 'trial') body.cap = {...target, rate: Number(value('rate')), for: value('for'), ...(inc.id && !inc.closed && {incident: inc.id})};
    else body[kind] = target;
    send.disabled = true;
    result.className = 'result';
    result.textContent = 'Sending …';
    try {
      const answer = await api.post('/v1/commands', body);
      const silent = {message: 'no answer: nothing is done yet; it holds there from when the machine comes back'};
      const reply = answer.replies[0] || silent;
      const refused = reply.refused?.length ? ` Refused: ${reply.refused.join('; ')}` : '';
      result.classList.add(refused || reply === silent ? 'bad' : 'good');
      result.textContent = `${visible(inc.machine)}: ${visible(reply.message || 'done')}.${visible(refused)}`;
      cancel.textContent = 'Close';
      send.hidden = true;
      say(result.textContent);
      context.reload();
    } catch (err) {
      result.classList.add('bad');
      result.textContent = `Refused: ${visible(err.message)}${err.remedy ? '. ' + visible(err.remedy) : ''}.`;
      send.disabled = false;
    }
  }},
  h('p', null, k.about),
  h('dl', null, h('div.fact', null, h('dt', null, 'Task'), h('dd', null, h('code', null, visible(task)))), h('div.fact', null, h('dt', null, 'Machine'), h('dd', null, visible(inc.machine)))),
  k.rate && [input('rate', 'CPU rate, in CPUs', k.rate, {type: 'number', min: '0.001', max: '1024', step: '0.001'}), input('for', 'For, such as 90s, 10m, 2h', k.lasts, {pattern: '([0-9.]+(ms|s|m|h|d|w))+'})],
  input('why', 'Reason, for the audit log', k.why(inc), {maxlength: 1000}),
  context.caller?.scope === 'viewer' && h('p.note', null, 'This token may only read: the server will refuse. An operator’s token may act.'),
  result);
  const cancel = h('button', {type: 'button', onclick: () => d.close()}, 'Cancel');
  form.append(h('div.buttons', null, cancel, send));
  const d = h('dialog', {'aria-labelledby': 'act-title', onclose: () => d.remove()}, h('h2', {id: 'act-title'}, k.title(short(suspect))), form);
  document.body.append(d);
  d.showModal();
  form.elements.namedItem('why').focus();
}
