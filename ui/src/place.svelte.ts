// Where the page is: its address is the only place that holds it.
import { address, route } from './pure/route.js';

const read = () => ({ ...route(location.pathname), query: new URLSearchParams(location.search) });
export const place = $state({ at: read() });

export function go(url: string, how: 'push' | 'replace' = 'push') {
  history[how === 'push' ? 'pushState' : 'replaceState'](null, '', url);
  place.at = read();
}

/** Changes parts of the query; an empty value removes one. */
export function set(changes: Record<string, string | null>) {
  const query = Object.fromEntries(place.at.query);
  const path = location.pathname.replace(/^\/ui\/?/, '').split('/').filter(Boolean).map(decodeURIComponent);
  go(address(path, { ...query, ...changes }), 'replace');
}

export function watch() {
  addEventListener('popstate', () => (place.at = read()));
  document.addEventListener('click', (event) => {
    const link = (event.target as Element | null)?.closest?.('a');
    const isPlain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.defaultPrevented;
    if (!link || !isPlain || link.target || link.hasAttribute('download') || !link.pathname.startsWith('/ui/') || link.origin !== location.origin) return;
    event.preventDefault();
    go(link.href);
    scrollTo(0, 0);
  });
}
