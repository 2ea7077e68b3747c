import assert from 'node:assert/strict';
import { test } from 'node:test';
import { spans } from '../src/pure/ansi.js';
import { command } from '../src/pure/command.js';
import { clock, counted, duration, short } from '../src/pure/format.js';
import { mostUrgent, nextBad, rowsIn } from '../src/pure/matrix.js';
import { address, route } from '../src/pure/route.js';
import { backoff, SseReader } from '../src/pure/sse.js';

test('a stream is read alike wherever it is cut', () => {
  const text = ': hello\n\nevent: frame\nid: 7\ndata: {"a":1}\n\nevent: gap\r\ndata: x\r\ndata:y\r\nid: 9\r\n\r\ndata: cut';
  const whole = new SseReader().read(text);
  assert.deepEqual(whole, [
    { event: 'frame', data: '{"a":1}', id: '7' },
    { event: 'gap', data: 'x\ny', id: '9' },
  ]);
  for (let at = 0; at < text.length; at++) {
    const reader = new SseReader();
    assert.deepEqual([...reader.read(text.slice(0, at)), ...reader.read(text.slice(at))], whole, `cut at ${at}`);
  }
});

test('attempts to connect are apart by half a second to fifteen', () => {
  assert.deepEqual([1, 2, 3, 6, 50].map((failures) => backoff(failures, 1)), [500, 1000, 2000, 15_000, 15_000]);
  assert.equal(backoff(1, 0), 375);
});

test('colours become styles and every other sequence disappears', () => {
  assert.deepEqual(spans('a\x1b[1;31mred\x1b[0m b'), [
    { text: 'a', style: '' },
    { text: 'red', style: 'c1 b' },
    { text: ' b', style: '' },
  ]);
  for (const sequence of ['\x1b[2J', '\x1b]0;title\x07', '\x1b]8;;http://evil\x1b\\', '\x1bP1q#\x1b\\', '\x1b[?25l', '\x1bc', '\x1b[38;5;200m', '\x1b[48;2;1;2;3m']) {
    assert.equal(spans(`x${sequence}y`).map((span) => span.text).join(''), 'xy', JSON.stringify(sequence));
  }
});

test('invisible characters are shown and markup stays text', () => {
  assert.equal(spans('a\u202eb\u0000')[0].text, 'a<U+202E>b<U+0000>');
  assert.equal(spans('<script>alert(1)</script>\r')[0].text, '<script>alert(1)</script>');
  assert.equal(spans('\x1b[31m\u2066')[0].text, '<U+2066>');
});

test('durations have two units', () => {
  const table = { 0: '0 ms', 999: '999 ms', 1500: '1.5 s', 59_000: '59 s', 60_000: '1 m', 252_000: '4 m 12 s', 7_260_000: '2 h 1 m', 200_000_000: '2 d' };
  for (const [ms, text] of Object.entries(table)) assert.equal(duration(Number(ms)), text);
  assert.equal(duration(NaN), '0 s');
});

test('numbers are grouped and times of another day have their date', () => {
  assert.equal(counted(1, 'node'), '1 node');
  assert.equal(counted(9000, 'node'), '9,000 nodes');
  const now = new Date(2026, 0, 2, 12).getTime();
  assert.equal(clock(new Date(2026, 0, 2, 3, 4, 5).toISOString(), now), '03:04:05');
  assert.equal(clock(new Date(2026, 0, 1, 3, 4, 5).toISOString(), now), '2026-01-01 03:04');
  assert.equal(short('01a1eec5-4d57-7000-84dd-82f92d738a89'), '01a1eec58a89');
  assert.equal(short('nightly'), 'nightly');
});

test('names are quoted for the shell', () => {
  assert.equal(command('run', 'cancel', 'a-1'), 'downbeat run cancel a-1');
  assert.equal(command('node', 'drain', "it's; rm -rf $HOME"), "downbeat node drain 'it'\\''s; rm -rf $HOME'");
  assert.equal(command('x', ''), "downbeat x ''");
});

test('the next failure is found in both directions and around the end', () => {
  const cells = ['ss', 'fs', 'ss', 'sx'];
  assert.equal(nextBad(cells, 0, 1), 1);
  assert.equal(nextBad(cells, 1, 1), 3);
  assert.equal(nextBad(cells, 3, 1), 1);
  assert.equal(nextBad(cells, 1, -1), 3);
  assert.equal(nextBad(cells, -1, 1), 1);
  assert.equal(nextBad(['s'], 0, 1), -1);
  assert.equal(nextBad([], 0, 1), -1);
  assert.equal(mostUrgent('ssxf'), 3);
});

test('only rows of the window are drawn', () => {
  assert.deepEqual(rowsIn(0, 220, 22, 9000), { first: 0, end: 11 });
  assert.deepEqual(rowsIn(2200, 220, 22, 9000), { first: 99, end: 111 });
  assert.deepEqual(rowsIn(0, 220, 22, 3), { first: 0, end: 3 });
});

test('addresses lead to pages and back', () => {
  assert.deepEqual(route('/ui/'), { page: 'overview', id: '', tab: '' });
  assert.deepEqual(route('/ui/runs/a%2Fb/log'), { page: 'runs', id: 'a/b', tab: 'log' });
  assert.equal(route('/ui/nowhere').page, 'unknown');
  assert.equal(route('/ui/nodes/%E0%A4').id, '%E0%A4');
  assert.equal(address(['nodes', 'a/b'], { q: 'x y', none: '' }), '/ui/nodes/a%2Fb?q=x+y');
  assert.equal(address([]), '/ui/');
});
