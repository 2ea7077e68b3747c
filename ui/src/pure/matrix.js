// The matrix of a run without its drawing: what each letter means, what it counts, and what is at a point.

/** @typedef {{ word: string, mark: string, rank: number }} Meaning */

/** @type {Record<string, Meaning>} */
export const LETTERS = {
  f: { word: 'failed', mark: '✕', rank: 0 },
  x: { word: 'lost', mark: '?', rank: 1 },
  c: { word: 'cancelled', mark: '⊘', rank: 2 },
  r: { word: 'running', mark: '▶', rank: 3 },
  l: { word: 'leased', mark: '◔', rank: 4 },
  p: { word: 'pending', mark: '·', rank: 5 },
  s: { word: 'succeeded', mark: '✓', rank: 6 },
  u: { word: 'reused', mark: '≡', rank: 7 },
  k: { word: 'skipped', mark: '–', rank: 8 },
  '.': { word: 'not started', mark: '', rank: 9 },
};

/** @param {string} letter @returns {Meaning} */
export const meaning = (letter) => LETTERS[letter] ?? { word: letter, mark: letter, rank: 9 };

/** @param {string} cells */
export const isBad = (cells) => cells.includes('f') || cells.includes('x');

/**
 * Returns the next row with a failure, in a direction, and around the end.
 * @param {string[]} cells
 * @param {number} from
 * @param {1 | -1} by
 */
export function nextBad(cells, from, by) {
  for (let steps = 1; steps <= cells.length; steps++) {
    const at = (from + by * steps + cells.length * (steps + 1)) % cells.length;
    if (isBad(cells[at])) return at;
  }
  return -1;
}

/**
 * Returns which rows a window shows, with one more on each side.
 * @param {number} top
 * @param {number} height
 * @param {number} row
 * @param {number} total
 */
export function rowsIn(top, height, row, total) {
  const first = Math.max(0, Math.floor(top / row) - 1);
  return { first, end: Math.min(total, Math.ceil((top + height) / row) + 1) };
}

/**
 * Returns the first column whose cell is the most urgent of a row.
 * @param {string} cells
 */
export function mostUrgent(cells) {
  let best = 0;
  for (let at = 1; at < cells.length; at++) {
    if (meaning(cells[at]).rank < meaning(cells[best]).rank) best = at;
  }
  return best;
}
