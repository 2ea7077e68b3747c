// Follows the live stream of the server, and connects again whenever it breaks.
import { backoff, SseReader } from './pure/sse.js';

export type Frame = { seq: number; runs?: { run: string }[]; nodes?: { node: string }[]; servers?: unknown[] };
export type Message =
  | { kind: 'state'; connected: boolean; seq: string | null }
  | { kind: 'frame'; frame: Frame }
  | { kind: 'reset' };

/** The server sends something every 15 seconds. */
const SILENT_MS = 40_000;

/** Returns a function that connects at once instead of waiting. */
export function follow(send: (message: Message) => void): () => void {
  let last: string | null = null;
  let failures = 0;
  let wake = () => {};
  const read = async () => {
    const stop = new AbortController();
    let watchdog = setTimeout(() => stop.abort(), SILENT_MS);
    try {
      const headers: Record<string, string> = last === null ? {} : { 'Last-Event-ID': last };
      const url = '/api/v1/live?topics=runs,nodes,servers';
      const response = await fetch(url, { headers, cache: 'no-store', signal: stop.signal });
      if (response.status === 400 && last !== null) {
        // The store is another one: its numbers end before ours.
        last = null;
        send({ kind: 'reset' });
        return;
      }
      if (!response.ok || !response.body) return;
      last ??= response.headers.get('downbeat-event');
      failures = 0;
      send({ kind: 'state', connected: true, seq: last });
      const reader = new SseReader();
      const text = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await text.read();
        if (done) return;
        clearTimeout(watchdog);
        watchdog = setTimeout(() => stop.abort(), SILENT_MS);
        for (const sent of reader.read(value)) {
          last = sent.id ?? last;
          send(sent.event === 'frame' ? { kind: 'frame', frame: JSON.parse(sent.data) } : { kind: 'reset' });
        }
      }
    } catch {
      // The state says that there is no connection; the next attempt follows.
    } finally {
      clearTimeout(watchdog);
      stop.abort();
    }
  };
  const loop = async () => {
    for (;;) {
      await read();
      failures += 1;
      send({ kind: 'state', connected: false, seq: last });
      await new Promise<void>((resolve) => {
        wake = resolve;
        setTimeout(resolve, backoff(failures, Math.random()));
      });
    }
  };
  void loop();
  return () => wake();
}
