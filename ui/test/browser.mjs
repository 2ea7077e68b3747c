// The UI in a real Chromium, through a real server: `node test/browser.mjs PROGRAM [SCREENSHOTS]`.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

const [program, screenshots] = process.argv.slice(2);
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const data = mkdtempSync(join(tmpdir(), 'downbeat-ui-'));
const DEADLINE = 60_000;
const HOSTILE = String.raw`printf '<script>window.hacked=1</script><img src=x onerror=window.hacked=1>\n\033]0;x\007\033[31mred\033[0m\n'; echo bad >&2; exit 3`;

let ready;
let server;
async function start() {
  const file = join(data, 'ready.json');
  rmSync(file, { force: true });
  const [http, grpc] = ready ? [ready.http, ready.grpc] : ['127.0.0.1:0', '127.0.0.1:0'];
  server = spawn(program, ['dev', '--nodes', '3', '--data', join(data, 'dev'), '--http', http, '--grpc', grpc, '--ready-file', file], { stdio: 'ignore' });
  ready = await eventually('the server is up', () => JSON.parse(readFileSync(file, 'utf8')));
}

async function eventually(what, look) {
  const end = Date.now() + DEADLINE;
  let last;
  while (Date.now() < end) {
    try {
      const found = await look();
      if (found) return found;
    } catch (error) {
      last = error;
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`not in time: ${what}`, { cause: last });
}

const api = () => `${process.env.UI_BASE ?? ready.url}`;
async function post(path, body) {
  const response = await fetch(`${ready.url}/api/v1${path}`, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) });
  assert.ok(response.ok, await response.clone().text());
  return response.json();
}
const get = async (path) => (await fetch(`${ready.url}/api/v1${path}`)).json();
const job = (name, ...commands) => ({ name, target: 'all', tasks: commands.map((command, at) => ({ name: `step-${at}`, backend: 'exec', action: 'run', params: { command: ['sh', '-c', command] } })) });

await start();
// Without traffic of its own to the outside.
const quiet = ['--disable-background-networking', '--disable-component-update', '--disable-sync', '--disable-quic', '--no-first-run'];
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-proxy-server', ...quiet] });
try {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, bypassCSP: false });
  const errors = [];
  const page = await context.newPage();
  page.on('pageerror', (error) => errors.push(String(error)));
  page.on('console', (message) => message.type() === 'error' && /Content Security|Uncaught/.test(message.text()) && errors.push(message.text()));
  page.setDefaultTimeout(DEADLINE);
  const foreign = [];
  page.on('request', (request) => new URL(request.url()).origin === new URL(api()).origin || foreign.push(request.url()));

  await page.goto(`${api()}/ui/`);
  await page.getByText('Start here').waitFor();
  await page.getByText('● live').waitFor();
  console.log('ok: an empty store says how to start');

  const failed = await post('/runs', job('hostile', 'true', HOSTILE));
  await eventually('the run has ended', async () => {
    const { status, error, counts } = await get(`/runs/${failed.id}`);
    if (status !== 'failed') throw new Error(JSON.stringify({ status, error, counts }));
    return true;
  });
  await page.getByRole('cell', { name: 'hostile' }).first().waitFor();
  console.log('ok: a run appears by itself');

  await page.goto(`${api()}/ui/runs/${failed.id}`);
  await page.getByRole('grid').focus();
  await page.keyboard.press('n');
  await page.keyboard.press('Enter');
  await page.getByText('<script>window.hacked=1</script>').waitFor();
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.equal(await page.locator('.out script, .out img').count(), 0);
  console.log('ok: hostile output stays text');

  const go = join(data, 'go');
  const slow = await post('/runs', job('slow', `until [ -e '${go}' ]; do sleep 0.1; done`, 'true'));
  await page.goto(`${api()}/ui/runs/${slow.id}`);
  await page.locator('main .chip.running').first().waitFor();
  await page.getByRole('button', { name: 'Pause…' }).click();
  await page.getByRole('dialog').getByText(`downbeat run pause ${slow.id}`).waitFor();
  await page.getByRole('dialog').getByText('3 nodes').waitFor();
  await page.getByRole('button', { name: 'Pause the run' }).click();
  await page.getByRole('button', { name: 'Resume…' }).waitFor();
  assert.equal((await get(`/runs/${slow.id}`)).paused, true);
  await page.getByRole('button', { name: 'Resume…' }).click();
  await page.getByRole('button', { name: 'Resume the run' }).click();
  writeFileSync(go, '');
  await page.locator('main .chip.completed').waitFor();
  console.log('ok: paused and resumed by dialogs, watched until the end');

  if (!process.env.UI_BASE) {
    server.kill('SIGKILL');
    await once(server, 'exit');
    await page.getByText('No connection since').waitFor();
    assert.ok(await page.getByRole('button', { name: 'Retry…' }).isDisabled());
    await start();
    await page.getByText('● live').waitFor();
    const after = await post('/runs', job('after', 'true'));
    await page.goto(`${api()}/ui/runs`);
    await page.locator(`a[href="/ui/runs/${after.id}"]`).waitFor();
    console.log('ok: kill -9 is said, and the page connects again');
  }

  for (const colorScheme of ['light', 'dark']) {
    for (const width of [1440, 390]) {
      await page.setViewportSize({ width, height: 900 });
      await page.emulateMedia({ colorScheme });
      for (const path of ['', 'runs', `runs/${failed.id}`, `runs/${failed.id}/log`, `runs/${failed.id}/events`, 'nodes', 'servers', 'nowhere']) {
        await page.goto(`${api()}/ui/${path}`);
        await page.getByRole('heading', { level: 1 }).first().waitFor();
        await eventually('the page is loaded', async () => (await page.getByText('Loading …').count()) === 0);
        if (screenshots) await page.screenshot({ path: join(screenshots, `${path.replace(failed.id, 'run').replaceAll('/', '-') || 'overview'}-${colorScheme}-${width}.png`) });
        // Run in the page's own world, which the policy of the page does not let load scripts.
        const session = await context.newCDPSession(page);
        await session.send('Runtime.evaluate', { expression: axe });
        const found = await page.evaluate(() => window.axe.run());
        assert.deepEqual(found.violations.map((it) => `${it.id}: ${it.nodes[0].html}`), [], `${path} ${colorScheme} ${width}`);
        assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${path} is wider than ${width}`);
      }
    }
  }
  console.log('ok: no findings of axe in both themes and widths');
  assert.deepEqual(errors, []);
  assert.deepEqual(foreign, []);
} finally {
  await browser.close();
  server.kill('SIGKILL');
  rmSync(data, { recursive: true, force: true });
}
