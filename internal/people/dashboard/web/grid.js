// A table that sorts and, if it is long, draws only the rows that can be seen.

import {count, h, say, swap} from './dom.js';

const few = 60; // up to so many rows all are drawn
const spare = 12; // rows that are drawn above and below the visible ones

/** Grid shows rows. Columns: {key, label, cell(row), sort(row), num, drop, title}; drop is the
 * width from which on the column is shown: 'wide' or 'medium'. */
export class Grid {
  constructor({label, columns, sort, descending = true, empty, of}) {
    Object.assign(this, {label, columns, key: sort, descending, empty, of});
    this.rows = [];
    this.heads = columns.map(c => h('th', {scope: 'col', class: [c.num && 'num', c.drop].filter(Boolean).join(' '), title: c.title},
      c.sort ? h('button', {type: 'button', 'data-key': 'sort-' + c.key, onclick: () => this.sortBy(c.key)}, c.label, h('span.arrow', {'aria-hidden': 'true'})) : c.label));
    this.body = h('tbody');
    this.table = h('table', {'aria-label': label}, h('thead', null, h('tr', null, this.heads)), this.body);
    this.box = h('div.grid', {role: 'region', 'aria-label': label, onscroll: () => this.later()}, this.table);
    this.element = this.box;
    new ResizeObserver(() => this.later()).observe(this.box);
  }

  sortBy(key) {
    this.descending = this.key === key ? !this.descending : this.columns.find(c => c.key === key).num === true;
    this.key = key;
    this.box.scrollTop = 0;
    this.set(this.rows);
    say(`Sorted by ${this.columns.find(c => c.key === key).label}, ${this.descending ? 'highest first' : 'lowest first'}`);
    this.onsort?.(this.key, this.descending);
  }

  set(rows, empty) {
    const by = this.columns.find(c => c.key === this.key);
    const order = this.descending ? -1 : 1;
    const keyed = rows.map((row, i) => [by ? by.sort(row) : 0, i, row]);
    keyed.sort(([a, i], [b, j]) => {
      const none = (a === undefined) - (b === undefined); // what has no value comes last
      return none || (a < b ? -order : a > b ? order : i - j);
    });
    this.rows = keyed.map(k => k[2]);
    this.columns.forEach((c, i) => {
      const sorted = c.key === this.key;
      if (c.sort) this.heads[i].setAttribute('aria-sort', sorted ? this.descending ? 'descending' : 'ascending' : 'none');
    });
    this.box.classList.toggle('long', this.rows.length > few);
    if (this.rows.length > few) this.box.tabIndex = 0; // it scrolls, also by keyboard
    else this.box.removeAttribute('tabindex');
    this.table.setAttribute('aria-rowcount', this.rows.length + 1);
    this.table.hidden = this.rows.length === 0;
    this.note?.remove();
    if (this.rows.length === 0) this.box.append(this.note = h('p.state', null, empty || this.empty || 'Nothing here.'));
    this.drawn = undefined;
    this.draw();
  }

  later() {
    this.frame ||= requestAnimationFrame(() => { this.frame = 0; this.draw(); });
  }

  draw() {
    const n = this.rows.length;
    let from = 0, to = n;
    const height = this.height();
    if (n > few) {
      const view = this.box.clientHeight || 600;
      from = Math.max(0, Math.floor(this.box.scrollTop / height) - spare);
      to = Math.min(n, Math.ceil((this.box.scrollTop + view) / height) + spare);
    }
    const drawn = `${from} ${to}`;
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const gap = size => size > 0 && h('tr.gap', {'aria-hidden': 'true'}, h('td', {colspan: this.columns.length, css: {height: `${size}px`}}));
    const lines = [];
    for (let i = from; i < to; i++) {
      const row = this.rows[i];
      lines.push(h('tr', {'aria-rowindex': i + 2, class: this.of?.(row)}, this.columns.map(c =>
        h('td', {class: [c.num && 'num', c.drop].filter(Boolean).join(' ')}, c.cell(row)))));
    }
    swap(this.body, gap(from * height), lines, gap((n - to) * height));
  }

  height() {
    this.rowHeight ||= parseFloat(getComputedStyle(this.box).getPropertyValue('--row')) || 32;
    return this.rowHeight;
  }
}

/** counted says how many rows of all are shown. */
export const counted = (shown, all, what) => shown === all ? `${count(all)} ${what}` : `${count(shown)} of ${count(all)} ${what}`;
