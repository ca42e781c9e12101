// Plots over an axis, by uPlot.

import uPlot from './uplot/uPlot.esm.js';
import {clock, day, h, isUTC, number, when, zoneName} from './dom.js';

const drawn = new Set();

/** sweep frees plots whose elements are no longer in the page. */
function sweep() {
  for (const p of drawn) {
    if (p.placed && !p.element.isConnected) {
      p.sizes.disconnect();
      p.plot.destroy();
      drawn.delete(p);
    }
  }
}

/** ink is the present colour of a custom property. */
function ink(name) {
  const probe = h('i', {css: {color: `var(${name})`}});
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

const font = '11px system-ui, sans-serif';

/** chart draws series over a common x.
 *   x: times in ms (time: true) or numbers;  series: [{name, values, ink, fill, dash, bars, width}]
 *   limit: {at, name};  band: {from, to};  shades: [{from, to, ink}];  marks: [{at, name}]
 *   write: a value as text;  sync: a name, for plots whose cursors and zooms go together
 */
export function chart({title, about, x, time = true, series, limit, band, shades = [], marks = [], unit, write = number, height = 200, sync, least = 0}) {
  sweep();
  let colours = {};
  const recolour = () => {
    colours = Object.fromEntries(['--muted', '--grid', '--shade', '--red', '--band', '--ink', ...series.map(s => s.ink), ...shades.map(s => s.ink)].filter(Boolean).map(n => [n, ink(n)]));
  };
  recolour();
  const readout = h('span.readout', {'aria-hidden': 'true'});
  const place = h('div.plot');
  const element = h('figure.chart', null,
    h('figcaption', null, h('span.title', null, title), unit && h('span.unit', null, unit), readout),
    place, legend(series, limit, band, shades), table({x, time, series, write}));
  place.setAttribute('role', 'img');
  place.setAttribute('aria-label', about || title);
  let highest = Math.max(least, limit?.at || 0);
  for (const s of series) for (const v of s.values) if (v !== null && v > highest) highest = v;
  const top = (highest || 1) * 1.06;
  const axis = {stroke: () => colours['--muted'], font, grid: {stroke: () => colours['--grid'], width: 1}, ticks: {show: false}};
  const options = {
    width: 600, height, ms: 1, legend: {show: false}, padding: [6, 22, 0, 0],
    tzDate: ts => isUTC() ? uPlot.tzDate(new Date(ts), 'Etc/UTC') : new Date(ts),
    cursor: {...sync && {sync: {key: sync, scales: ['x', null]}}, y: false, points: {size: 7}, drag: {x: true, y: false, dist: 6}},
    scales: {x: {time}, y: {range: () => [0, top]}},
    axes: [
      {...axis, size: 26, gap: 4, space: 70, values: time ? (u, ticks, i, j, step) => ticks.map(t => label(t, step)) : (u, ticks) => ticks.map(v => short(write(v)))},
      {...axis, size: 62, gap: 4, space: 32, values: (u, ticks) => ticks.map(v => short(write(v)))},
    ],
    series: [{}].concat(series.map(s => ({
      label: s.name, stroke: () => colours[s.ink], fill: s.fill ? () => fade(colours[s.ink], s.bars ? 0.55 : 0.14) : undefined, width: s.width ?? 1.5, dash: s.dash,
      points: {show: !s.bars && s.points !== false && s.values.filter(v => v !== null).length < 40, size: 4}, paths: s.bars ? uPlot.paths.bars({size: [0.98, 100]}) : undefined,
    }))),
    hooks: {
      drawClear: [u => {
        for (const s of shades) rectangle(u, s.from, s.to, 0, top, fade(colours[s.ink || '--shade'], s.strong ? 0.2 : 0.12));
        if (band) rectangle(u, u.scales.x.min, u.scales.x.max, band.from, band.to, fade(colours['--band'], 0.14));
      }],
      draw: [u => {
        if (limit) line(u, [u.scales.x.min, limit.at], [u.scales.x.max, limit.at], colours['--red'], [5, 4]);
        for (const m of marks) line(u, [m.at, 0], [m.at, top], colours[m.ink || '--muted'], [2, 3], m.name);
      }],
      setCursor: [u => {
        const i = u.cursor.idx;
        readout.textContent = i === null || i === undefined ? '' : [time ? `${clock(x[i])} ${zoneName(x[i])}` : write(x[i]),
          ...series.filter(s => s.values[i] !== null && s.values[i] !== undefined).map(s => `${series.length > 1 ? s.name + ' ' : ''}${write(s.values[i])}`)].join('   ');
      }],
    },
  };
  const plot = new uPlot(options, [x, ...series.map(s => s.values)], place);
  const sizes = new ResizeObserver(() => {
    const width = place.clientWidth;
    if (width > 0 && width !== plot.width) plot.setSize({width, height});
    p.placed = true;
  });
  const p = {element, plot, sizes, placed: false, look() { recolour(); plot.redraw(true, true); }};
  sizes.observe(place);
  drawn.add(p);
  return element;
}

/** label is a time at an axis: as short as the step allows; at midnight it is the day. */
function label(t, step) {
  const [hour, minute] = clock(t).split(':');
  if (hour === '00' && minute === '00' && step >= 60_000) return day(t);
  return step >= 60_000 ? `${hour}:${minute}` : clock(t);
}

/** short leaves out zeros that say nothing: "5.00" is "5". */
const short = text => text.replace(/(\.\d*?)0+(?=\D*$)/, '$1').replace(/\.(?=\D*$)/, '');

// Plots are drawn again when the page changes between light and dark.
addEventListener('quell-look', () => drawn.forEach(p => p.look()));

const fade = (colour, share) => colour.replace(/^rgb\((.*)\)$/, `rgba($1, ${share})`);

function rectangle(u, x0, x1, y0, y1, colour) {
  const {left, top, width, height} = u.bbox;
  const a = Math.max(left, u.valToPos(x0, 'x', true)), b = Math.min(left + width, u.valToPos(x1, 'x', true));
  const c = Math.max(top, u.valToPos(y1, 'y', true)), d = Math.min(top + height, u.valToPos(y0, 'y', true));
  if (b <= a || d <= c) return;
  u.ctx.fillStyle = colour;
  u.ctx.fillRect(a, c, b - a, d - c);
}

function line(u, [x0, y0], [x1, y1], colour, dash, name) {
  const {left, top, width, height} = u.bbox, c = u.ctx, scale = devicePixelRatio;
  c.save();
  c.beginPath();
  c.rect(left, top, width, height);
  c.clip();
  c.strokeStyle = c.fillStyle = colour;
  c.lineWidth = 1.5 * scale;
  c.setLineDash(dash.map(d => d * scale));
  c.beginPath();
  c.moveTo(u.valToPos(x0, 'x', true), u.valToPos(y0, 'y', true));
  c.lineTo(u.valToPos(x1, 'x', true), u.valToPos(y1, 'y', true));
  c.stroke();
  if (name) {
    c.font = `${11 * scale}px system-ui, sans-serif`;
    c.textAlign = 'left';
    c.textBaseline = 'top';
    c.fillText(name, u.valToPos(x0, 'x', true) + 4 * scale, top + 2 * scale);
  }
  c.restore();
}

function legend(series, limit, band, shades) {
  const key = (colour, text, kind = 'line') => h('span.key', null, h(`i.${kind}`, {css: {color: `var(${colour})`}}), text);
  const named = series.filter(s => s.name && (series.length > 1 || limit));
  const kinds = new Map(shades.filter(s => s.name).map(s => [s.name, s.ink || '--shade']));
  const keys = [named.map(s => key(s.ink, s.name, s.bars ? 'area' : 'line')), limit && key('--red', limit.name, 'dash'), band && key('--band', band.name, 'area'),
    [...kinds].map(([name, colour]) => key(colour, name, 'area'))].flat().filter(Boolean);
  return keys.length > 0 && h('div.legend', null, keys);
}

/** table is the same values as text. It is made when it is opened. */
function table({x, time, series, write}) {
  const most = 400;
  const make = e => {
    if (!e.target.open || e.target.querySelector('table')) return;
    const step = Math.ceil(x.length / most);
    const rows = [];
    for (let i = 0; i < x.length; i += step) rows.push(h('tr', null, h('th', {scope: 'row'}, time ? when(x[i]) : write(x[i])), series.map(s => h('td.num', null, write(s.values[i])))));
    e.target.append(h('div.scroll', {tabindex: '0', role: 'region', 'aria-label': 'Values'}, h('table', null, h('thead', null, h('tr', null, h('th', {scope: 'col'}, time ? `Time (${zoneName()})` : 'Value'), series.map(s => h('th.num', {scope: 'col'}, s.name)))), h('tbody', null, rows))),
      step > 1 && h('p.note', null, `Every ${step}th of ${x.length} values.`));
  };
  return h('details.values', {ontoggle: make}, h('summary', null, 'Values'));
}
