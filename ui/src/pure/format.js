// Numbers, durations and times as people read them.

const GROUPED = new Intl.NumberFormat('en-US');

/** @param {number} number */
export const grouped = (number) => GROUPED.format(number);

/**
 * @param {number} count
 * @param {string} one
 * @param {string} [many]
 */
export const counted = (count, one, many = `${one}s`) => `${grouped(count)} ${count === 1 ? one : many}`;

/**
 * Formats milliseconds with the two largest units.
 * @param {number} ms
 */
export function duration(ms) {
  if (!(ms >= 0)) return '0 s';
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 10_000) return `${(Math.floor(ms / 100) / 10).toFixed(1)} s`;
  const seconds = Math.floor(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return seconds % 60 ? `${minutes} m ${seconds % 60} s` : `${minutes} m`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return minutes % 60 ? `${hours} h ${minutes % 60} m` : `${hours} h`;
  return `${Math.floor(hours / 24)} d`;
}

/**
 * @param {string | null | undefined} from
 * @param {string | number | null | undefined} to
 */
export function between(from, to) {
  if (!from || !to) return null;
  return Math.max(0, new Date(to).getTime() - new Date(from).getTime());
}

/**
 * Formats a time of day, with the date unless it is today.
 * @param {string} at
 * @param {number} now
 */
export function clock(at, now) {
  const time = new Date(at);
  const two = (/** @type {number} */ number) => String(number).padStart(2, '0');
  const day = `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())}`;
  const text = `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
  return new Date(now).toDateString() === time.toDateString() ? text : `${day} ${text.slice(0, 5)}`;
}

/** @param {string} id */
export const short = (id) => (/^[0-9a-f]{8}-/.test(id) ? id.slice(0, 8) + id.slice(-4) : id);
