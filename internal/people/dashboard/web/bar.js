// Distress as a bar.

import {h, percent} from './dom.js';
import {levelOf} from './words.js';

/** bar shows a task's share of its threshold as text and as a bar; the threshold is in its middle. */
export const bar = t => h('span', {class: `meter ${levelOf(t)}`}, h('span.track', null, h('i', {css: {width: `${Math.min(100, t.worst.x * 50)}%`}})),
  h('span', null, t.worst.x > 9.995 ? '> 999 %' : percent(t.worst.x)));
