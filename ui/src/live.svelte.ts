// What the page knows, and how old it is: the state of the stream, and data that is read again when it changes.
import { follow, type Frame, type Message } from './follow';

export const live = $state({ connected: false, everConnected: false, late: false, since: 0, seq: 0, resets: 0, now: Date.now() });

const listeners = new Set<(frame: Frame | null) => void>();
let lateTimer = 0;

function receive(message: Message) {
  if (message.kind === 'frame') {
    live.seq = message.frame.seq;
    for (const listener of listeners) listener(message.frame);
  } else if (message.kind === 'reset') {
    live.resets += 1;
    for (const listener of listeners) listener(null);
  } else {
    live.seq = Math.max(live.seq, Number(message.seq ?? 0));
    if (message.connected && !live.connected) {
      clearTimeout(lateTimer);
      Object.assign(live, { connected: true, everConnected: true, late: false });
      for (const listener of listeners) listener(null);
    } else if (!message.connected && (live.connected || live.since === 0)) {
      Object.assign(live, { connected: false, since: Date.now() });
      lateTimer = window.setTimeout(() => (live.late = true), 2000);
    }
  }
}

export function start() {
  let wake: () => void;
  if ('SharedWorker' in window) {
    const worker = new SharedWorker(new URL('./feed.ts', import.meta.url), { type: 'module', name: 'downbeat' });
    worker.port.onmessage = ({ data }) => receive(data);
    wake = () => worker.port.postMessage('wake');
    addEventListener('pagehide', () => worker.port.postMessage('bye'));
  } else {
    wake = follow(receive);
  }
  addEventListener('online', wake);
  document.addEventListener('visibilitychange', () => document.hidden || live.connected || wake());
  // Ages stand still while the page does not know what is new.
  setInterval(() => live.late || document.hidden || (live.now = Date.now()), 1000);
}

export class Problem extends Error {
  constructor(readonly status: number, readonly code: string, detail: string, readonly request: string) {
    super(detail);
  }
}

export async function call(method: string, path: string, body?: unknown, signal?: AbortSignal, headers: Record<string, string> = {}): Promise<any> {
  const init: RequestInit = { method, signal, headers, cache: 'no-store' };
  if (body !== undefined) Object.assign(init, { body: JSON.stringify(body), headers: { ...headers, 'content-type': 'application/json' } });
  let response: Response;
  try {
    response = await fetch(`/api/v1${path}`, init);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, 'unreachable', 'the server cannot be reached', '');
  }
  const text = await response.text();
  let value: any = null;
  try {
    value = text === '' ? null : JSON.parse(text);
  } catch {
    value = null;
  }
  if (response.ok) return value;
  const id = response.headers.get('x-request-id') ?? '';
  throw new Problem(response.status, value?.code ?? String(response.status), value?.detail ?? response.statusText, id);
}

/** Data of the server, read again when a frame concerns it, not faster than the server responds with ease. */
export class Data {
  value: any = $state.raw(null);
  problem: Problem | null = $state.raw(null);
  reload: () => void = () => {};

  constructor(path: () => string | null, concerns: (frame: Frame) => boolean) {
    $effect(() => {
      const wanted = path();
      this.value = null;
      this.problem = null;
      if (wanted === null) return;
      const stop = new AbortController();
      let [isReading, isAgain, timer] = [false, false, 0];
      const read = async () => {
        if (isReading) return void (isAgain = true);
        [isReading, isAgain] = [true, false];
        const begun = performance.now();
        try {
          const value = await call('GET', wanted, undefined, stop.signal);
          if (stop.signal.aborted) return;
          [this.value, this.problem] = [value, null];
        } catch (error) {
          if (stop.signal.aborted) return;
          // While there is no connection the bar says so, and the last answer stays.
          if (!(error instanceof Problem && error.status === 0 && this.value)) this.problem = error as Problem;
        }
        timer = window.setTimeout(() => {
          isReading = false;
          if (isAgain) void read();
        }, Math.max(300, 4 * (performance.now() - begun)));
      };
      const listener = (frame: Frame | null) => {
        if (frame === null || concerns(frame)) void read();
      };
      this.reload = () => void read();
      listeners.add(listener);
      void read();
      return () => {
        stop.abort();
        clearTimeout(timer);
        listeners.delete(listener);
      };
    });
  }
}
