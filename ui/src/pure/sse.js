// Reads a stream of server-sent events from pieces of text, wherever they are cut.

/**
 * @typedef {{ event: string, data: string, id: string | null }} Sent
 */

export class SseReader {
  #rest = '';
  #event = '';
  /** @type {string[]} */
  #data = [];
  /** @type {string | null} */
  #id = null;

  /**
   * Returns the events that this piece completes.
   * @param {string} piece
   * @returns {Sent[]}
   */
  read(piece) {
    const lines = (this.#rest + piece).split('\n');
    this.#rest = lines.pop() ?? '';
    /** @type {Sent[]} */
    const sent = [];
    for (const raw of lines) {
      const line = raw.endsWith('\r') ? raw.slice(0, -1) : raw;
      if (line === '') {
        if (this.#data.length > 0) {
          sent.push({ event: this.#event || 'message', data: this.#data.join('\n'), id: this.#id });
        }
        this.#event = '';
        this.#data = [];
        continue;
      }
      const colon = line.indexOf(':');
      if (colon === 0) continue;
      const name = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? '' : line.slice(line[colon + 1] === ' ' ? colon + 2 : colon + 1);
      if (name === 'event') this.#event = value;
      else if (name === 'data') this.#data.push(value);
      else if (name === 'id') this.#id = value;
    }
    return sent;
  }
}

/**
 * Returns how long to wait before the next attempt to connect, in milliseconds.
 * @param {number} failures how many attempts have failed in a row, from 1
 * @param {number} chance from 0 to 1
 */
export function backoff(failures, chance) {
  const whole = Math.min(15_000, 500 * 2 ** Math.min(failures - 1, 10));
  return Math.round(whole * (0.75 + 0.25 * chance));
}
