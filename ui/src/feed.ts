// The shared worker: the only stream of all tabs of a browser.
import { follow, type Message } from './follow';

const ports = new Set<MessagePort>();
let state: Message = { kind: 'state', connected: false, seq: null };
const wake = follow((message) => {
  if (message.kind === 'state') state = message;
  for (const port of ports) port.postMessage(message);
});

(self as unknown as { onconnect: (event: MessageEvent) => void }).onconnect = (event) => {
  const port = event.ports[0];
  ports.add(port);
  port.onmessage = ({ data }) => (data === 'bye' ? ports.delete(port) : wake());
  port.postMessage(state);
};
