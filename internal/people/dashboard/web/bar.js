// A share of the threshold as a bar.

import {h, percent} from './dom.js';
import {levelOf} from './words.js';

/** bar shows a share of the threshold as text and as a bar; the threshold is in its middle. */
export const bar = x => h('span', {class: `meter ${levelOf(x)}`}, h('span.track', null, h('i', {css: {width: `${Math.min(100, x * 50)}%`}})), h('span', null, x > 9.995 ? '> 999 %' : percent(x)));
