// Which page an address means.

/** @typedef {{ page: string, id: string, tab: string }} Route */

const LISTS = ['runs', 'jobs', 'nodes', 'clusters', 'events', 'servers'];

/**
 * @param {string} pathname
 * @returns {Route}
 */
export function route(pathname) {
  const parts = pathname.replace(/^\/ui\/?/, '').split('/').filter(Boolean).map(decoded);
  const [page = 'overview', id = '', tab = ''] = parts;
  if (parts.length === 0) return { page: 'overview', id: '', tab: '' };
  const known = LISTS.includes(page) && parts.length <= 3 && (id === '' || !['events', 'servers'].includes(page));
  return known ? { page, id, tab } : { page: 'unknown', id: pathname, tab: '' };
}

/** @param {string} part */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/**
 * Returns an address of the UI.
 * @param {string[]} parts
 * @param {Record<string, string | null | undefined>} [query]
 */
export function address(parts, query = {}) {
  const wanted = Object.entries(query).filter(([, value]) => value);
  const text = new URLSearchParams(wanted.map(([name, value]) => [name, String(value)])).toString();
  return `/ui/${parts.map(encodeURIComponent).join('/')}${text ? `?${text}` : ''}`;
}
