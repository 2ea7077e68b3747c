// The command of the CLI that does the same as a button.

/** @param {string} word */
export function quote(word) {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

/** @param {...string} words */
export const command = (...words) => ['downbeat', ...words].map(quote).join(' ');
