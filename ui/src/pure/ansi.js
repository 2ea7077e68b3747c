// Splits a line of output into spans of text with a colour. Output is text, never markup: every other sequence is
// removed, and characters that reorder text or are invisible are shown by their number.

/**
 * @typedef {{ text: string, style: string }} Span
 */

const ESCAPE = /\x1b(?:\[([0-9;:?<=>]*)[ -/]*([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\|$)|[PX^_][^\x1b]*(?:\x1b\\|$)|[ -/]*[0-~]?)/g;
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

/** @param {string} text */
function visible(text) {
  return text.replace(HIDDEN, (sign) => {
    const code = sign.charCodeAt(0);
    return code === 0x0d ? '' : `<U+${code.toString(16).toUpperCase().padStart(4, '0')}>`;
  });
}

/**
 * @param {{ colour: number, bold: boolean }} state
 * @param {string} codes
 */
function apply(state, codes) {
  const numbers = codes === '' ? [0] : codes.split(/[;:]/).map(Number);
  for (let at = 0; at < numbers.length; at++) {
    const code = numbers[at];
    if (code === 0) Object.assign(state, { colour: -1, bold: false });
    else if (code === 1) state.bold = true;
    else if (code === 22) state.bold = false;
    else if (code >= 30 && code <= 37) state.colour = code - 30;
    else if (code >= 90 && code <= 97) state.colour = code - 90;
    else if (code === 39) state.colour = -1;
    else if (code === 38 || code === 48) {
      const skipped = numbers[at + 1] === 5 ? 2 : numbers[at + 1] === 2 ? 4 : 0;
      const chosen = numbers[at + 2];
      if (code === 38 && skipped === 2 && chosen < 16) state.colour = chosen % 8;
      at += skipped;
    }
  }
}

/**
 * @param {string} line
 * @returns {Span[]}
 */
export function spans(line) {
  if (!line.includes('\x1b')) return [{ text: visible(line), style: '' }];
  /** @type {Span[]} */
  const found = [];
  const state = { colour: -1, bold: false };
  /** @param {string} text */
  const add = (text) => {
    if (text === '') return;
    const style = [state.colour >= 0 ? `c${state.colour}` : '', state.bold ? 'b' : ''].filter(Boolean).join(' ');
    const last = found.at(-1);
    if (last && last.style === style) last.text += visible(text);
    else found.push({ text: visible(text), style });
  };
  let from = 0;
  for (const match of line.matchAll(ESCAPE)) {
    add(line.slice(from, match.index));
    if (match[2] === 'm' && !/[?<=>]/.test(match[1])) apply(state, match[1]);
    from = match.index + match[0].length;
  }
  add(line.slice(from));
  return found;
}
